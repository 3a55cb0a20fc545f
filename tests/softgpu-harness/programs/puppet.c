/* Executes the driver call in each line of its standard input, and answers each with a line: the result's number, then the
 * requested values.  A test controls several processes step by step, with one of these for each.
 *
 * usage: puppet PTX
 *
 *   open                       cuInit; the first device's primary context
 *   load                       Weir's kernels
 *   devices                    their number
 *   device I                   SMs, bytes, UUID, name
 *   info                       bytes free, bytes in all
 *   alloc M BYTES              device memory; free M
 *   async S M BYTES            memory of the device's pool; release S M
 *   host H BYTES               pinned memory, of zeros; pages H BYTES pageable memory
 *   own M BYTES                memory that it creates and maps itself, of whole granules, whose handle it keeps; disown M
 *   remap M                    unmaps it, and maps the handle there again
 *   handles COUNT              creates, maps, unmaps and releases that many handles of a granule, one after the other
 *   stream S, event E          new ones; stream 0 exists
 *   spin S NS BLOCKS COUNT     kernels, each with a block for each SM
 *   fill S M WORDS VALUE       a kernel that writes
 *   wild S                     one that writes to an unmapped address
 *   packed S M WORDS VALUE     the same, with its arguments in one buffer
 *   clear S M BYTES            sets bytes to 0
 *   tensor T M                 a descriptor of a tensor of 8 words in M; retensor T M changes its memory
 *   bump S T                   a kernel with the descriptor as its argument, and a duration and an effect by the configuration
 *   sum M WORDS                waits for a kernel that adds the words: the sum
 *   poke M OFFSET VALUE        waits for a copy of one word
 *   push S M H BYTES           copies to the device; pull S M H BYTES from it, move S M N BYTES from N to M
 *   record E S, wait S E, query E, sync S, sync_all
 *   elapsed E F                ms from E to F
 *   capture S                  begins to capture the stream; captured S ends it, without a graph; graph G S with one
 *   play G S                   launches it; drop G destroys it
 *   fork                       a child, which does nothing until reap ends it: its exit status
 *   now                        CLOCK_MONOTONIC in ns */
#include "driver.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 64, WORDS = 8 };

static struct gpu gpu;
static CUdeviceptr memory[SLOTS];
static CUmemGenericAllocationHandle handle_of[SLOTS];
static size_t size_of[SLOTS];
static void *host[SLOTS];
static CUstream stream[SLOTS];
static CUevent event[SLOTS];
static CUgraphExec graph[SLOTS];
static CUtensorMap tensor[SLOTS];
static CUfunction bump;
static char answer[256];
static pid_t child;
static int child_input;

#define FIRST(result) \
    do { \
        CUresult first = (result); \
        if (first != CUDA_SUCCESS) \
            return first; \
    } while (0)

static CUresult start(CUfunction function, unsigned blocks, unsigned threads, CUstream on, void **parameters)
{
    return TRY(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, on, parameters, NULL);
}

static CUresult packed(CUdeviceptr out, uint64_t words, uint32_t value, CUstream on)
{
    struct {
        CUdeviceptr out;
        uint64_t words;
        uint32_t value;
    } buffer = { out, words, value };
    size_t size = sizeof buffer;
    void *extra[] = { (void *)1, &buffer, (void *)2, &size, NULL };
    return TRY(cuLaunchKernel, gpu.fill, blocks_for(words), 1, 1, 256, 1, 1, 0, on, NULL, extra);
}

static CUresult describe(CUtensorMap *map, CUdeviceptr at)
{
    uint64_t sizes = 8;
    uint32_t part = 8, step = 1;
    return TRY(cuTensorMapEncodeTiled, map, 2 /* 32-bit words */, 1, (void *)at, &sizes, NULL, &part, &step, 0, 0, 0, 0);
}

