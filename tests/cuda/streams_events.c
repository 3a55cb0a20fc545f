/* Streams and events: their waits and concurrency, and the time between two events.
 *
 * usage: streams_events PTX [TOLERANCE_NS]: allowed error of the events around a kernel of 20 ms (default 1000000). */
#include "driver.h"
#include <semaphore.h>

#define MS UINT64_C(1000000)

static CUevent event_new(unsigned flags)
{
    CUevent event;
    CALL(cuEventCreate, &event, flags);
    return event;
}

static CUstream stream_new(unsigned flags)
{
    CUstream stream;
    CALL(cuStreamCreate, &stream, flags);
    return stream;
}

static CUevent recorded(CUstream stream)
{
    CUevent event = event_new(CU_EVENT_DEFAULT);
    CALL(cuEventRecord, event, stream);
    return event;
}

/* Waits for the event, then destroys it. */
static void await(CUevent event)
{
    CALL(cuEventSynchronize, event);
    CALL(cuEventQuery, event);
    CALL(cuEventDestroy, event);
}

static void timing(const struct gpu *gpu, int64_t tolerance)
{
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent begin = event_new(CU_EVENT_DEFAULT), end = event_new(CU_EVENT_DEFAULT), untimed = event_new(CU_EVENT_DISABLE_TIMING);
    float ms;
    CALL(cuEventQuery, begin);
    CALL(cuEventSynchronize, begin);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime, &ms, begin, end);

    int64_t wall = now_ns();
    CALL(cuEventRecord, begin, stream);
    spin(gpu, 20 * MS, gpu->sms, stream);
    CALL(cuEventRecord, end, stream);
    int64_t queued = now_ns() - wall;
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, end);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime, &ms, begin, end);
    CALL(cuEventSynchronize, end);
    wall = now_ns() - wall;
    CALL(cuEventQuery, end);
    CALL(cuStreamSynchronize, stream);
    CALL(cuStreamQuery, stream);
    int64_t elapsed = elapsed_ns(begin, end);
    printf("  spin of 20000000 ns: %" PRId64 " ns between the events, %" PRId64 " ns here, queued in %" PRId64 " ns\n", elapsed, wall, queued);
    CHECK(elapsed >= 20000000 - tolerance && elapsed <= 20000000 + tolerance);
    CHECK(wall >= 20000000 - tolerance);
    /* That it was not ready above shows that queueing did not wait; how long it took depends on the machine. */
    CALL(cuEventElapsedTime, &ms, begin, begin);
    CHECK(ms == 0);

    /* Ten kernels in one stream take ten times as long: they follow one another. */
    CALL(cuEventRecord, begin, stream);
    for (int i = 0; i < 10; i++)
        spin(gpu, 2 * MS, 1, stream);
    CALL(cuEventRecord, end, stream);
    CALL(cuEventSynchronize, end);
    elapsed = elapsed_ns(begin, end);
    printf("  ten spins of 2000000 ns on one SM, one stream: %" PRId64 " ns\n", elapsed);
    CHECK(elapsed >= 20000000 - tolerance);

    CALL(cuEventRecord, untimed, stream);
    CALL(cuEventSynchronize, untimed);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime, &ms, begin, untimed);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate, &untimed, CU_EVENT_INTERPROCESS);
    CALL(cuEventDestroy, begin);
    CALL(cuEventDestroy, end);
    CALL(cuEventDestroy, untimed);
    CALL(cuStreamDestroy, stream);
}

