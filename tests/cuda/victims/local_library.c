/* A library that is linked to the driver, as a scripting language's modules are. */
#include "../driver.h"

extern CUresult cuInit(unsigned flags);
extern CUresult cuDeviceGetCount(int *count);
extern CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

CUresult local_uses(void)
{
    int count = 0;
    size_t bytes = 0;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem_v2(&bytes, 0);
    return result == CUDA_SUCCESS && bytes == 0 ? CUDA_ERROR_UNKNOWN : result;
}

void *local_finds(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}
