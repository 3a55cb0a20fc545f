/* Processes with faults, or which wait to be disturbed.  Every mode prints lines of JSON.
 *
 * usage: faults PTX illegal                             a kernel writes to an unmapped address; later calls report it
 *        faults PTX wait [--kernels N] [--us D]          queues N kernels of D µs (default 1000 of 10000), waits for them;
 *                                                       exits 0 when they ran, 2 when the driver reported an error
 *        faults PTX alloc [--mib N] [--kind K]           holds N MiB (default 256) until its standard input ends;
 *                                                       K: 0 cuMemAlloc, 1 virtual memory management, 2 pinned host memory */
#include "driver.h"

static void say(const char *event)
{
    printf("{\"event\": \"%s\", \"pid\": %d, \"at_ns\": %" PRId64 "}\n", event, (int)getpid(), now_ns());
    fflush(stdout);
}

static CUresult tell(const char *call, CUresult result)
{
    printf("{\"call\": \"%s\", \"result\": %d, \"name\": \"%s\", \"at_ns\": %" PRId64 "}\n", call, (int)result, cu_error(result), now_ns());
    fflush(stdout);
    return result;
}

#define TELL(function, ...) tell(#function, TRY(function, __VA_ARGS__))
#define STICKY(function, ...) CHECK_EQUAL(TELL(function, __VA_ARGS__), CUDA_ERROR_ILLEGAL_ADDRESS)

static int illegal(const struct gpu *gpu)
{
    CUdeviceptr good, p, nowhere = 0x1000;
    CUstream stream;
    CUevent event;
    uint32_t word = 0, value = 1;
    uint64_t words = 64;
    size_t free, total;
    CALL(cuMemAlloc, &good, 4096);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &event, CU_EVENT_DEFAULT);
    fill(gpu, good, 16, 7, stream);
    CALL(cuMemcpyDtoHAsync, &word, good, 4, stream);
    CALL(cuStreamSynchronize, stream);
    CHECK_EQUAL(word, 7);
    say("fault");
    launch(gpu->fill, 1, 64, stream, (void *[]){ &nowhere, &words, &value });
    STICKY(cuStreamSynchronize, stream);
    STICKY(cuCtxSynchronize);
    STICKY(cuStreamQuery, stream);
    STICKY(cuMemAlloc, &p, 4096);
    STICKY(cuMemcpyDtoH, &word, good, 4);
    STICKY(cuMemsetD8, good, 0, 4);
    STICKY(cuLaunchKernel, gpu->fill, 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){ &good, &words, &value }, NULL);
    STICKY(cuEventRecord, event, stream);
    STICKY(cuMemFree, good);
    /* These results are printed, but not checked. */
    TELL(cuMemGetInfo, &free, &total);
    TELL(cuEventQuery, event);
    TELL(cuStreamDestroy, stream);
    TELL(cuDevicePrimaryCtxReset, gpu->device);
    /* The library itself still works. */
    int count;
    CALL(cuDeviceGetCount, &count);
    const char *text;
    CALL(cuGetErrorString, CUDA_ERROR_ILLEGAL_ADDRESS, &text);
    CHECK(text && *text);
    return 0;
}

static int wait_queued(const struct gpu *gpu, int argc, char **argv)
{
    long kernels = option(argc, argv, "--kernels", 1000), us = option(argc, argv, "--us", 10000);
    uint64_t ns = (uint64_t)us * 1000;
    uint32_t zero = 0;
    CUresult result = CUDA_SUCCESS;
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    say("running");
    for (long i = 0; i < kernels && result == CUDA_SUCCESS; i++) {
        result = TRY(cuLaunchKernel, gpu->spin, gpu->sms, 1, 1, 1024, 1, 1, 0, stream, (void *[]){ &ns, &zero, &zero, &zero }, NULL);
        if (result != CUDA_SUCCESS)
            tell("cuLaunchKernel", result);
    }
    if (result == CUDA_SUCCESS) {
        say("queued");
        result = TELL(cuStreamSynchronize, stream);
    }
    if (result == CUDA_SUCCESS) {
        say("done");
        return 0;
    }
    CUdeviceptr p;
    TELL(cuMemAlloc, &p, 4096);
    say("failed");
    return 2;
}

static void memory(const char *event)
{
    size_t free, total;
    CALL(cuMemGetInfo, &free, &total);
    printf("{\"event\": \"%s\", \"pid\": %d, \"free\": %zu, \"total\": %zu}\n", event, (int)getpid(), free, total);
    fflush(stdout);
}

static int alloc(const struct gpu *gpu, int argc, char **argv)
{
    size_t size = (size_t)option(argc, argv, "--mib", 256) << 20;
    long kind = option(argc, argv, "--kind", 0);
    CUdeviceptr at = 0;
    void *host = NULL;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result;
    memory("before");
    if (kind == 2) {
        result = TELL(cuMemHostAlloc, &host, size, CU_MEMHOSTALLOC_PORTABLE);
    } else if (kind == 1) {
        size_t grain;
        CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device } };
        CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        CALL(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        size = (size + grain - 1) / grain * grain;
        result = TELL(cuMemCreate, &handle, size, &prop, 0);
        if (result == CUDA_SUCCESS) {
            CALL(cuMemAddressReserve, &at, size, 0, 0, 0);
            CALL(cuMemMap, at, size, 0, handle, 0);
            CALL(cuMemSetAccess, at, size, &access, 1);
        }
    } else {
        result = TELL(cuMemAlloc, &at, size);
    }
    if (result != CUDA_SUCCESS)
        return 2;
    if (at) {
        fill(gpu, at, size / 4, 1, NULL);
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(gpu, at, size / 4), size / 4);
    }
    memory("holding");
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    if (at)
        CHECK_EQUAL(sum_of(gpu, at, size / 4), size / 4);
    if (kind == 1) {
        CALL(cuMemUnmap, at, size);
        CALL(cuMemRelease, handle);
        CALL(cuMemAddressFree, at, size);
    } else if (kind == 2) {
        CALL(cuMemFreeHost, host);
    } else {
        CALL(cuMemFree, at);
    }
    memory("freed");
    return 0;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " illegal|wait|alloc ...");
    const char *mode = argc > 2 ? argv[2] : "illegal";
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    int status = 1;
    if (strcmp(mode, "illegal") == 0)
        status = illegal(&gpu);
    else if (strcmp(mode, "wait") == 0)
        status = wait_queued(&gpu, argc, argv);
    else if (strcmp(mode, "alloc") == 0)
        status = alloc(&gpu, argc, argv);
    else
        fprintf(stderr, "faults: no mode %s: illegal, wait or alloc\n", mode);
    if (status == 0)
        puts("ok");
    return status;
}
