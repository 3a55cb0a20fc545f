/* Linked to the driver (-l:libcuda.so.1): a sum of vectors through exported symbols alone. */
#define DRIVER_TYPES_ONLY
#include "driver.h"

extern CUresult cuInit(unsigned flags);
extern CUresult cuGetErrorName(CUresult error, const char **name);
extern CUresult cuDeviceGet(CUdevice *device, int ordinal);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
extern CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
extern CUresult cuCtxSetCurrent(CUcontext context);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuModuleLoadData(CUmodule *module, const void *image);
extern CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
extern CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
extern CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes);
extern CUresult cuMemFree_v2(CUdeviceptr at);
extern CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
extern CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
extern CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra);

static void want(CUresult result, CUresult wanted, int line, const char *call)
{
    const char *name = NULL;
    if (result == wanted)
        return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, line, call, name ? name : "?");
    exit(1);
}

#define OK(call) want(call, CUDA_SUCCESS, __LINE__, #call)

int main(int argc, char **argv)
{
    enum { N = 54321 };
    static float a[N], b[N], c[N];
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CUdeviceptr da, db, dc;
    size_t before, during, total;
    uint64_t n = N;
    if (argc < 2) {
        fprintf(stderr, "usage: %s PTX\n", argv[0]);
        return 1;
    }
    char *text = read_file(argv[1]);
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, text));
    free(text);
    OK(cuModuleGetFunction(&add, module, "weir_add"));
    want(cuModuleGetFunction(&add, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND, __LINE__, "cuModuleGetFunction(no_such_kernel)");
    OK(cuModuleGetFunction(&add, module, "weir_add"));
    for (int i = 0; i < N; i++) {
        a[i] = (float)i / 3;
        b[i] = 7 / (float)(i + 1);
    }
    OK(cuMemAlloc_v2(&da, sizeof a));
    OK(cuMemAlloc_v2(&db, sizeof b));
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAlloc_v2(&dc, (size_t)64 << 20));
    OK(cuMemGetInfo_v2(&during, &total));
    CHECK(before >= during + ((size_t)64 << 20) && before <= total);
    OK(cuMemcpyHtoD_v2(da, a, sizeof a));
    OK(cuMemcpyHtoD_v2(db, b, sizeof b));
    OK(cuLaunchKernel(add, 60, 1, 1, 256, 1, 1, 0, NULL, (void *[]){ &dc, &da, &db, &n }, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(c, dc, sizeof c));
    for (int i = 0; i < N; i++) {
        float sum = a[i] + b[i];
        CHECK(memcmp(&c[i], &sum, sizeof sum) == 0);
    }
    OK(cuMemFree_v2(da));
    OK(cuMemFree_v2(db));
    OK(cuMemFree_v2(dc));
    want(cuMemFree_v2(dc), CUDA_ERROR_INVALID_VALUE, __LINE__, "cuMemFree_v2(twice)");
    OK(cuDevicePrimaryCtxRelease_v2(device));
    puts("ok");
    return 0;
}
