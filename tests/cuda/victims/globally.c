/* One thread captures in a mode that forbids other threads operations which could affect the capture, while another launches
 * and allocates: the results of both, and of the capture, are printed.
 *
 * usage: globally PTX */
#include "../driver.h"

static struct gpu gpu;
static pthread_barrier_t barrier;

struct other {
    bool allocates, is_relaxed;
    CUresult launched, allocated, freed, asked;
};

static void *work(void *argument)
{
    struct other *other = argument;
    CUstream stream;
    CUdeviceptr at = 0;
    CALL(cuCtxSetCurrent, gpu.context);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    if (other->is_relaxed) {
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
    }
    uint64_t ns = 1000;
    uint32_t zero = 0;
    void *parameters[] = { &ns, &zero, &zero, &zero };
    for (int i = 0; i < 200; i++) {
        other->launched = TRY(cuLaunchKernel, gpu.spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
        if (other->launched != CUDA_SUCCESS)
            break;
    }
    if (other->allocates) {
        other->allocated = TRY(cuMemAlloc, &at, 5000);
        if (other->allocated == CUDA_SUCCESS)
            other->freed = TRY(cuMemFree, at);
        size_t free, total;
        other->asked = TRY(cuMemGetInfo, &free, &total);
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    if (other->is_relaxed) {
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
    }
    CALL(cuStreamSynchronize, stream);
    CALL(cuStreamDestroy, stream);
    return NULL;
}

static void round_of(CUstreamCaptureMode mode, bool allocates, bool is_relaxed)
{
    struct other other = { .allocates = allocates, .is_relaxed = is_relaxed };
    pthread_t thread;
    CUstream stream;
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 4096);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CHECK(pthread_create(&thread, NULL, work, &other) == 0);
    pthread_barrier_wait(&barrier);
    CALL(cuStreamBeginCapture, stream, mode);
    fill(&gpu, at, 1024, 2, stream);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    uint64_t words = 1024;
    uint32_t value = 3;
    CUresult more = TRY(cuLaunchKernel, gpu.fill, 4, 1, 1, 256, 1, 1, 0, stream, ((void *[]){ &at, &words, &value }), NULL);
    CUgraph graph = NULL;
    CUresult ended = TRY(cuStreamEndCapture, stream, &graph);
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("mode %d, %s%s: launched %d, allocated %d, freed %d, asked %d; capture: launched %d, ended %d\n", (int)mode,
           allocates ? "allocates" : "launches", is_relaxed ? ", relaxed" : "", other.launched, other.allocated, other.freed, other.asked,
           more, ended);
    if (ended == CUDA_SUCCESS) {
        CUgraphExec exec;
        CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
        CALL(cuGraphLaunch, exec, stream);
        CALL(cuStreamSynchronize, stream);
        CHECK_EQUAL(sum_of(&gpu, at, 1024), 3 * 1024);
        CALL(cuGraphExecDestroy, exec);
        CALL(cuGraphDestroy, graph);
    }
    CALL(cuStreamDestroy, stream);
    /* Afterwards everything works as before. */
    fill(&gpu, at, 1024, 4, NULL);
    CHECK_EQUAL(sum_of(&gpu, at, 1024), 4 * 1024);
    CALL(cuMemFree, at);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int mode = 0; mode < 3; mode++)
        for (int allocates = 0; allocates < 2; allocates++)
            for (int is_relaxed = 0; is_relaxed < 2; is_relaxed++)
                round_of((CUstreamCaptureMode)mode, allocates, is_relaxed);
    puts("ok");
    return 0;
}
