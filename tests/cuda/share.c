/* Processes that share a device, each with a queue of kernels of known length; also a generator of load.  The processes' shares
 * are the caller's choice (MPS and its environment variables, time slices, a hook): this program reads none of that.
 *
 * usage: share PTX [--processes P] [--kernels N] [--us D] [--blocks B] [--streams S] [--sync-every M] [--bytes-mib A]
 *                  [--law L] [--parameter MILLIONTHS] [--interference MILLIONTHS]
 *   P  processes, started together (default 1: this one)
 *   N  kernels of each process (default 100), dealt out to its streams in turn
 *   D  microseconds that a kernel lasts with all the SMs it has blocks for (default 1000)
 *   B  blocks of 1024 threads (default 0: as many as the device has SMs)
 *   S  streams (default 1)
 *   M  kernels between two waits for all streams (default 0: one wait at the end)
 *   A  MiB of device memory held meanwhile (default 0)
 *
 * Every process prints one line of JSON; times are nanoseconds, of CLOCK_MONOTONIC where absolute. */
#include "driver.h"

enum { STREAMS = 64 };

static int work(int argc, char **argv, long index, bool in_step)
{
    int64_t kernels = option(argc, argv, "--kernels", 100), us = option(argc, argv, "--us", 1000);
    long streams = option(argc, argv, "--streams", 1), every = option(argc, argv, "--sync-every", 0);
    long blocks = option(argc, argv, "--blocks", 0), mib = option(argc, argv, "--bytes-mib", 0);
    uint32_t law = (uint32_t)option(argc, argv, "--law", 0), parameter = (uint32_t)option(argc, argv, "--parameter", 0);
    uint32_t interference = (uint32_t)option(argc, argv, "--interference", 0);
    CHECK(streams >= 1 && streams <= STREAMS && kernels >= 1 && us >= 0 && blocks >= 0 && every >= 0);
    struct gpu gpu = gpu_open(argv[1]);
    unsigned grid = blocks ? (unsigned)blocks : gpu.sms;
    uint64_t ns = (uint64_t)us * 1000;
    void *parameters[] = { &ns, &law, &parameter, &interference };
    CUstream stream[STREAMS];
    CUevent begin, end[STREAMS];
    CUdeviceptr held = 0;
    if (mib)
        CALL(cuMemAlloc, &held, (size_t)mib << 20);
    CALL(cuEventCreate, &begin, CU_EVENT_DEFAULT);
    for (long i = 0; i < streams; i++) {
        CALL(cuStreamCreate, &stream[i], CU_STREAM_NON_BLOCKING);
        CALL(cuEventCreate, &end[i], CU_EVENT_DEFAULT);
    }
    warm_up(&gpu);
    if (in_step) {
        char byte;
        write_all(CHILD_SOCKET, "r", 1);
        CHECK(read_all(CHILD_SOCKET, &byte, 1));
    }

    int64_t start = now_ns();
    CALL(cuEventRecord, begin, stream[0]);
    for (long i = 1; i < streams; i++)
        CALL(cuStreamWaitEvent, stream[i], begin, 0);
    for (int64_t i = 0; i < kernels; i++) {
        launch(gpu.spin, grid, 1024, stream[i % streams], parameters);
        if (every && (i + 1) % every == 0)
            CALL(cuCtxSynchronize);
    }
    for (long i = 0; i < streams; i++)
        CALL(cuEventRecord, end[i], stream[i]);
    CALL(cuCtxSynchronize);
    int64_t stop = now_ns(), elapsed = 0;
    for (long i = 0; i < streams; i++) {
        int64_t one = elapsed_ns(begin, end[i]);
        if (one > elapsed)
            elapsed = one;
    }
    printf("{\"process\": %ld, \"pid\": %d, \"sms\": %u, \"blocks\": %u, \"kernels\": %" PRId64 ", \"us\": %" PRId64 ", \"streams\": %ld, "
           "\"wall_start_ns\": %" PRId64 ", \"wall_end_ns\": %" PRId64 ", \"wall_ns\": %" PRId64 ", \"event_ns\": %" PRId64 "}\n",
           index, (int)getpid(), gpu.sms, grid, kernels, us, streams, start, stop, stop - start, elapsed);
    fflush(stdout);
    if (held)
        CALL(cuMemFree, held);
    return 0;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--processes P] [--kernels N] [--us D] [--blocks B] [--streams S] [--sync-every M] ...");
    long index = option(argc, argv, "--index", -1), processes = option(argc, argv, "--processes", 1);
    if (index >= 0)
        return work(argc, argv, index, true);
    if (processes == 1)
        return work(argc, argv, 0, false);
    CHECK(processes > 1 && processes <= 64);
    struct child children[64];
    bool good = true;
    char byte, number[32], **arguments = calloc((size_t)argc + 3, sizeof *arguments);
    CHECK(arguments);
    memcpy(arguments, argv, (size_t)argc * sizeof *arguments);
    arguments[argc] = "--index";
    arguments[argc + 1] = number;
    for (long i = 0; i < processes; i++) {
        snprintf(number, sizeof number, "%ld", i);
        children[i] = spawn_self(arguments);
    }
    for (long i = 0; i < processes; i++)
        good &= read_all(children[i].socket, &byte, 1);
    if (good)
        for (long i = 0; i < processes; i++)
            write_all(children[i].socket, "g", 1);
    for (long i = 0; i < processes; i++)
        good &= reap(children[i]) == 0;
    free(arguments);
    return good ? 0 : 1;
}
