/* Graphs: captured from streams and built by hand, launched many times, with changed parameters; and operations that a capture
 * forbids. */
#include "driver.h"

enum { WORDS = 100000, LAUNCHES = 100 };

static CUstream s1, s2;

static int calls;

static void count(void *data)
{
    calls += *(int *)data;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    CALL(cuStreamIsCapturing, stream, &status);
    return status;
}

/* Ends an invalidated capture. */
static void end_broken(CUstream stream, CUresult want)
{
    CUgraph graph = (CUgraph)(void *)&calls;
    cu_expect(TRY(cuStreamEndCapture, stream, &graph), want, __FILE__, __LINE__, "cuStreamEndCapture", "stream, &graph");
    CHECK(graph == NULL);
    CHECK_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static void types(CUgraph graph, const unsigned want[6])
{
    size_t nodes = 0;
    unsigned got[6] = { 0 };
    CALL(cuGraphGetNodes, graph, NULL, &nodes);
    CUgraphNode node[16];
    CHECK(nodes <= COUNT(node));
    size_t room = COUNT(node);
    CALL(cuGraphGetNodes, graph, node, &room);
    CHECK_EQUAL(room, nodes);
    for (size_t i = 0; i < nodes; i++) {
        CUgraphNodeType type;
        CALL(cuGraphNodeGetType, node[i], &type);
        CHECK((unsigned)type < COUNT(got));
        got[type]++;
    }
    for (size_t i = 0; i < COUNT(got); i++)
        CHECK_EQUAL(got[i], want[i]);
}

/* memcpy → (sum in s1 beside fill and sum in s2) → memcpy back → host function, with everything captured. */
static void captured(const struct gpu *gpu)
{
    uint32_t *host;
    uint64_t *totals;
    int one = 1;
    CUdeviceptr in, other, out;
    CUevent fork, join;
    CALL(cuMemAllocHost, (void **)&host, 4 * WORDS);
    CALL(cuMemAllocHost, (void **)&totals, 16);
    CALL(cuMemAlloc, &in, 4 * WORDS);
    CALL(cuMemAlloc, &other, 4 * WORDS);
    CALL(cuMemAlloc, &out, 16);
    CALL(cuEventCreate, &fork, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &join, CU_EVENT_DISABLE_TIMING);
    CALL(cuMemsetD8, in, 0, 4 * WORDS);
    CALL(cuMemsetD8, other, 0, 4 * WORDS);
    CALL(cuMemsetD8, out, 0, 16);
    for (uint32_t i = 0; i < WORDS; i++)
        host[i] = 1;
    totals[0] = totals[1] = 77;

    CHECK_EQUAL(status_of(s1), CU_STREAM_CAPTURE_STATUS_NONE);
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQUAL(status_of(s1), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_EQUAL(status_of(s2), CU_STREAM_CAPTURE_STATUS_NONE);
    CALL(cuMemcpyHtoDAsync, in, host, 4 * WORDS, s1);
    CALL(cuEventRecord, fork, s1);
    CALL(cuStreamWaitEvent, s2, fork, 0);
    CHECK_EQUAL(status_of(s2), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    sum(gpu, out, in, WORDS, s1);
    CALL(cuMemsetD32Async, other, 2, WORDS / 2, s2);
    fill(gpu, other + 4 * (WORDS / 2), WORDS - WORDS / 2, 2, s2);
    sum(gpu, out + 8, other, WORDS, s2);
    CALL(cuEventRecord, join, s2);
    CALL(cuStreamWaitEvent, s1, join, 0);
    CALL(cuMemcpyDtoHAsync, totals, out, 16, s1);
    CALL(cuLaunchHostFunc, s1, count, &one);

    CUstreamCaptureStatus status, status3;
    uint64_t id = 0, id2 = 0, id3 = 0;
    CUgraph within = NULL, graph = NULL;
    const CUgraphNode *dependencies = NULL;
    const CUgraphEdgeData *edges;
    size_t number = 0;
    CALL(cuStreamGetCaptureInfo, s1, &status, &id, &within, &dependencies, &number);
    CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(id != 0 && within && number == 1 && dependencies);
    CUgraphNodeType type;
    CALL(cuGraphNodeGetType, dependencies[0], &type);
    CHECK_EQUAL(type, CU_GRAPH_NODE_TYPE_HOST);
    CALL(cuStreamGetCaptureInfo, s2, &status, &id2, NULL, NULL, NULL);
    CHECK_EQUAL(id2, id);
    if (TRY(cuStreamGetCaptureInfo_v3, s1, &status3, &id3, NULL, &dependencies, &edges, &number) == CUDA_SUCCESS) {
        CHECK_EQUAL(id3, id);
        CHECK_EQUAL(number, 1);
    } else {
        puts("  not supported: cuStreamGetCaptureInfo_v3");
    }
    CALL(cuStreamEndCapture, s1, &graph);
    CHECK(graph);
    CHECK_EQUAL(status_of(s1), CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_EQUAL(status_of(s2), CU_STREAM_CAPTURE_STATUS_NONE);
    CALL(cuStreamGetCaptureInfo, s1, &status, &id2, NULL, NULL, NULL);
    CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
    types(graph, (unsigned[]){ 3, 2, 1, 1, 0, 0 });

    /* Nothing has run yet. */
    CALL(cuStreamSynchronize, s1);
    CHECK_EQUAL(calls, 0);
    CHECK_EQUAL(totals[0], 77);
    CHECK_EQUAL(sum_of(gpu, other, WORDS), 0);

    CUgraphExec exec;
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    /* The graph may be destroyed: the instance is a copy. */
    CALL(cuGraphDestroy, graph);
    CALL(cuGraphUpload, exec, s1);
    for (int i = 0; i < LAUNCHES; i++)
        CALL(cuGraphLaunch, exec, i % 2 ? s1 : s2);
    CALL(cuStreamSynchronize, s1);
    CALL(cuStreamSynchronize, s2);
    CHECK_EQUAL(calls, LAUNCHES);
    CHECK_EQUAL(totals[0], (uint64_t)LAUNCHES * WORDS);
    CHECK_EQUAL(totals[1], (uint64_t)LAUNCHES * 2 * WORDS);
    /* A launch reads the host's memory at that time. */
    for (uint32_t i = 0; i < WORDS; i++)
        host[i] = 4;
    CALL(cuGraphLaunch, exec, s2);
    CALL(cuStreamSynchronize, s2);
    CHECK_EQUAL(calls, LAUNCHES + 1);
    CHECK_EQUAL(totals[0], (uint64_t)(LAUNCHES + 4) * WORDS);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuEventDestroy, fork);
    CALL(cuEventDestroy, join);
    CALL(cuMemFree, in);
    CALL(cuMemFree, other);
    CALL(cuMemFree, out);
    CALL(cuMemFreeHost, host);
    CALL(cuMemFreeHost, totals);
}

static void explicit(const struct gpu *gpu)
{
    CUdeviceptr in, out;
    uint64_t words = WORDS, *total;
    uint32_t value = 6;
    int ten = 10;
    CALL(cuMemAllocHost, (void **)&total, 8);
    CALL(cuMemAlloc, &in, 4 * WORDS);
    CALL(cuMemAlloc, &out, 16);
    CALL(cuMemsetD8, out, 0xff, 16);
    CALL(cuCtxSynchronize);
    calls = 0;

    CUgraph graph;
    CUgraphNode clear, begin, write, add, copy, host;
    CUDA_MEMSET_NODE_PARAMS zero = { .dst = out, .value = 0, .elementSize = 4, .width = 4, .height = 1 };
    CUDA_KERNEL_NODE_PARAMS writing = { .func = gpu->fill, .gridDimX = blocks_for(WORDS), .gridDimY = 1, .gridDimZ = 1,
        .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1, .kernelParams = (void *[]){ &in, &words, &value } };
    CUDA_KERNEL_NODE_PARAMS adding = writing;
    adding.func = gpu->sum;
    adding.kernelParams = (void *[]){ &out, &in, &words };
    CUDA_MEMCPY3D copying = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = out, .srcPitch = 8, .srcHeight = 1,
        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = total, .dstPitch = 8, .dstHeight = 1, .WidthInBytes = 8, .Height = 1, .Depth = 1 };
    CUDA_HOST_NODE_PARAMS calling = { count, &ten };
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddEmptyNode, &begin, graph, NULL, 0);
    CALL(cuGraphAddMemsetNode, &clear, graph, &begin, 1, &zero, gpu->context);
    CALL(cuGraphAddKernelNode, &write, graph, &begin, 1, &writing);
    CALL(cuGraphAddKernelNode, &add, graph, (CUgraphNode[]){ clear, write }, 2, &adding);
    CALL(cuGraphAddMemcpyNode, &copy, graph, &add, 1, &copying, gpu->context);
    CALL(cuGraphAddHostNode, &host, graph, &copy, 1, &calling);
    types(graph, (unsigned[]){ 2, 1, 1, 1, 0, 1 });

    size_t number = 8;
    CUgraphNode some[8], from[8], to[8];
    CALL(cuGraphGetRootNodes, graph, some, &number);
    CHECK(number == 1 && some[0] == begin);
    number = 8;
    CALL(cuGraphNodeGetDependencies, add, some, &number);
    CHECK(number == 2 && ((some[0] == clear && some[1] == write) || (some[0] == write && some[1] == clear)));
    number = 8;
    CALL(cuGraphGetEdges, graph, from, to, &number);
    CHECK_EQUAL(number, 6);

    CUDA_KERNEL_NODE_PARAMS got;
    memset(&got, 0, sizeof got);
    CALL(cuGraphKernelNodeGetParams, write, &got);
    CHECK(got.func == gpu->fill);
    CHECK_EQUAL(got.gridDimX, writing.gridDimX);
    CHECK_EQUAL(got.blockDimX, 256);
    CHECK(got.kernelParams && got.kernelParams != writing.kernelParams);
    CHECK_EQUAL(*(CUdeviceptr *)got.kernelParams[0], in);
    CHECK_EQUAL(*(uint64_t *)got.kernelParams[1], WORDS);
    CHECK_EQUAL(*(uint32_t *)got.kernelParams[2], 6);
    EXPECT_ERROR(cuGraphKernelNodeGetParams, host, &got);

    /* The values were copied when the node was added. */
    value = 1000;
    CUgraphExec exec;
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    for (int i = 0; i < 3; i++)
        CALL(cuGraphLaunch, exec, s1);
    CALL(cuStreamSynchronize, s1);
    CHECK_EQUAL(*total, 6 * (uint64_t)WORDS);
    CHECK_EQUAL(calls, 30);
    value = 7;
    writing.gridDimX = 5;
    CALL(cuGraphExecKernelNodeSetParams, exec, write, &writing);
    value = 2000;
    CALL(cuGraphLaunch, exec, s1);
    CALL(cuStreamSynchronize, s1);
    CHECK_EQUAL(*total, 7 * (uint64_t)WORDS);
    /* The graph's own node is unchanged. */
    CALL(cuGraphKernelNodeGetParams, write, &got);
    CHECK_EQUAL(*(uint32_t *)got.kernelParams[2], 6);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
    CALL(cuMemFree, in);
    CALL(cuMemFree, out);
    CALL(cuMemFreeHost, total);
}

static void forbidden(const struct gpu *gpu)
{
    CUdeviceptr p, word;
    CUevent event;
    CUgraph graph;
    CUstream blocking;
    CALL(cuMemAlloc, &word, 4096);
    CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    CALL(cuStreamCreate, &blocking, CU_STREAM_DEFAULT);

    /* Waiting for a capturing stream invalidates the capture. */
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fill(gpu, word, 1, 1, s1);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize, s1);
    CHECK_EQUAL(status_of(s1), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    uint32_t value = 0;
    uint64_t words = 1;
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuLaunchKernel, gpu->fill, 1, 1, 1, 32, 1, 1, 0, s1,
           (void *[]){ &word, &words, &value }, NULL);
    end_broken(s1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery, s1);
    end_broken(s1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fill(gpu, word, 1, 1, s1);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize);
    end_broken(s1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* An allocation may synchronise: not in the global mode, but in the relaxed one. */
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc, &p, 4096);
    end_broken(s1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_RELAXED);
    CALL(cuMemAlloc, &p, 4096);
    CALL(cuStreamEndCapture, s1, &graph);
    CALL(cuGraphDestroy, graph);
    CALL(cuMemFree, p);
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CALL(cuThreadExchangeStreamCaptureMode, &mode);
    CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(cuMemAlloc, &p, 4096);
    CALL(cuThreadExchangeStreamCaptureMode, &mode);
    CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    CALL(cuStreamEndCapture, s1, &graph);
    CALL(cuGraphDestroy, graph);
    CALL(cuMemFree, p);

    /* The legacy stream would wait for a capturing blocking stream. */
    CALL(cuStreamBeginCapture, blocking, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8Async, word, 0, 4, CU_STREAM_LEGACY);
    end_broken(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    /* A branch that is not joined, and a capture ended on another stream than its first. */
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(cuEventRecord, event, s1);
    CALL(cuStreamWaitEvent, s2, event, 0);
    fill(gpu, word, 1, 1, s2);
    end_broken(s1, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(cuEventRecord, event, s1);
    CALL(cuStreamWaitEvent, s2, event, 0);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture, s2, &graph);
    CUresult result = TRY(cuStreamEndCapture, s1, &graph);
    printf("  cuStreamEndCapture after one of another stream: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS)
        CALL(cuGraphDestroy, graph);

    /* An event recorded in a capture cannot be waited for. */
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_RELAXED);
    CALL(cuEventRecord, event, s1);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize, event);
    result = TRY(cuStreamEndCapture, s1, &graph);
    printf("  cuStreamEndCapture after a wait for a captured event: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS)
        CALL(cuGraphDestroy, graph);

    EXPECT_ERROR(cuStreamEndCapture, s1, &graph);
    EXPECT_ERROR(cuStreamBeginCapture, CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CALL(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_ERROR(cuStreamBeginCapture, s1, CU_STREAM_CAPTURE_MODE_GLOBAL);
    result = TRY(cuStreamEndCapture, s1, &graph);
    printf("  cuStreamEndCapture after a second begin: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS)
        CALL(cuGraphDestroy, graph);

    /* None of that work ran, and the streams work as before. */
    CALL(cuMemsetD8, word, 0, 4096);
    CALL(cuCtxSynchronize);
    fill(gpu, word, 4, 3, s1);
    CALL(cuStreamSynchronize, s1);
    CHECK_EQUAL(sum_of(gpu, word, 1024), 12);
    CALL(cuEventDestroy, event);
    CALL(cuStreamDestroy, blocking);
    CALL(cuMemFree, word);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CALL(cuStreamCreate, &s1, CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreate, &s2, CU_STREAM_NON_BLOCKING);
    captured(&gpu);
    explicit(&gpu);
    forbidden(&gpu);
    CALL(cuStreamDestroy, s1);
    CALL(cuStreamDestroy, s2);
    puts("ok");
    return 0;
}
