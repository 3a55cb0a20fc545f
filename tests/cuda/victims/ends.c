/* Streams and contexts are destroyed with work in flight, repeatedly; other streams and contexts continue.
 *
 * usage: ends PTX */
#include "../driver.h"

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 4096);
    for (uint32_t round = 0; round < 20; round++) {
        CUstream stream, other;
        CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        CALL(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
        for (int i = 0; i < 20; i++)
            spin(&gpu, 200000, 4, stream);
        /* Work queued before is still completed. */
        fill(&gpu, at, 1024, round, stream);
        CALL(cuStreamDestroy, stream);
        spin(&gpu, 1000, 4, other);
        CALL(cuStreamSynchronize, other);
        CALL(cuStreamDestroy, other);
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(&gpu, at, 1024), round * 1024);
    }
    size_t before, after, total;
    CALL(cuMemGetInfo, &before, &total);
    for (int round = 0; round < 8; round++) {
        struct gpu own = gpu;
        CUdeviceptr memory;
        CUstream stream;
        CALL(cuCtxCreate, &own.context, 0, gpu.device);
        gpu_load(&own, argv[1]);
        CALL(cuMemAlloc, &memory, 1 << 22);
        CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        for (int i = 0; i < 20; i++)
            spin(&own, 200000, 4, i % 2 ? stream : NULL);
        fill(&own, memory, 1 << 20, 1, stream);
        if (round % 2)
            CALL(cuStreamDestroy, stream);
        CALL(cuCtxDestroy, own.context);
        CALL(cuCtxSetCurrent, gpu.context);
        fill(&gpu, at, 1024, 7, NULL);
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(&gpu, at, 1024), 7 * 1024);
    }
    CALL(cuMemGetInfo, &after, &total);
    CHECK_EQUAL(after, before);
    CALL(cuMemFree, at);
    CALL(cuDevicePrimaryCtxReset, gpu.device);
    puts("ok");
    return 0;
}
