/* Cost of a launch, and time of a queue of kernels.
 *
 * usage: overhead PTX [--launches N] [--sync-every M] [--kernels K] [--us D]
 * First N launches (default 100000) of a kernel of 1 µs in one block, with a wait every M (default 1000); then K kernels (default
 * 1000) of D µs (default 100) on the whole device, queued at once.  Prints one line of JSON, and `ok`. */
#include "driver.h"

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--launches N] [--sync-every M] [--kernels K] [--us D]");
    long launches = option(argc, argv, "--launches", 100000), every = option(argc, argv, "--sync-every", 1000);
    long kernels = option(argc, argv, "--kernels", 1000), us = option(argc, argv, "--us", 100);
    CHECK(launches > 0 && every > 0 && kernels > 0 && us >= 0);
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CUstream stream;
    CUevent begin, end;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &begin, CU_EVENT_DEFAULT);
    CALL(cuEventCreate, &end, CU_EVENT_DEFAULT);

    int64_t *each = malloc((size_t)launches * sizeof *each), in_calls = 0;
    CHECK(each);
    uint64_t ns = 1000;
    uint32_t zero = 0;
    void *parameters[] = { &ns, &zero, &zero, &zero };
    int64_t start = now_ns();
    for (long i = 0; i < launches; i++) {
        int64_t at = now_ns();
        CUresult result = cu.cuLaunchKernel(gpu.spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
        each[i] = now_ns() - at;
        in_calls += each[i];
        if (result != CUDA_SUCCESS)
            cu_expect(result, CUDA_SUCCESS, __FILE__, __LINE__, "cuLaunchKernel", "spin");
        if ((i + 1) % every == 0)
            CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamSynchronize, stream);
    int64_t all = now_ns() - start;
    qsort(each, (size_t)launches, sizeof *each, compare);

    ns = (uint64_t)us * 1000;
    start = now_ns();
    CALL(cuEventRecord, begin, stream);
    for (long i = 0; i < kernels; i++)
        launch(gpu.spin, gpu.sms, 1024, stream, parameters);
    CALL(cuEventRecord, end, stream);
    int64_t queued = now_ns() - start;
    CALL(cuStreamSynchronize, stream);
    int64_t wall = now_ns() - start;
    printf("{\"launches\": %ld, \"launch_ns_mean\": %.1f, \"launch_ns_median\": %" PRId64 ", \"launch_ns_p99\": %" PRId64
           ", \"launches_wall_ns\": %" PRId64 ", \"kernels\": %ld, \"kernel_us\": %ld, \"queued_ns\": %" PRId64
           ", \"wall_ns\": %" PRId64 ", \"event_ns\": %" PRId64 "}\n",
           launches, (double)in_calls / (double)launches, each[launches / 2], each[launches * 99 / 100], all, kernels, us, queued, wall,
           elapsed_ns(begin, end));
    free(each);
    CALL(cuEventDestroy, begin);
    CALL(cuEventDestroy, end);
    CALL(cuStreamDestroy, stream);
    puts("ok");
    return 0;
}
