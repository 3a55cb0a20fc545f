/* Null pointers in place of result pointers.
 *
 * usage: nulls PTX */
#include "../driver.h"

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    gpu_open(argv[1]);
    size_t bytes = 0;
    printf("  cuMemGetInfo: %d, %d, %d\n", TRY(cuMemGetInfo, NULL, &bytes), TRY(cuMemGetInfo, &bytes, NULL), TRY(cuMemGetInfo, NULL, NULL));
    CHECK(TRY(cuMemAlloc, NULL, 4096) != CUDA_SUCCESS);
    CUdeviceptr memory, base;
    CHECK(TRY(cuMemAlloc, &memory, 0) != CUDA_SUCCESS);
    CALL(cuMemAlloc, &memory, 4096);
    CALL(cuMemGetAddressRange, NULL, &bytes, memory);
    CHECK_EQUAL(bytes, 4096);
    CALL(cuMemGetAddressRange, &base, NULL, memory);
    CHECK_EQUAL(base, memory);
    printf("  cuDeviceTotalMem: %d\n", TRY(cuDeviceTotalMem, NULL, 0));
    printf("  cuDeviceGetAttribute: %d\n", TRY(cuDeviceGetAttribute, NULL, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    printf("  cuStreamCreate: %d\n", TRY(cuStreamCreate, NULL, 0));
    printf("  cuEventCreate: %d\n", TRY(cuEventCreate, NULL, 0));
    printf("  cuLaunchKernel: %d\n", TRY(cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    printf("  cuMemFree: %d\n", TRY(cuMemFree, 0));
    CALL(cuMemFree, memory);
    puts("ok");
    return 0;
}
