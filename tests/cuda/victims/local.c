/* Libraries opened with RTLD_LOCAL: one has functions with the driver's names, the other is linked to the driver.  Each gets
 * its own. */
#include "../driver.h"

static void namesake(void)
{
    void *library = dlopen("libnamesake_library.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    int (*ask)(void) = (int (*)(void))dlsym(library, "namesake_asks");
    CHECK(ask);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(ask(), 4711);
}

int main(void)
{
    namesake();
    void *library = dlopen("liblocal_library.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    CUresult (*use)(void) = (CUresult(*)(void))dlsym(library, "local_uses");
    void *(*find)(const char *) = (void *(*)(const char *))dlsym(library, "local_finds");
    CHECK(use && find);
    CHECK_EQUAL(use(), CUDA_SUCCESS);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))find("cuInit");
    CHECK(init && init(0) == CUDA_SUCCESS);
    CHECK(!find("cuNothingOfTheKind") && dlerror());
    namesake();
    CHECK_EQUAL(use(), CUDA_SUCCESS);
    puts("ok");
    return 0;
}
