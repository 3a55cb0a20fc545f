/* When memory may be freed: a free waits for the work that uses the memory, and no longer; allocations and frees
 * during captures; peers; effects of a sticky error.
 *
 * usage: frees PTX.  With and without a preload library it prints these same lines:
 *   a free waits for its context
 *   another thread allocates meanwhile
 *   a captured stream's memory
 *   a capture that forbids it
 *   peers
 *   ok                    (and above it, where there is one device: "one device: no peers") */
#include "../driver.h"

#define MS UINT64_C(1000000)
enum { KIB = 1024, MIB = 1024 * KIB, WORDS = 1 << 20 };

struct waiter {
    CUcontext context;
    CUdeviceptr at;
    volatile int64_t done;
    CUresult result;
};

static void *free_it(void *argument)
{
    struct waiter *waiter = argument;
    CALL(cuCtxSetCurrent, waiter->context);
    waiter->result = TRY(cuMemFree, waiter->at);
    waiter->done = now_ns();
    return NULL;
}

static void waits(const struct gpu *gpu)
{
    static const size_t sizes[] = { 4 * WORDS, 16 * KIB };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        CUstream stream;
        CUdeviceptr at, again, out;
        uint64_t words = sizes[i] / 4, total = 0;
        CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        CALL(cuMemAlloc, &at, sizes[i]);
        CALL(cuMemAlloc, &out, 8);
        CALL(cuMemsetD8, out, 0, 8);
        fill(gpu, at, words, 1, stream);
        CALL(cuStreamSynchronize, stream);
        int64_t begin = now_ns();
        spin(gpu, 150 * MS, 1, stream);
        sum(gpu, out, at, words, stream);
        CALL(cuMemFree, at);
        CHECK(now_ns() - begin >= (int64_t)(140 * MS));
        CALL(cuStreamQuery, stream);
        /* When the memory is allocated again, the sum is done. */
        CALL(cuMemAlloc, &again, sizes[i]);
        CALL(cuMemsetD8, again, 9, sizes[i]);
        CALL(cuMemcpyDtoH, &total, out, 8);
        CHECK_EQUAL(total, words);
        CALL(cuMemFree, again);
        CALL(cuMemFree, out);
        CALL(cuStreamDestroy, stream);
    }
    puts("a free waits for its context");
}

static void meanwhile(const struct gpu *gpu)
{
    CUstream stream;
    pthread_t thread;
    struct waiter waiter = { .context = gpu->context };
    CUdeviceptr at[10];
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &waiter.at, 8 * MIB);
    /* Long enough for all below on a busy machine. */
    spin(gpu, 4000 * MS, 1, stream);
    CHECK(pthread_create(&thread, NULL, free_it, &waiter) == 0);
    sleep_ms(50);
    int64_t begin = now_ns();
    for (int i = 0; i < 10; i++) {
        CALL(cuMemAlloc, &at[i], 3 * MIB);
        CALL(cuMemsetD8Async, at[i], 1, 3 * MIB, stream);
    }
    int64_t end = now_ns();
    /* Freed by two threads: one of them succeeds. */
    CUresult result = TRY(cuMemFree, waiter.at);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQUAL(result + waiter.result, CUDA_ERROR_INVALID_VALUE);
    if (waiter.result == CUDA_SUCCESS)
        CHECK(end < waiter.done);
    CHECK(end - begin < (int64_t)(3500 * MS));
    CALL(cuStreamSynchronize, stream);
    for (int i = 0; i < 10; i++)
        CALL(cuMemFree, at[i]);
    CALL(cuStreamDestroy, stream);
    puts("another thread allocates meanwhile");
}

