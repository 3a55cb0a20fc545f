/* Launches and allocations while a stream is captured, in the mode that allows them.  A wait, query or record in
 * between ends the capture.
 *
 * usage: captured PTX */
#include "../driver.h"

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    enum { WORDS = 1 << 16 };
    CUdeviceptr first, second;
    CALL(cuMemAlloc, &first, WORDS * 4);
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    warm_up(&gpu);
    CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    fill(&gpu, first, WORDS, 7, stream);
    CALL(cuMemAlloc, &second, WORDS * 4);
    size_t free_bytes, total_bytes;
    CALL(cuMemGetInfo, &free_bytes, &total_bytes);
    CHECK(free_bytes <= total_bytes);
    for (int i = 0; i < 100; i++)
        fill(&gpu, second, WORDS, (uint32_t)i, stream);
    CUgraph graph;
    CALL(cuStreamEndCapture, stream, &graph);
    CUgraphExec exec;
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    for (int i = 0; i < 3; i++)
        CALL(cuGraphLaunch, exec, stream);
    CALL(cuStreamSynchronize, stream);
    static uint32_t words[WORDS];
    CALL(cuMemcpyDtoH, words, first, sizeof words);
    CHECK_EQUAL(words[WORDS - 1], 7);
    CALL(cuMemcpyDtoH, words, second, sizeof words);
    CHECK_EQUAL(words[WORDS - 1], 99);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
    CALL(cuMemFree, first);
    CALL(cuMemFree, second);
    puts("ok");
    return 0;
}