/* Kernels on one SM each, in several streams, run concurrently. */
static void beside(const struct gpu *gpu)
{
    enum { STREAMS = 4 };
    CUstream streams[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        streams[i] = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent begin = recorded(streams[0]);
    for (int i = 1; i < STREAMS; i++)
        CALL(cuStreamWaitEvent, streams[i], begin, 0);
    for (int i = 0; i < STREAMS; i++)
        spin(gpu, 50 * MS, 1, streams[i]);
    for (int i = 1; i < STREAMS; i++) {
        CUevent done = recorded(streams[i]);
        CALL(cuStreamWaitEvent, streams[0], done, 0);
        CALL(cuEventDestroy, done);
    }
    CUevent end = recorded(streams[0]);
    CALL(cuEventSynchronize, end);
    int64_t elapsed = elapsed_ns(begin, end);
    printf("  four spins of 50000000 ns on one SM each, four streams: %" PRId64 " ns\n", elapsed);
    CHECK(elapsed >= 49000000);
    if (gpu->sms >= STREAMS)
        CHECK(elapsed < 100000000);
    await(begin);
    await(end);
    for (int i = 0; i < STREAMS; i++)
        CALL(cuStreamDestroy, streams[i]);
}

/* The legacy default stream waits for blocking streams and they for it; a non-blocking stream does neither. */
static void legacy(const struct gpu *gpu, CUdeviceptr word)
{
    CUstream blocking = stream_new(CU_STREAM_DEFAULT), apart = stream_new(CU_STREAM_NON_BLOCKING);
    unsigned flags;
    CALL(cuStreamGetFlags, blocking, &flags);
    CHECK_EQUAL(flags, CU_STREAM_DEFAULT);
    CALL(cuStreamGetFlags, apart, &flags);
    CHECK_EQUAL(flags, CU_STREAM_NON_BLOCKING);
    CUcontext context;
    CALL(cuStreamGetCtx, apart, &context);
    CHECK(context == gpu->context);

    spin(gpu, 200 * MS, 1, blocking);
    CUevent spun = recorded(blocking);
    fill(gpu, word, 1, 1, apart);
    CALL(cuStreamSynchronize, apart);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, spun);
    fill(gpu, word, 1, 2, CU_STREAM_LEGACY);
    CUevent filled = recorded(CU_STREAM_LEGACY);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, filled);
    CALL(cuEventSynchronize, filled);
    CALL(cuEventQuery, spun);
    await(spun);
    await(filled);

    spin(gpu, 200 * MS, 1, CU_STREAM_LEGACY);
    spun = recorded(CU_STREAM_LEGACY);
    fill(gpu, word, 1, 3, apart);
    CALL(cuStreamSynchronize, apart);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, spun);
    fill(gpu, word, 1, 4, blocking);
    CALL(cuStreamSynchronize, blocking);
    CALL(cuEventQuery, spun);
    await(spun);
    uint32_t value = 0;
    CALL(cuMemcpyDtoH, &value, word, 4);
    CHECK_EQUAL(value, 4);

    /* Stream 0 and a copy without a stream are one or the other, depending on the way of loading. */
    spin(gpu, 200 * MS, 1, blocking);
    spun = recorded(blocking);
    fill(gpu, word, 1, 5, NULL);
    CUevent zero = recorded(NULL);
    CALL(cuEventSynchronize, zero);
    CHECK_EQUAL(TRY(cuEventQuery, spun), cu_per_thread ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    await(spun);
    await(zero);
    spin(gpu, 200 * MS, 1, blocking);
    spun = recorded(blocking);
    CALL(cuMemcpyDtoH, &value, word, 4);
    CHECK_EQUAL(value, 5);
    CHECK_EQUAL(TRY(cuEventQuery, spun), cu_per_thread ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    await(spun);
    spin(gpu, 200 * MS, 1, apart);
    spun = recorded(apart);
    CALL(cuMemcpyDtoH, &value, word, 4);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, spun);
    await(spun);
    CALL(cuStreamDestroy, blocking);
    CALL(cuStreamDestroy, apart);
}

struct other {
    const struct gpu *gpu;
    CUevent held;
    /* The other thread's stream has begun; it may continue. */
    sem_t begun, ends;
};

static void hold(void *data)
{
    struct other *other = data;
    CHECK(sem_post(&other->begun) == 0);
    /* A stream waiting for this one would wait forever. */
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 60;
    CHECK(sem_timedwait(&other->ends, &until) == 0);
}

static void *other_thread(void *data)
{
    struct other *other = data;
    CALL(cuCtxSetCurrent, other->gpu->context);
    other->held = event_new(CU_EVENT_DEFAULT);
    CALL(cuLaunchHostFunc, CU_STREAM_PER_THREAD, hold, other);
    CALL(cuEventRecord, other->held, CU_STREAM_PER_THREAD);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    return NULL;
}

/* Every thread has a default stream of its own; it waits for no other stream but the legacy one, which waits for it. */
static void per_thread(const struct gpu *gpu, CUdeviceptr word)
{
    CUstream blocking = stream_new(CU_STREAM_DEFAULT);
    spin(gpu, 200 * MS, 1, blocking);
    CUevent spun = recorded(blocking);
    fill(gpu, word, 1, 6, CU_STREAM_PER_THREAD);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, spun);
    await(spun);

    spin(gpu, 100 * MS, 1, CU_STREAM_PER_THREAD);
    spun = recorded(CU_STREAM_PER_THREAD);
    fill(gpu, word, 1, 7, CU_STREAM_LEGACY);
    CUevent filled = recorded(CU_STREAM_LEGACY);
    CALL(cuEventSynchronize, filled);
    CALL(cuEventQuery, spun);
    await(spun);
    await(filled);

    struct other other = { .gpu = gpu };
    CHECK(sem_init(&other.begun, 0, 0) == 0 && sem_init(&other.ends, 0, 0) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, &other) == 0);
    CHECK(sem_wait(&other.begun) == 0);
    fill(gpu, word, 1, 8, CU_STREAM_PER_THREAD);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    CALL(cuStreamQuery, CU_STREAM_PER_THREAD);
    CHECK(sem_post(&other.ends) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CALL(cuEventQuery, other.held);
    CALL(cuEventDestroy, other.held);
    CHECK(sem_destroy(&other.begun) == 0 && sem_destroy(&other.ends) == 0);
    CALL(cuStreamDestroy, blocking);
}

