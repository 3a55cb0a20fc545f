/* Linked to the driver (-l:libcuda.so.1), and compiled for the per-thread default stream: streams, events, a
 * captured graph and virtual memory through exported symbols, with the suffixes that NVIDIA's header would put on them. */
#define DRIVER_TYPES_ONLY
#include "driver.h"

extern CUresult cuInit(unsigned flags);
extern CUresult cuGetErrorName(CUresult error, const char **name);
extern CUresult cuDeviceGet(CUdevice *device, int ordinal);
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
extern CUresult cuCtxDestroy_v2(CUcontext context);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuModuleLoadData(CUmodule *module, const void *image);
extern CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
extern CUresult cuMemGetAllocationGranularity(size_t *grain, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags which);
extern CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags);
extern CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
extern CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr near, unsigned long long flags);
extern CUresult cuMemAddressFree(CUdeviceptr at, size_t size);
extern CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
extern CUresult cuMemUnmap(CUdeviceptr at, size_t size);
extern CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count);
extern CUresult cuMemsetD8_v2_ptds(CUdeviceptr at, unsigned char value, size_t count);
extern CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
extern CUresult cuStreamCreate(CUstream *stream, unsigned flags);
extern CUresult cuStreamDestroy_v2(CUstream stream);
extern CUresult cuStreamSynchronize_ptsz(CUstream stream);
extern CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
extern CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
extern CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
extern CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);
extern CUresult cuGraphExecDestroy(CUgraphExec exec);
extern CUresult cuGraphDestroy(CUgraph graph);
extern CUresult cuEventCreate(CUevent *event, unsigned flags);
extern CUresult cuEventDestroy_v2(CUevent event);
extern CUresult cuEventRecord_ptsz(CUevent event, CUstream stream);
extern CUresult cuEventQuery(CUevent event);
extern CUresult cuEventSynchronize(CUevent event);
extern CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                    unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra);

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
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction spin, fill, sum;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at, total_at;
    size_t grain;
    if (argc < 2) {
        fprintf(stderr, "usage: %s PTX\n", argv[0]);
        return 1;
    }
    char *text = read_file(argv[1]);
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate_v2(&context, CU_CTX_SCHED_SPIN, device));
    OK(cuModuleLoadData(&module, text));
    free(text);
    OK(cuModuleGetFunction(&spin, module, "weir_spin"));
    OK(cuModuleGetFunction(&fill, module, "weir_fill"));
    OK(cuModuleGetFunction(&sum, module, "weir_sum"));

    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
    CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    OK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemCreate(&handle, grain, &prop, 0));
    OK(cuMemAddressReserve(&at, grain, 0, 0, 0));
    OK(cuMemMap(at, grain, 0, handle, 0));
    OK(cuMemSetAccess(at, grain, &access, 1));
    total_at = at + grain - 8;

    uint64_t words = grain / 8, ns = 1000, total = 0;
    uint32_t value = 2, zero = 0;
    CUstream stream;
    CUevent spun;
    CUgraph graph;
    CUgraphExec exec;
    void *spin_with[] = { &ns, &zero, &zero, &zero }, *fill_with[] = { &at, &words, &value }, *sum_with[] = { &total_at, &at, &words };
    OK(cuMemsetD8_v2_ptds(at, 0, grain));
    /* Runs each kernel once, so that none is loaded later beside a running one. */
    OK(cuLaunchKernel_ptsz(spin, 1, 1, 1, 32, 1, 1, 0, NULL, spin_with, NULL));
    OK(cuLaunchKernel_ptsz(fill, 1, 1, 1, 256, 1, 1, 0, NULL, fill_with, NULL));
    OK(cuLaunchKernel_ptsz(sum, 1, 1, 1, 256, 1, 1, 0, NULL, sum_with, NULL));
    OK(cuMemsetD8_v2_ptds(at, 0, grain));
    OK(cuCtxSynchronize());

    /* A blocking stream spins; stream 0, this thread's own, does not wait for it. */
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&spun, CU_EVENT_DISABLE_TIMING));
    ns = 200000000;
    OK(cuLaunchKernel_ptsz(spin, 1, 1, 1, 32, 1, 1, 0, stream, spin_with, NULL));
    OK(cuEventRecord_ptsz(spun, stream));
    OK(cuLaunchKernel_ptsz(fill, 20, 1, 1, 256, 1, 1, 0, NULL, fill_with, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    want(cuEventQuery(spun), CUDA_ERROR_NOT_READY, __LINE__, "cuEventQuery(spun)");
    OK(cuEventSynchronize(spun));
    OK(cuEventQuery(spun));

    OK(cuStreamBeginCapture_v2_ptsz(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchKernel_ptsz(sum, 20, 1, 1, 256, 1, 1, 0, stream, sum_with, NULL));
    OK(cuStreamEndCapture_ptsz(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 10; i++)
        OK(cuGraphLaunch_ptsz(exec, stream));
    OK(cuStreamSynchronize_ptsz(stream));
    OK(cuMemcpyDtoH_v2_ptds(&total, total_at, sizeof total));
    CHECK_EQUAL(total, 10 * 2 * words);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy_v2(spun));
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemUnmap(at, grain));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, grain));
    OK(cuCtxDestroy_v2(context));
    puts("ok");
    return 0;
}
