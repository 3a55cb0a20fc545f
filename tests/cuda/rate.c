/* A load of kernels at a rate, to see what the device's own software costs under it.
 *
 * usage: rate PTX [--rate R] [--seconds S] [--ns D]
 * R launches a second (default 20000) for S seconds (default 2), of kernels of D ns (default 20000) in one block, in bursts every
 * half millisecond, or every 20 ms below a rate of 1000.  Prints one line of JSON, and `ok`.
 * Of softgpu: look at the CPU time of `softgpu-server` before and after, under one of these or many at once. */
#include "driver.h"

#include <time.h>

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--rate R] [--seconds S] [--ns D]");
    long rate = option(argc, argv, "--rate", 20000), seconds = option(argc, argv, "--seconds", 2);
    uint64_t ns = (uint64_t)option(argc, argv, "--ns", 20000);
    CHECK(rate > 0 && seconds > 0);
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    uint32_t zero = 0;
    void *parameters[] = { &ns, &zero, &zero, &zero };
    struct timespec pause = { 0, rate >= 1000 ? 500000 : 20000000 };
    int64_t start = now_ns(), elapsed = 0;
    long launched = 0;
    while (elapsed < seconds * 1000000000) {
        long due = (long)((double)elapsed * 1e-9 * (double)rate);
        for (; launched < due; launched++)
            launch(gpu.spin, 1, 32, stream, parameters);
        nanosleep(&pause, NULL);
        elapsed = now_ns() - start;
    }
    CALL(cuStreamSynchronize, stream);
    printf("{\"launches\": %ld, \"wall_ns\": %" PRId64 "}\n", launched, now_ns() - start);
    CALL(cuStreamDestroy, stream);
    puts("ok");
    return 0;
}