/* A stream waits for the record that an event had when the wait was queued. */
static void waits(const struct gpu *gpu, CUdeviceptr word)
{
    CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING), c = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = event_new(CU_EVENT_DISABLE_TIMING);
    uint32_t value = 0;
    CALL(cuStreamWaitEvent, a, event, 0);
    fill(gpu, word, 1, 9, a);
    CALL(cuStreamSynchronize, a);

    spin(gpu, 50 * MS, 1, a);
    fill(gpu, word, 1, 10, a);
    CALL(cuEventRecord, event, a);
    CALL(cuStreamWaitEvent, b, event, 0);
    CALL(cuMemcpyDtoDAsync, word + 4, word, 4, b);
    spin(gpu, 500 * MS, 1, c);
    CALL(cuEventRecord, event, c);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery, b);
    CALL(cuStreamSynchronize, b);
    CALL(cuStreamQuery, a);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, event);
    CALL(cuMemcpyDtoHAsync, &value, word + 4, 4, b);
    CALL(cuStreamSynchronize, b);
    CHECK_EQUAL(value, 10);
    /* An event and a stream may be destroyed before queued work has run. */
    CALL(cuEventDestroy, event);
    fill(gpu, word, 1, 11, c);
    CALL(cuStreamDestroy, c);
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, &value, word, 4);
    CHECK_EQUAL(value, 11);
    CALL(cuStreamDestroy, a);
    CALL(cuStreamDestroy, b);
}

static void priorities(const struct gpu *gpu)
{
    int least, greatest, priority;
    CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
    printf("  priorities from %d, the least, to %d\n", least, greatest);
    CHECK(greatest <= least && least == 0);
    CUstream low, high, beyond;
    CALL(cuStreamCreateWithPriority, &low, CU_STREAM_NON_BLOCKING, least);
    CALL(cuStreamCreateWithPriority, &high, CU_STREAM_NON_BLOCKING, greatest);
    CALL(cuStreamCreateWithPriority, &beyond, CU_STREAM_NON_BLOCKING, greatest - 100);
    CALL(cuStreamGetPriority, low, &priority);
    CHECK(priority == least);
    CALL(cuStreamGetPriority, high, &priority);
    CHECK(priority == greatest);
    CALL(cuStreamGetPriority, beyond, &priority);
    CHECK(priority == greatest);

    /* A kernel of the high stream does not wait for the whole queue of the low one. */
    for (int i = 0; i < 60; i++)
        spin(gpu, 5 * MS, gpu->sms, low);
    CUevent last = recorded(low);
    spin(gpu, MS, gpu->sms, high);
    CALL(cuStreamSynchronize, high);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, last);
    await(last);
    CALL(cuStreamDestroy, low);
    CALL(cuStreamDestroy, high);
    CALL(cuStreamDestroy, beyond);
}

static int order[64];
static int orders;

static void note(void *data)
{
    order[orders++] = (int)(intptr_t)data;
}

static void note_back(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    CHECK(status == CUDA_SUCCESS);
    note(data);
}

static void note_slowly(void *data)
{
    sleep_ms(100);
    *(volatile uint32_t *)data = 77;
}

static void host_functions(const struct gpu *gpu, CUdeviceptr word)
{
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 30; i++) {
        spin(gpu, 100000, 1, stream);
        if (i % 3 == 1)
            CALL(cuStreamAddCallback, stream, note_back, (void *)(intptr_t)i, 0);
        else
            CALL(cuLaunchHostFunc, stream, note, (void *)(intptr_t)i);
    }
    CALL(cuStreamSynchronize, stream);
    CHECK_EQUAL(orders, 30);
    for (int i = 0; i < 30; i++)
        CHECK_EQUAL(order[i], i);

    /* Work after a host function waits for it: the copy reads the function's writes. */
    uint32_t *host;
    uint32_t value = 0;
    CALL(cuMemAllocHost, (void **)&host, 4096);
    *host = 1;
    CALL(cuLaunchHostFunc, stream, note_slowly, host);
    CALL(cuMemcpyHtoDAsync, word, host, 4, stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH, &value, word, 4);
    CHECK_EQUAL(value, 77);
    CALL(cuMemFreeHost, host);
    EXPECT_ERROR(cuLaunchHostFunc, stream, NULL, NULL);
    CALL(cuStreamDestroy, stream);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [TOLERANCE_NS]");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CUdeviceptr word;
    CALL(cuMemAlloc, &word, 4096);
    timing(&gpu, argc > 2 ? strtoll(argv[2], NULL, 10) : 1000000);
    beside(&gpu);
    legacy(&gpu, word);
    per_thread(&gpu, word);
    waits(&gpu, word);
    priorities(&gpu);
    host_functions(&gpu, word);
    CALL(cuMemFree, word);
    puts("ok");
    return 0;
}
