/* A library opened so that it binds to itself first.  Preloaded symbols do not reach into it: its calls work, past
 * any hook in front of the driver. */
#include "../driver.h"

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(library);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(library, "cuInit");
    CHECK(init && init(0) == CUDA_SUCCESS);
    /* Its own dlsym is the C library's. */
    void *other = dlopen("libnamesake_library.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(other);
    int (*ask)(void) = (int (*)(void))dlsym(other, "namesake_asks");
    CHECK(ask && ask() == 4711);
    puts("ok");
    return 0;
}