static void captures(const struct gpu *gpu)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr large, small, huge, other;
    size_t before, after, total;
    CALL(cuMemAlloc, &other, 3 * MIB);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemGetInfo, &before, &total);
    for (int round = 0; round < 3; round++) {
        CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        CALL(cuMemAlloc, &large, 4 * WORDS);
        CALL(cuMemAlloc, &small, 1000);
        CALL(cuMemAlloc, &huge, 100 * MIB);
        CHECK(large != small && large != huge);
        fill(gpu, large, WORDS, 4, stream);
        sum(gpu, small, large, WORDS, stream);
        CALL(cuMemsetD8Async, huge, 3, 100 * MIB, stream);
        if (round == 1)
            CALL(cuMemFree, other);
        CALL(cuStreamEndCapture, stream, &graph);
        CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
        CALL(cuMemsetD8, small, 0, 1000);
        CALL(cuGraphLaunch, exec, stream);
        CALL(cuStreamSynchronize, stream);
        uint64_t sum = 0;
        unsigned char last = 0;
        CALL(cuMemcpyDtoH, &sum, small, 8);
        CALL(cuMemcpyDtoH, &last, huge + 100 * MIB - 1, 1);
        CHECK_EQUAL(sum, 4 * (uint64_t)WORDS);
        CHECK_EQUAL(last, 3);
        CALL(cuGraphExecDestroy, exec);
        CALL(cuGraphDestroy, graph);
        CALL(cuMemFree, large);
        CALL(cuMemFree, small);
        CALL(cuMemFree, huge);
    }
    CALL(cuMemGetInfo, &after, &total);
    CHECK(after >= before + 3 * MIB);
    puts("a captured stream's memory");

    /* In the other modes the driver refuses, and the capture is invalidated. */
    CALL(cuMemAlloc, &other, 3 * MIB);
    static const CUstreamCaptureMode modes[] = { CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL };
    for (size_t i = 0; i < COUNT(modes); i++) {
        for (int is_free = 0; is_free < 2; is_free++) {
            CALL(cuStreamBeginCapture, stream, modes[i]);
            CHECK_EQUAL(is_free ? TRY(cuMemFree, other) : TRY(cuMemAlloc, &large, 4 * WORDS), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, stream, &graph);
        }
        /* This thread may allocate more. */
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CALL(cuStreamBeginCapture, stream, modes[i]);
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
        CALL(cuMemAlloc, &large, 4 * WORDS);
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
        CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
        fill(gpu, large, WORDS, 1, stream);
        CALL(cuStreamEndCapture, stream, &graph);
        CALL(cuGraphDestroy, graph);
        CALL(cuMemFree, large);
    }
    CALL(cuMemFree, other);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, other);
    CALL(cuStreamDestroy, stream);
    puts("a capture that forbids it");
}

static void peers(const struct gpu *gpu)
{
    int count, can = 0;
    CUdevice second;
    CUcontext there;
    CALL(cuDeviceGetCount, &count);
    if (count > 1) {
        CALL(cuDeviceGet, &second, 1);
        CALL(cuDeviceCanAccessPeer, &can, gpu->device, second);
    }
    if (!can) {
        puts("  one device: no peers");
        puts("peers");
        return;
    }
    CUdeviceptr before, small, after;
    CALL(cuDevicePrimaryCtxRetain, &there, second);
    CALL(cuCtxPushCurrent, there);
    CALL(cuMemAlloc, &before, 4 * WORDS);
    CALL(cuMemAlloc, &small, 4 * KIB);
    CALL(cuCtxPopCurrent, NULL);
    CALL(cuCtxEnablePeerAccess, there, 0);
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess, there, 0);
    CALL(cuCtxPushCurrent, there);
    CALL(cuMemAlloc, &after, 4 * WORDS);
    CALL(cuCtxPopCurrent, NULL);
    fill(gpu, before, WORDS, 5, NULL);
    fill(gpu, after, WORDS, 6, NULL);
    fill(gpu, small, KIB, 7, NULL);
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(gpu, before, WORDS), 5 * (uint64_t)WORDS);
    CHECK_EQUAL(sum_of(gpu, after, WORDS), 6 * (uint64_t)WORDS);
    CHECK_EQUAL(sum_of(gpu, small, KIB), 7 * (uint64_t)KIB);
    /* Freed from here, while this device still works on it. */
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    spin(gpu, 100 * MS, 1, stream);
    fill(gpu, after, WORDS, 8, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemFree, after);
    CALL(cuStreamDestroy, stream);
    CALL(cuCtxDisablePeerAccess, there);
    /* Its own device still uses it. */
    uint32_t word = 0;
    CALL(cuCtxPushCurrent, there);
    CALL(cuMemcpyDtoH, &word, before, 4);
    CHECK_EQUAL(word, 5);
    CALL(cuMemsetD8, before, 0, 4 * WORDS);
    CALL(cuMemFree, before);
    CALL(cuMemFree, small);
    CALL(cuCtxPopCurrent, NULL);
    CALL(cuDevicePrimaryCtxRelease, second);
    puts("peers");
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    waits(&gpu);
    meanwhile(&gpu);
    captures(&gpu);
    peers(&gpu);
    puts("ok");
    return 0;
}
