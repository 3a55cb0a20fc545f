/* The driver's answers on plain allocations, small and large: ranges, attributes, pitch; null pointers, double frees, addresses
 * outside of any allocation; the historical functions; the virtual memory calls on such addresses.
 *
 * usage: ranges PTX.  With and without a preload library, with and without a limit, it prints these same lines:
 *   ranges of allocations
 *   attributes
 *   pitch
 *   misuse
 *   historical functions
 *   a context's memory goes with it
 *   ok */
#include "../driver.h"

enum { KIB = 1024, MIB = 1024 * KIB };

static const size_t sizes[] = { 1, 511, 512, 513, 65536, MIB - 1, MIB, MIB + 1, 3 * MIB + 77, 64 * MIB };

enum { SIZES = COUNT(sizes), SYNC_MEMOPS = 6, MAPPING_SIZE = 18, MAPPING_BASE = 19, BLOCK_ID = 20 };

static unsigned long long attribute(CUpointer_attribute which, CUdeviceptr at)
{
    unsigned long long value = 0;
    CALL(cuPointerGetAttribute, &value, which, at);
    return value;
}

static void ranges(const CUdeviceptr *at)
{
    for (int i = 0; i < SIZES; i++) {
        const size_t within[] = { 0, sizes[i] / 2, sizes[i] - 1 };
        CHECK(at[i] % 256 == 0);
        for (size_t j = 0; j < COUNT(within); j++) {
            CUdeviceptr base = 0;
            size_t size = 0;
            CALL(cuMemGetAddressRange, &base, &size, at[i] + within[j]);
            CHECK_EQUAL(base, at[i]);
            CHECK_EQUAL(size, sizes[i]);
            CALL(cuMemGetAddressRange, NULL, &size, at[i] + within[j]);
            CALL(cuMemGetAddressRange, &base, NULL, at[i] + within[j]);
        }
        for (int j = 0; j < i; j++)
            CHECK(at[i] + sizes[i] <= at[j] || at[j] + sizes[j] <= at[i]);
    }
    puts("ranges of allocations");
}

static void attributes(const struct gpu *gpu, const CUdeviceptr *at)
{
    for (int i = 0; i < SIZES; i++) {
        CUdeviceptr in = at[i] + sizes[i] / 2;
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, in), (uintptr_t)gpu->context);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, in), CU_MEMORYTYPE_DEVICE);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, in), in);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, in), gpu->device);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, in), 0);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MAPPED, in), 1);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, in), at[i]);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, in), sizes[i]);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, in), 0);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, in), 1);
        CHECK(attribute((CUpointer_attribute)MAPPING_BASE, in) <= in);
        CHECK(attribute((CUpointer_attribute)MAPPING_BASE, in) + attribute((CUpointer_attribute)MAPPING_SIZE, in) > in);
        for (int j = 0; j < i; j++)
            CHECK(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, in) != attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at[j]));
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, in), attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at[i]));

        CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR };
        unsigned long long size = 0, context = 0, begin = 0;
        void *where[] = { &size, &context, &begin };
        CALL(cuPointerGetAttributes, COUNT(which), which, where, in);
        CHECK(size == sizes[i] && context == (uintptr_t)gpu->context && begin == at[i]);
    }
    /* The only attribute that can be set is set for this allocation alone. */
    CUresult (*set)(const void *, CUpointer_attribute, CUdeviceptr);
    void *symbol = dlsym(cu_library(), "cuPointerSetAttribute");
    memcpy(&set, &symbol, sizeof set);
    CHECK(set);
    unsigned on = 1;
    CHECK_EQUAL(set(&on, (CUpointer_attribute)SYNC_MEMOPS, at[1]), CUDA_SUCCESS);
    CHECK_EQUAL(attribute((CUpointer_attribute)SYNC_MEMOPS, at[1]), 1);
    CHECK_EQUAL(attribute((CUpointer_attribute)SYNC_MEMOPS, at[2]), 0);
    CHECK(set(&on, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at[1]) != CUDA_SUCCESS);
    CHECK(set(NULL, (CUpointer_attribute)SYNC_MEMOPS, at[1]) != CUDA_SUCCESS);
    puts("attributes");
}

static void pitch(void)
{
    enum { HEIGHT = 37 };
    static unsigned char rows[HEIGHT * 1000], back[HEIGHT * 1000];
    for (size_t width = 1; width <= 1000; width += 333) {
        CUdeviceptr at, base;
        size_t pitch = 0, size;
        CALL(cuMemAllocPitch, &at, &pitch, width, HEIGHT, 4);
        CHECK(pitch >= width && pitch % 256 == 0);
        CALL(cuMemGetAddressRange, &base, &size, at);
        CHECK(base == at && size >= pitch * (HEIGHT - 1) + width);
        for (size_t i = 0; i < width * HEIGHT; i++)
            rows[i] = (unsigned char)(i * 7 + width);
        CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = rows, .srcPitch = width, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
            .dstDevice = at, .dstPitch = pitch, .WidthInBytes = width, .Height = HEIGHT };
        CALL(cuMemcpy2D, &copy);
        for (size_t row = 0; row < HEIGHT; row++)
            CALL(cuMemcpyDtoH, back + row * width, at + row * pitch, width);
        CHECK(memcmp(rows, back, width * HEIGHT) == 0);
        CALL(cuMemFree, at);
    }
    CUdeviceptr at;
    size_t got;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch, &at, &got, 100, 10, 3);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch, &at, &got, 0, 10, 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch, &at, NULL, 100, 10, 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch, NULL, &got, 100, 10, 4);
    CHECK(TRY(cuMemAllocPitch, &at, &got, SIZE_MAX - 5, 1000, 4) != CUDA_SUCCESS);
    CHECK(TRY(cuMemAllocPitch, &at, &got, (size_t)1 << 40, (size_t)1 << 40, 4) != CUDA_SUCCESS);
    puts("pitch");
}

