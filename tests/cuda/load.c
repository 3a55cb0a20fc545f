/* A program that keeps a GPU busy for a given time, to measure shares of time.
 *
 * usage: load PTX [--ns D] [--batch N] [--pause-us P] [--graph N] [--seconds S] [--idle-from S --idle-for S] [--once D]
 * Launches kernels of D ns (default 100000) in one stream, N of them (default 64) before it waits for the stream; then pauses
 * for P µs (default 0).  With --graph, each launch is a graph of N such kernels in a row.  Ends after S seconds (default 10).
 * --idle-from and --idle-for define a pause.  --once launches one kernel of D ns first.
 * Prints one line of JSON: launches, waits, and the longest and the mean time in µs from the first launch of a batch until the
 * wait returned; then `ok`. */
#include "driver.h"

static void sleep_us(long us)
{
    struct timespec pause = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv,
             " [--ns D] [--batch N] [--pause-us P] [--graph N] [--seconds S] [--idle-from S --idle-for S] [--once D]");
    uint64_t ns = (uint64_t)option(argc, argv, "--ns", 100000), once = (uint64_t)option(argc, argv, "--once", 0);
    long batch = option(argc, argv, "--batch", 64), pause_us = option(argc, argv, "--pause-us", 0);
    long nodes = option(argc, argv, "--graph", 0), seconds = option(argc, argv, "--seconds", 10);
    long idle_from = option(argc, argv, "--idle-from", 0), idle_for = option(argc, argv, "--idle-for", 0);
    struct gpu gpu = gpu_open(argv[1]);
    uint32_t zero = 0;
    void *parameters[] = { &ns, &zero, &zero, &zero };
    void *first[] = { &once, &zero, &zero, &zero };
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CUgraphExec exec = NULL;
    if (nodes > 0) {
        CUgraph graph;
        CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        for (long node = 0; node < nodes; node++)
            launch(gpu.spin, 1, 32, stream, parameters);
        CALL(cuStreamEndCapture, stream, &graph);
        CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    }
    int64_t start = now_ns(), elapsed = 0, longest = 0, sum = 0;
    long launches = 0, waits = 0;
    if (once > 0) {
        launch(gpu.spin, 1, 32, stream, first);
        launches++;
    }
    while (elapsed < seconds * 1000000000) {
        if (idle_for > 0 && elapsed >= idle_from * 1000000000 && elapsed < (idle_from + idle_for) * 1000000000) {
            sleep_us(1000);
            elapsed = now_ns() - start;
            continue;
        }
        int64_t begin = now_ns();
        for (long number = 0; number < batch; number++) {
            if (exec)
                CALL(cuGraphLaunch, exec, stream);
            else
                launch(gpu.spin, 1, 32, stream, parameters);
            launches++;
        }
        CALL(cuStreamSynchronize, stream);
        int64_t took = now_ns() - begin;
        sum += took;
        waits++;
        if (took > longest)
            longest = took;
        if (pause_us > 0)
            sleep_us(pause_us);
        elapsed = now_ns() - start;
    }
    printf("{\"launches\": %ld, \"waits\": %ld, \"longest_us\": %" PRId64 ", \"mean_us\": %" PRId64 "}\n", launches, waits,
           longest / 1000, waits ? sum / waits / 1000 : 0);
    CALL(cuStreamDestroy, stream);
    puts("ok");
    return 0;
}