static CUresult bumps(CUtensorMap *map, CUstream on)
{
    static const char ptx[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry bump(.param .align 64 .b8 bump_0[128]) { ret; }\n";
    CUmodule module;
    if (!bump) {
        FIRST(TRY(cuModuleLoadData, &module, ptx));
        FIRST(TRY(cuModuleGetFunction, &bump, module, "bump"));
    }
    return start(bump, 1, 32, on, (void *[]){ map });
}

static CUresult open_gpu(void)
{
    cu_open();
    FIRST(TRY(cuInit, 0));
    FIRST(TRY(cuDeviceGet, &gpu.device, 0));
    FIRST(TRY(cuDevicePrimaryCtxRetain, &gpu.context, gpu.device));
    return TRY(cuCtxSetCurrent, gpu.context);
}

static CUresult device(int ordinal)
{
    CUdevice which;
    int sms;
    size_t bytes;
    CUuuid uuid;
    char name[96], text[33] = "";
    FIRST(TRY(cuDeviceGet, &which, ordinal));
    FIRST(TRY(cuDeviceGetAttribute, &sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, which));
    FIRST(TRY(cuDeviceTotalMem, &bytes, which));
    FIRST(TRY(cuDeviceGetUuid, &uuid, which));
    FIRST(TRY(cuDeviceGetName, name, sizeof name, which));
    for (unsigned i = 0; i < sizeof uuid; i++)
        snprintf(text + 2 * i, 3, "%02x", ((unsigned char *)&uuid)[i]);
    snprintf(answer, sizeof answer, " %d %zu %s %s", sms, bytes, text, name);
    return CUDA_SUCCESS;
}

static CUresult spins(CUstream on, uint64_t ns, unsigned blocks, uint64_t count)
{
    uint32_t zero = 0;
    for (uint64_t i = 0; i < count; i++)
        FIRST(start(gpu.spin, blocks, 1024, on, (void *[]){ &ns, &zero, &zero, &zero }));
    return CUDA_SUCCESS;
}

static CUresult sum_up(CUdeviceptr in, uint64_t words)
{
    uint64_t total = 0;
    CUdeviceptr out;
    FIRST(TRY(cuMemAlloc, &out, sizeof total));
    FIRST(TRY(cuMemsetD8, out, 0, sizeof total));
    FIRST(start(gpu.sum, blocks_for(words), 256, NULL, (void *[]){ &out, &in, &words }));
    FIRST(TRY(cuMemcpyDtoH, &total, out, sizeof total));
    FIRST(TRY(cuMemFree, out));
    snprintf(answer, sizeof answer, " %" PRIu64, total);
    return CUDA_SUCCESS;
}

static CUresult handles(uint64_t count)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device } };
    CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size;
    FIRST(TRY(cuMemGetAllocationGranularity, &size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    FIRST(TRY(cuMemAddressReserve, &at, size, 0, 0, 0));
    for (uint64_t i = 0; i < count; i++) {
        FIRST(TRY(cuMemCreate, &handle, size, &prop, 0));
        FIRST(TRY(cuMemMap, at, size, 0, handle, 0));
        FIRST(TRY(cuMemSetAccess, at, size, &access, 1));
        FIRST(TRY(cuMemUnmap, at, size));
        FIRST(TRY(cuMemRelease, handle));
    }
    return TRY(cuMemAddressFree, at, size);
}

static CUresult map_own(uint64_t slot)
{
    CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    FIRST(TRY(cuMemMap, memory[slot], size_of[slot], 0, handle_of[slot], 0));
    return TRY(cuMemSetAccess, memory[slot], size_of[slot], &access, 1);
}

static CUresult own(uint64_t slot, size_t bytes)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device } };
    size_t granule;
    FIRST(TRY(cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    size_of[slot] = (bytes + granule - 1) / granule * granule;
    FIRST(TRY(cuMemAddressReserve, &memory[slot], size_of[slot], 0, 0, 0));
    FIRST(TRY(cuMemCreate, &handle_of[slot], size_of[slot], &prop, 0));
    return map_own(slot);
}

static CUresult disown(uint64_t slot)
{
    FIRST(TRY(cuMemUnmap, memory[slot], size_of[slot]));
    FIRST(TRY(cuMemRelease, handle_of[slot]));
    return TRY(cuMemAddressFree, memory[slot], size_of[slot]);
}

static CUresult remap(uint64_t slot)
{
    FIRST(TRY(cuMemUnmap, memory[slot], size_of[slot]));
    return map_own(slot);
}

static CUresult captured(CUstream of)
{
    CUgraph graph;
    FIRST(TRY(cuStreamEndCapture, of, &graph));
    return graph ? TRY(cuGraphDestroy, graph) : CUDA_SUCCESS;
}

static CUresult instantiated(CUgraphExec *to, CUstream of)
{
    CUgraph from;
    FIRST(TRY(cuStreamEndCapture, of, &from));
    FIRST(TRY(cuGraphInstantiateWithFlags, to, from, 0));
    return TRY(cuGraphDestroy, from);
}

static CUresult fork_child(void)
{
    int ends[2];
    char unread;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Its exit runs the handlers of the libraries. */
        close(ends[1]);
        exit(read(ends[0], &unread, 1) == 0 ? 0 : 1);
    }
    close(ends[0]);
    child_input = ends[1];
    return CUDA_SUCCESS;
}

