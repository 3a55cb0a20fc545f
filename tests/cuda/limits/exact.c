/* The limit, to the byte: reported, available and refused amounts, and that a refusal changes nothing; the same for memory
 * that the program maps itself, for pools, and for allocations of several handles; NVML beside it.
 *
 * usage: exact PTX [--limit MIB] [--grain KIB] [--nvml]
 *   --limit: the pod's limit.  Without it, the device is the limit, as on a machine without a preload library; that is
 *   exact on the software GPU, while a real one keeps some of its memory for page tables and shares it with others.
 *   --grain: size of the allocations until none fits (default 1/64 of the free memory).
 * It prints the same lines with and without a limit:
 *   total, free and used agree
 *   taken to the end, given back, taken again
 *   a refusal changes nothing
 *   mapped memory counts
 *   pools count
 *   one large allocation
 *   seen by another thread: always within the total
 *   ok */
#include "../driver.h"

enum { KIB = 1024, MIB = 1024 * KIB, MOST = 4096 };

static size_t free_now(size_t *total)
{
    size_t free, all;
    CALL(cuMemGetInfo, &free, &all);
    CHECK(free <= all);
    if (total)
        *total = all;
    return free;
}

static void told(const struct gpu *gpu, size_t limit)
{
    size_t total, device, again;
    size_t free = free_now(&total);
    CALL(cuDeviceTotalMem, &device, gpu->device);
    CHECK(total <= device);
    if (limit) {
        CHECK(device <= limit && total == device);
        /* A context uses some of it; by far the most is available to the program. */
        CHECK(total > limit / 2);
    }
    CALL(cuMemGetInfo, NULL, &again);
    CHECK_EQUAL(again, total);
    CALL(cuMemGetInfo, &again, NULL);
    CHECK_EQUAL(again, free);
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 32 * (size_t)MIB);
    CHECK_EQUAL(free - free_now(NULL), 32 * (size_t)MIB);
    CALL(cuMemFree, at);
    CHECK_EQUAL(free_now(NULL), free);
    puts("total, free and used agree");
}

/* Allocates as many of one size as fit. */
static size_t take(CUdeviceptr *at, size_t size)
{
    size_t count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < MOST && (result = TRY(cuMemAlloc, &at[count], size)) == CUDA_SUCCESS)
        count++;
    CHECK(count < MOST);
    CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
    return count;
}

static void to_the_end(size_t grain)
{
    static CUdeviceptr at[MOST];
    size_t free = free_now(NULL), counts[2];
    for (int round = 0; round < 2; round++) {
        counts[round] = take(at, grain);
        CHECK_EQUAL(counts[round], free / grain);
        CHECK_EQUAL(free_now(NULL), free - counts[round] * grain);
        /* Every other one first, so that the free memory is fragmented. */
        for (size_t i = 0; i < counts[round]; i += 2)
            CALL(cuMemFree, at[i]);
        for (size_t i = 1; i < counts[round]; i += 2)
            CALL(cuMemFree, at[i]);
        CHECK_EQUAL(free_now(NULL), free);
    }
    /* Fragmentation does not affect an allocation as large as several of them. */
    size_t count = take(at, grain);
    for (size_t i = 0; i < count; i += 2)
        CALL(cuMemFree, at[i]);
    CUdeviceptr large;
    CALL(cuMemAlloc, &large, count / 2 * grain);
    CALL(cuMemFree, large);
    for (size_t i = 1; i < count; i += 2)
        CALL(cuMemFree, at[i]);
    CHECK_EQUAL(free_now(NULL), free);
    puts("taken to the end, given back, taken again");
}

