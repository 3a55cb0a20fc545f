/* Symbols without a version are the functions from before CUDA 3.2, with sizes and addresses of 32 bits.  By a name and a version
 * the resolver returns one or the other. */
#include "../driver.h"

int main(void)
{
    void *library = cu_library();
    void *found = dlsym(library, "cuGetProcAddress_v2");
    cuGetProcAddress_v2_t resolve;
    memcpy(&resolve, &found, sizeof resolve);
    CHECK(resolve);
    static const char *const names[] = { "cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD32",
                                         "cuMemAllocPitch", "cuMemGetAddressRange", "cuDeviceTotalMem", "cuArrayCreate" };
    for (size_t i = 0; i < COUNT(names); i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "%s_v2", names[i]);
        void *narrow = dlsym(library, names[i]), *wide = dlsym(library, symbol);
        CHECK(wide);
        CHECK(narrow != wide);
        CHECK(dlsym(library, symbol) == wide && dlsym(library, names[i]) == narrow);
        void *old = NULL, *new = NULL, *newer = NULL;
        CUdriverProcAddressQueryResult status;
        CHECK(resolve(names[i], &newer, 12000, 0, &status) == CUDA_SUCCESS && newer);
        CHECK(resolve(names[i], &new, 3020, 0, &status) == CUDA_SUCCESS && new == newer);
        CHECK(resolve(names[i], &old, 2000, 0, &status) == CUDA_SUCCESS && old != new);
        printf("  %s: %s\n", names[i], narrow ? "both" : "the later alone");
    }
    /* The newer one accepts sizes that the older cannot represent. */
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(library, "cuInit");
    CUresult (*total)(size_t *, CUdevice) = (CUresult(*)(size_t *, CUdevice))dlsym(library, "cuDeviceTotalMem_v2");
    CHECK(init(0) == CUDA_SUCCESS);
    size_t bytes = 1;
    CHECK(total(&bytes, 0) == CUDA_SUCCESS && bytes > UINT32_MAX);
    CHECK(resolve("cuDeviceTotalMem", (void **)&total, 12000, 0, NULL) == CUDA_SUCCESS);
    bytes = 1;
    CHECK(total(&bytes, 0) == CUDA_SUCCESS && bytes > UINT32_MAX);
    puts("ok");
    return 0;
}