static CUresult end_child(void)
{
    int status;
    close(child_input);
    CHECK(waitpid(child, &status, 0) == child);
    snprintf(answer, sizeof answer, " %d", status);
    return CUDA_SUCCESS;
}

static CUresult perform(const char *ptx, const char *word, const uint64_t *n)
{
    CUdeviceptr nowhere = 0x1000;
    uint64_t words;
    uint32_t value;
    size_t free, total;
    int count;
    float ms;
#define IS(name) (strcmp(word, name) == 0)
    if (IS("open"))
        return open_gpu();
    if (IS("load")) {
        gpu_load(&gpu, ptx);
        return CUDA_SUCCESS;
    }
    if (IS("devices")) {
        FIRST(TRY(cuDeviceGetCount, &count));
        snprintf(answer, sizeof answer, " %d", count);
        return CUDA_SUCCESS;
    }
    if (IS("device"))
        return device((int)n[0]);
    if (IS("info")) {
        FIRST(TRY(cuMemGetInfo, &free, &total));
        snprintf(answer, sizeof answer, " %zu %zu", free, total);
        return CUDA_SUCCESS;
    }
    if (IS("now")) {
        snprintf(answer, sizeof answer, " %" PRId64, now_ns());
        return CUDA_SUCCESS;
    }
    if (IS("fork"))
        return fork_child();
    if (IS("reap"))
        return end_child();
    if (IS("sync_all"))
        return TRY(cuCtxSynchronize);
    if (IS("handles"))
        return handles(n[0]);
    CHECK(n[0] < SLOTS);
    if (IS("alloc"))
        return TRY(cuMemAlloc, &memory[n[0]], n[1]);
    if (IS("free"))
        return TRY(cuMemFree, memory[n[0]]);
    if (IS("own"))
        return own(n[0], n[1]);
    if (IS("disown"))
        return disown(n[0]);
    if (IS("remap"))
        return remap(n[0]);
    if (IS("host")) {
        FIRST(TRY(cuMemAllocHost, &host[n[0]], n[1]));
        memset(host[n[0]], 0, n[1]);
        return CUDA_SUCCESS;
    }
    if (IS("pages")) {
        host[n[0]] = calloc(1, n[1]);
        CHECK(host[n[0]]);
        return CUDA_SUCCESS;
    }
    if (IS("stream"))
        return TRY(cuStreamCreate, &stream[n[0]], CU_STREAM_NON_BLOCKING);
    if (IS("event"))
        return TRY(cuEventCreate, &event[n[0]], CU_EVENT_DEFAULT);
    if (IS("spin"))
        return spins(stream[n[0]], n[1], (unsigned)n[2], n[3]);
    if (IS("wild")) {
        words = 64;
        value = 1;
        return start(gpu.fill, 1, 64, stream[n[0]], (void *[]){ &nowhere, &words, &value });
    }
    if (IS("sum"))
        return sum_up(memory[n[0]], n[1]);
    if (IS("poke")) {
        value = (uint32_t)n[2];
        return TRY(cuMemcpyHtoD, memory[n[0]] + n[1], &value, sizeof value);
    }
    if (IS("capture"))
        return TRY(cuStreamBeginCapture, stream[n[0]], CU_STREAM_CAPTURE_MODE_RELAXED);
    if (IS("captured"))
        return captured(stream[n[0]]);
    if (IS("drop"))
        return TRY(cuGraphExecDestroy, graph[n[0]]);
    if (IS("query"))
        return TRY(cuEventQuery, event[n[0]]);
    if (IS("sync"))
        return TRY(cuStreamSynchronize, stream[n[0]]);
    CHECK(n[1] < SLOTS);
    if (IS("fill")) {
        value = (uint32_t)n[3];
        return start(gpu.fill, blocks_for(n[2]), 256, stream[n[0]], (void *[]){ &memory[n[1]], (void *)&n[2], &value });
    }
    if (IS("async"))
        return TRY(cuMemAllocAsync, &memory[n[1]], n[2], stream[n[0]]);
    if (IS("release"))
        return TRY(cuMemFreeAsync, memory[n[1]], stream[n[0]]);
    if (IS("clear"))
        return TRY(cuMemsetD8Async, memory[n[1]], 0, n[2], stream[n[0]]);
    if (IS("packed"))
        return packed(memory[n[1]], n[2], (uint32_t)n[3], stream[n[0]]);
    if (IS("tensor"))
        return describe(&tensor[n[0]], memory[n[1]]);
    if (IS("retensor"))
        return TRY(cuTensorMapReplaceAddress, &tensor[n[0]], (void *)memory[n[1]]);
    if (IS("bump"))
        return bumps(&tensor[n[1]], stream[n[0]]);
    if (IS("graph"))
        return instantiated(&graph[n[0]], stream[n[1]]);
    if (IS("play"))
        return TRY(cuGraphLaunch, graph[n[0]], stream[n[1]]);
    if (IS("record"))
        return TRY(cuEventRecord, event[n[0]], stream[n[1]]);
    if (IS("wait"))
        return TRY(cuStreamWaitEvent, stream[n[0]], event[n[1]], 0);
    if (IS("elapsed")) {
        FIRST(TRY(cuEventElapsedTime, &ms, event[n[0]], event[n[1]]));
        snprintf(answer, sizeof answer, " %.9g", (double)ms);
        return CUDA_SUCCESS;
    }
    CHECK(n[2] < SLOTS);
    if (IS("push"))
        return TRY(cuMemcpyHtoDAsync, memory[n[1]], host[n[2]], n[3], stream[n[0]]);
    if (IS("pull"))
        return TRY(cuMemcpyDtoHAsync, host[n[2]], memory[n[1]], n[3], stream[n[0]]);
    if (IS("move"))
        return TRY(cuMemcpyDtoDAsync, memory[n[1]], memory[n[2]], n[3], stream[n[0]]);
    fprintf(stderr, "puppet: no such word: %s\n", word);
    exit(1);
}

int main(int argc, char **argv)
{
    char line[256], *rest;
    want_ptx(argc, argv, "");
    while (fgets(line, sizeof line, stdin)) {
        char *word = strtok_r(line, " \n", &rest), *number;
        uint64_t numbers[WORDS] = { 0 };
        for (unsigned i = 0; word && i < WORDS && (number = strtok_r(NULL, " \n", &rest)); i++)
            numbers[i] = strtoull(number, NULL, 10);
        CHECK(word);
        answer[0] = '\0';
        CUresult result = perform(argv[1], word, numbers);
        printf("%d%s\n", (int)result, result == CUDA_SUCCESS ? answer : "");
        fflush(stdout);
    }
    return 0;
}