static void refusals(void)
{
    size_t total, free = free_now(&total);
    CUdeviceptr p = 77, q;
    size_t pitch;
    for (int i = 0; i < 20; i++) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &p, free + 4 * (size_t)MIB);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch, &p, &pitch, MIB, free / MIB + 4, 4);
    }
    CHECK_EQUAL(p, 77);
    CHECK_EQUAL(free_now(NULL), free);
    CALL(cuMemAlloc, &p, free / 2);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &q, free / 2 + 8 * (size_t)MIB);
    CALL(cuMemAlloc, &q, free / 4);
    CALL(cuMemFree, p);
    CALL(cuMemFree, q);
    /* Managed memory counts if supported, and changes nothing otherwise. */
    if (TRY(cuMemAllocManaged, &p, 8 * (size_t)MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
        CALL(cuMemFree, p);
    CHECK_EQUAL(free_now(NULL), free);
    puts("a refusal changes nothing");
}

static void mapped(const struct gpu *gpu)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device } };
    CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle, again, none;
    CUdeviceptr at;
    size_t grain, free = free_now(NULL);
    CALL(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    size_t size = (24 * (size_t)MIB + grain - 1) / grain * grain, much = (free / grain + 4) * grain;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate, &none, much, &prop, 0);
    CALL(cuMemCreate, &handle, size, &prop, 0);
    CHECK_EQUAL(free_now(NULL), free - size);
    CALL(cuMemAddressReserve, &at, 2 * size, 0, 0, 0);
    CALL(cuMemMap, at, size, 0, handle, 0);
    CALL(cuMemMap, at + size, size, 0, handle, 0);
    CALL(cuMemSetAccess, at, 2 * size, &access, 1);
    /* Handles are released; the mappings keep the memory. */
    CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)(at + size + 5));
    CALL(cuMemRelease, handle);
    CALL(cuMemRelease, again);
    CHECK_EQUAL(free_now(NULL), free - size);
    fill(gpu, at, size / 4, 3, NULL);
    CALL(cuCtxSynchronize);
    CALL(cuMemUnmap, at, size);
    CHECK_EQUAL(sum_of(gpu, at + size, size / 4), 3 * (uint64_t)(size / 4));
    CHECK_EQUAL(free_now(NULL), free - size);
    CALL(cuMemUnmap, at + size, size);
    CHECK_EQUAL(free_now(NULL), free);
    CALL(cuMemAddressFree, at, 2 * size);

    /* Grows as allocators do that expand a segment in place: by chunks until none is left. */
    static CUmemGenericAllocationHandle chunks[MOST];
    size_t chunk = (free / 50 + grain - 1) / grain * grain, count = 0;
    CALL(cuMemAddressReserve, &at, free / chunk * chunk + chunk, 0, 0, 0);
    CUresult result;
    while ((result = TRY(cuMemCreate, &chunks[count], chunk, &prop, 0)) == CUDA_SUCCESS) {
        CALL(cuMemMap, at + count * chunk, chunk, 0, chunks[count], 0);
        CALL(cuMemRelease, chunks[count]);
        count++;
        CHECK(count <= free / chunk);
    }
    CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(count, free / chunk);
    CALL(cuMemUnmap, at, count * chunk);
    CALL(cuMemAddressFree, at, free / chunk * chunk + chunk);
    CHECK_EQUAL(free_now(NULL), free);
    puts("mapped memory counts");
}

static void pools(const struct gpu *gpu)
{
    int supported;
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, gpu->device);
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr p, q;
    size_t total, free = free_now(&total), size = free / 4 / MIB * MIB;
    if (!supported) {
        puts("pools count");
        return;
    }
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuDeviceGetDefaultMemPool, &pool, gpu->device);
    uint64_t keep = UINT64_MAX, reserved = 0, none = 0;
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    CALL(cuMemAllocAsync, &p, size, stream);
    CALL(cuMemAllocAsync, &q, size, stream);
    CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    CHECK(reserved >= 2 * size);
    CHECK_EQUAL(free_now(NULL), free - reserved);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync, &p, free, stream);
    CHECK_EQUAL(free_now(NULL), free - reserved);
    /* Memory kept by the pool counts until it is released, which happens when it is needed elsewhere. */
    CALL(cuMemFreeAsync, p, stream);
    CALL(cuMemFreeAsync, q, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemAllocAsync, &p, size, stream);
    CALL(cuMemFree, p);
    CALL(cuMemPoolTrimTo, pool, 0);
    CHECK_EQUAL(free_now(NULL), free);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);

    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device } };
    CALL(cuMemPoolCreate, &pool, &props);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    CALL(cuMemAllocFromPoolAsync, &p, size, pool, stream);
    CHECK(free_now(NULL) <= free - size);
    CALL(cuMemFreeAsync, p, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemPoolDestroy, pool);
    CHECK_EQUAL(free_now(NULL), free);
    CALL(cuStreamDestroy, stream);
    puts("pools count");
}

static void large(const struct gpu *gpu)
{
    size_t free = free_now(NULL), size = free / 8 * 7 / 4 * 4;
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, size);
    /* One kernel and one copy across all of it, whatever handles it consists of. */
    CALL(cuMemsetD32, at, 5, size / 4);
    CHECK_EQUAL(sum_of(gpu, at, size / 4), 5 * (uint64_t)(size / 4));
    uint32_t first = 0, last = 0;
    CALL(cuMemcpyDtoH, &first, at, 4);
    CALL(cuMemcpyDtoH, &last, at + size - 4, 4);
    CHECK(first == 5 && last == 5);
    CALL(cuMemFree, at);
    CHECK_EQUAL(free_now(NULL), free);
    puts("one large allocation");
}

