/* Opens the driver, uses it, closes it, and repeats all of it. */
#include "../driver.h"

int main(void)
{
    for (int i = 0; i < 5; i++) {
        void *library = dlopen("libcuda.so.1", i % 2 ? RTLD_NOW : RTLD_LAZY);
        CHECK(library);
        CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(library, "cuInit");
        CUresult (*count)(int *) = (CUresult(*)(int *))dlsym(library, "cuDeviceGetCount");
        CUresult (*total)(size_t *, CUdevice) = (CUresult(*)(size_t *, CUdevice))dlsym(library, "cuDeviceTotalMem_v2");
        CHECK(init && count && total && !dlerror());
        CHECK(init(0) == CUDA_SUCCESS);
        int devices = 0;
        CHECK(count(&devices) == CUDA_SUCCESS && devices > 0);
        size_t bytes = 0;
        CHECK(total(&bytes, 0) == CUDA_SUCCESS && bytes > 0);
        CHECK(dlclose(library) == 0);
        CHECK(!dlerror());
    }
    puts("ok");
    return 0;
}