static void misuse(CUdeviceptr *at)
{
    CUdeviceptr p, base;
    size_t size;
    int nothing;
    unsigned long long value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc, NULL, 4096);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc, &p, 0);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &p, SIZE_MAX);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &p, (size_t)1 << 60);
    CALL(cuMemFree, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, (CUdeviceptr)(uintptr_t)&nothing);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at[0]);
    CALL(cuMemGetAddressRange, NULL, NULL, at[0]);

    /* Not a handle's memory, not a mapping of the program's. */
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READ };
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)at[8]);
    CHECK(TRY(cuMemUnmap, at[9], 64 * (size_t)MIB) != CUDA_SUCCESS);
    CHECK(TRY(cuMemSetAccess, at[9], 64 * (size_t)MIB, &access, 1) != CUDA_SUCCESS);
    CHECK(TRY(cuMemAddressFree, at[9], 64 * (size_t)MIB) != CUDA_SUCCESS);

    /* In the middle of an allocation, after one, twice. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, at[8] + 512);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, at[4] + 512);
    for (int i = 0; i < SIZES; i++) {
        CALL(cuMemFree, at[i]);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, at[i]);
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at[i]);
        CHECK(TRY(cuMemGetAddressRange, &base, &size, at[i]) != CUDA_SUCCESS);
    }
    puts("misuse");
}

/* Functions from the time of 32-bit addresses.  Their results are the driver's choice; the answers are consistent, and nothing
 * leaks. */
static void historical(void)
{
    CUresult (*info)(unsigned *, unsigned *), (*total_of)(unsigned *, CUdevice), (*alloc)(unsigned *, unsigned), (*release)(unsigned);
    void *symbols[] = { dlsym(cu_library(), "cuMemGetInfo"), dlsym(cu_library(), "cuDeviceTotalMem"), dlsym(cu_library(), "cuMemAlloc"),
        dlsym(cu_library(), "cuMemFree") };
    memcpy(&info, &symbols[0], sizeof info);
    memcpy(&total_of, &symbols[1], sizeof total_of);
    memcpy(&alloc, &symbols[2], sizeof alloc);
    memcpy(&release, &symbols[3], sizeof release);
    size_t before, after, total, device;
    CALL(cuMemGetInfo, &before, &total);
    CALL(cuDeviceTotalMem, &device, 0);
    unsigned small[2] = { 7, 7 };
    if (info && info(&small[0], &small[1]) == CUDA_SUCCESS) {
        CHECK_EQUAL(small[1], total > UINT32_MAX ? UINT32_MAX : total);
        CHECK_EQUAL(small[0], before > UINT32_MAX ? UINT32_MAX : before);
    }
    if (total_of && total_of(&small[0], 0) == CUDA_SUCCESS)
        CHECK_EQUAL(small[0], device > UINT32_MAX ? UINT32_MAX : device);
    if (alloc && release && alloc(&small[0], 4096) == CUDA_SUCCESS)
        release(small[0]);
    CALL(cuMemGetInfo, &after, &total);
    CHECK_EQUAL(after, before);
    puts("historical functions");
}

static void contexts(const struct gpu *gpu)
{
    CUcontext own;
    CUdeviceptr small, large, ours;
    size_t before, during, after, total;
    unsigned long long value;
    CALL(cuMemAlloc, &ours, 100);
    CALL(cuMemGetInfo, &before, &total);
    CALL(cuCtxCreate, &own, 0, gpu->device);
    CALL(cuMemAlloc, &small, 100);
    CALL(cuMemAlloc, &large, 48 * (size_t)MIB);
    CALL(cuMemsetD8, large, 1, 48 * (size_t)MIB);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, small), (uintptr_t)own);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ours), (uintptr_t)gpu->context);
    CALL(cuMemGetInfo, &during, &total);
    CHECK(before - during >= 48 * (size_t)MIB && during < before);
    /* Freed from another context than its own. */
    CUdeviceptr other;
    CALL(cuMemAlloc, &other, 5 * (size_t)MIB);
    CALL(cuCtxSetCurrent, gpu->context);
    CALL(cuMemFree, other);
    CALL(cuCtxSetCurrent, own);
    CALL(cuCtxDestroy, own);
    CALL(cuCtxSetCurrent, gpu->context);
    CALL(cuMemGetInfo, &after, &total);
    CHECK(after >= during + 48 * (size_t)MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, large);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, small);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, large);
    CALL(cuMemFree, ours);

    /* Without a context there is no allocation and no free. */
    CALL(cuCtxSetCurrent, NULL);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc, &small, 100);
    CALL(cuCtxSetCurrent, gpu->context);
    puts("a context's memory goes with it");
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CUdeviceptr at[SIZES];
    for (int i = 0; i < SIZES; i++)
        CALL(cuMemAlloc, &at[i], sizes[i]);
    ranges(at);
    attributes(&gpu, at);
    pitch();
    misuse(at);
    historical();
    contexts(&gpu);
    puts("ok");
    return 0;
}