struct watch {
    CUcontext context;
    size_t total;
    volatile bool stop;
};

static void *watch(void *argument)
{
    struct watch *watch = argument;
    CALL(cuCtxSetCurrent, watch->context);
    while (!watch->stop) {
        size_t total;
        free_now(&total);
        CHECK_EQUAL(total, watch->total);
    }
    return NULL;
}

static void *churn(void *argument)
{
    struct watch *watch = argument;
    CALL(cuCtxSetCurrent, watch->context);
    for (int i = 0; i < 300; i++) {
        CUdeviceptr at[4];
        for (int j = 0; j < 4; j++)
            CALL(cuMemAlloc, &at[j], (size_t)(i % 5 + 1) * 300 * KIB);
        for (int j = 0; j < 4; j++)
            CALL(cuMemFree, at[j]);
    }
    return NULL;
}

static void threads(const struct gpu *gpu)
{
    struct watch shared = { .context = gpu->context };
    size_t free = free_now(&shared.total);
    pthread_t watcher, churners[4];
    CHECK(pthread_create(&watcher, NULL, watch, &shared) == 0);
    for (size_t i = 0; i < COUNT(churners); i++)
        CHECK(pthread_create(&churners[i], NULL, churn, &shared) == 0);
    for (size_t i = 0; i < COUNT(churners); i++)
        CHECK(pthread_join(churners[i], NULL) == 0);
    shared.stop = true;
    CHECK(pthread_join(watcher, NULL) == 0);
    CHECK_EQUAL(free_now(NULL), free);
    puts("seen by another thread: always within the total");
}

/* NVML reports the same as the driver, and no process but this one. */
static void nvml(void)
{
    typedef struct { unsigned long long total, free, used; } memory_t;
    typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
    typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    unsigned (*init)(void), (*by_index)(unsigned, void **), (*get)(void *, memory_t *), (*get_v2)(void *, memory_v2_t *);
    unsigned (*processes)(void *, unsigned *, process_t *);
    void *symbols[] = { dlsym(library, "nvmlInit_v2"), dlsym(library, "nvmlDeviceGetHandleByIndex_v2"), dlsym(library, "nvmlDeviceGetMemoryInfo"),
        dlsym(library, "nvmlDeviceGetMemoryInfo_v2"), dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3") };
    memcpy(&init, &symbols[0], sizeof init);
    memcpy(&by_index, &symbols[1], sizeof by_index);
    memcpy(&get, &symbols[2], sizeof get);
    memcpy(&get_v2, &symbols[3], sizeof get_v2);
    memcpy(&processes, &symbols[4], sizeof processes);
    void *device = NULL;
    memory_t first;
    memory_v2_t second = { .version = sizeof second | 2u << 24 };
    size_t total, free = free_now(&total);
    CHECK(init() == 0 && by_index(0, &device) == 0);
    CHECK(get(device, &first) == 0 && get_v2(device, &second) == 0);
    CHECK_EQUAL(first.total, total);
    CHECK_EQUAL(first.free, free);
    CHECK_EQUAL(first.used, total - free);
    CHECK_EQUAL(second.total, total);
    CHECK_EQUAL(second.reserved + second.used + second.free, total);
    second.version = 17;
    CHECK(get_v2(device, &second) != 0 && get(device, NULL) != 0);
    process_t list[8];
    unsigned count = 0;
    CHECK_EQUAL(processes(device, &count, NULL), 7);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(processes(device, &count, list), 0);
    CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].used <= total + 1024 * (size_t)MIB);
    CHECK(processes(device, NULL, list) != 0);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--limit MIB] [--grain KIB] [--nvml]");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    size_t limit = (size_t)option(argc, argv, "--limit", 0) * MIB;
    /* Whole granules of any device, so that the charged amount is the requested one. */
    size_t grain = (size_t)option(argc, argv, "--grain", 0) * KIB;
    if (!grain)
        grain = (free_now(NULL) / 64 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    told(&gpu, limit);
    to_the_end(grain);
    refusals();
    mapped(&gpu);
    pools(&gpu);
    large(&gpu);
    threads(&gpu);
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--nvml") == 0)
            nvml();
    puts("ok");
    return 0;
}
