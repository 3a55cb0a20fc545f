/* Loads the driver long after the start, by many threads at once, each of which then works with it.
 *
 * usage: late PTX */
#include "../driver.h"

static pthread_barrier_t barrier;
static struct gpu gpu;

static void *work(void *argument)
{
    pthread_barrier_wait(&barrier);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(library, "cuInit");
    CUresult (*allocate)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
    CHECK(init && allocate && init(0) == CUDA_SUCCESS);
    if (argument)
        gpu = gpu_open(argument);
    pthread_barrier_wait(&barrier);
    CALL(cuCtxSetCurrent, gpu.context);
    CUdeviceptr memory;
    CHECK(allocate(&memory, 4096) == CUDA_SUCCESS);
    fill(&gpu, memory, 1024, 9, NULL);
    CALL(cuCtxSynchronize);
    uint32_t words[1024];
    CALL(cuMemcpyDtoH, words, memory, sizeof words);
    CHECK_EQUAL(words[0], 9);
    CALL(cuMemFree, memory);
    return NULL;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    sleep_ms(50);
    pthread_t threads[16];
    CHECK(pthread_barrier_init(&barrier, NULL, COUNT(threads)) == 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, work, i == 0 ? argv[1] : NULL) == 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("ok");
    return 0;
}
