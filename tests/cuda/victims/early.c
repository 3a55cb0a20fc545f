/* The driver in constructors: the program's own, and that of a library which one thread opens while other threads look up
 * symbols. */
#include "../driver.h"

static CUresult early = CUDA_ERROR_UNKNOWN;

__attribute__((constructor)) static void begin(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CUresult (*init)(unsigned) = library ? (CUresult(*)(unsigned))dlsym(library, "cuInit") : NULL;
    if (init)
        early = init(0);
}

static void *look_up(void *argument)
{
    (void)argument;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    for (int i = 0; i < 1000; i++)
        CHECK(dlsym(library, i % 2 ? "cuLaunchKernel" : "cuMemAlloc_v2"));
    return NULL;
}

int main(void)
{
    CHECK_EQUAL(early, CUDA_SUCCESS);
    pthread_t threads[8];
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, look_up, NULL) == 0);
    void *library = dlopen("libearly_library.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    const CUresult *result = dlsym(library, "early_result");
    CHECK(result);
    CHECK_EQUAL(*result, CUDA_SUCCESS);
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("ok");
    return 0;
}
