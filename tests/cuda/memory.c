/* Memory of every kind that needs no virtual memory management: plain, pinned, registered, pitched, managed, from pools; copies
 * and memsets of every shape; the driver's answers on an address. */
#include "driver.h"

enum { KIB = 1024, MIB = 1024 * KIB, SIZE = 1 * MIB };

static unsigned char model[SIZE], back[SIZE];

static void info(size_t *free)
{
    size_t total;
    CALL(cuMemGetInfo, free, &total);
    CHECK(*free <= total);
}

static void accounting(const struct gpu *gpu)
{
    size_t before, during, after, total, of_device;
    CUdeviceptr p, q;
    info(&before);
    CALL(cuMemAlloc, &p, 256 * (size_t)MIB);
    info(&during);
    CHECK(before - during >= 256 * (size_t)MIB && before > during);
    CALL(cuMemFree, p);
    info(&after);
    CHECK(after >= during + 256 * (size_t)MIB);
    CALL(cuMemGetInfo, &before, &total);
    CALL(cuDeviceTotalMem, &of_device, gpu->device);
    printf("  free %zu of %zu, of the device's %zu\n", before, total, of_device);
    CHECK(total <= of_device);

    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &p, of_device + MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &p, (size_t)1 << 60);
    /* Half of the free memory can be allocated, once. */
    info(&before);
    CALL(cuMemAlloc, &p, before / 2 + 64 * (size_t)MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &q, before / 2);
    CALL(cuMemFree, p);
    CALL(cuMemAlloc, &q, before / 2);
    CALL(cuMemFree, q);

    /* Many small allocations do not overlap. */
    enum { MANY = 500 };
    CUdeviceptr many[MANY];
    for (int i = 0; i < MANY; i++) {
        CALL(cuMemAlloc, &many[i], (size_t)(i % 7 + 1) * 100);
        CHECK(many[i] % 256 == 0);
        CALL(cuMemsetD8, many[i], (unsigned char)i, (size_t)(i % 7 + 1) * 100);
    }
    for (int i = 0; i < MANY; i++) {
        size_t size = (size_t)(i % 7 + 1) * 100;
        CALL(cuMemcpyDtoH, back, many[i], size);
        for (size_t j = 0; j < size; j++)
            CHECK_EQUAL(back[j], (unsigned char)i);
        CALL(cuMemFree, many[i]);
    }
}

/* Compares the device's bytes with the model's. */
static void same(CUdeviceptr at)
{
    CALL(cuMemcpyDtoH, back, at, SIZE);
    for (size_t i = 0; i < SIZE; i++)
        CHECK_EQUAL(back[i], model[i]);
}

static void memsets(void)
{
    CUdeviceptr at;
    CUstream stream;
    CALL(cuMemAlloc, &at, SIZE);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        unsigned char a = (unsigned char)(0x11 + asynchronous);
        unsigned short b = (unsigned short)(0x2345 + asynchronous);
        unsigned c = 0x6789abcd + (unsigned)asynchronous;
        size_t pitch = 1000;
        memset(model, a, SIZE);
        for (size_t i = 0; i < 1001; i++)
            memcpy(model + 4098 + 2 * i, &b, 2);
        for (size_t i = 0; i < 501; i++)
            memcpy(model + 10004 + 4 * i, &c, 4);
        for (size_t row = 0; row < 10; row++) {
            memset(model + 20001 + row * pitch, 0x42, 333);
            for (size_t i = 0; i < 111; i++)
                memcpy(model + 40002 + row * pitch + 2 * i, &b, 2);
            for (size_t i = 0; i < 99; i++)
                memcpy(model + 60004 + row * pitch + 4 * i, &c, 4);
        }
        if (asynchronous) {
            CALL(cuMemsetD8Async, at, a, SIZE, stream);
            CALL(cuMemsetD16Async, at + 4098, b, 1001, stream);
            CALL(cuMemsetD32Async, at + 10004, c, 501, stream);
            CALL(cuMemsetD2D8Async, at + 20001, pitch, 0x42, 333, 10, stream);
            CALL(cuMemsetD2D16Async, at + 40002, pitch, b, 111, 10, stream);
            CALL(cuMemsetD2D32Async, at + 60004, pitch, c, 99, 10, stream);
            CALL(cuStreamSynchronize, stream);
        } else {
            CALL(cuMemsetD8, at, a, SIZE);
            CALL(cuMemsetD16, at + 4098, b, 1001);
            CALL(cuMemsetD32, at + 10004, c, 501);
            CALL(cuMemsetD2D8, at + 20001, pitch, 0x42, 333, 10);
            CALL(cuMemsetD2D16, at + 40002, pitch, b, 111, 10);
            CALL(cuMemsetD2D32, at + 60004, pitch, c, 99, 10);
            CALL(cuCtxSynchronize);
        }
        same(at);
    }
    EXPECT_ERROR(cuMemsetD16, at + 1, 1, 4);
    EXPECT_ERROR(cuMemsetD32, at + 2, 1, 4);
    CALL(cuStreamDestroy, stream);
    CALL(cuMemFree, at);
}

static void copies(const struct gpu *gpu)
{
    CUdeviceptr a, b, plane;
    CUstream stream;
    void *pinned;
    size_t pitch;
    for (size_t i = 0; i < SIZE; i++)
        model[i] = (unsigned char)(i * 31 + (i >> 8));
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &a, SIZE);
    CALL(cuMemAlloc, &b, SIZE);
    CALL(cuMemHostAlloc, &pinned, SIZE, CU_MEMHOSTALLOC_PORTABLE);

    /* In one dimension: each call with its own piece, at unaligned offsets. */
    memcpy(pinned, model, SIZE);
    CALL(cuMemcpyHtoD, a, model, SIZE);
    CALL(cuMemsetD8, b, 0, SIZE);
    CALL(cuMemcpyDtoD, b, a, 1001);
    /* These may still run when they return, and the stream does not wait for the default one. */
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoDAsync, b + 1001, a + 1001, 99999, stream);
    CALL(cuMemcpyHtoDAsync, b + 101000, (char *)pinned + 101000, 100000, stream);
    CALL(cuMemcpyHtoDAsync, b + 201000, model + 201000, 100000, stream);
    CALL(cuMemcpyAsync, b + 301000, a + 301000, 100000, stream);
    CALL(cuMemcpyAsync, b + 401000, (CUdeviceptr)(uintptr_t)pinned + 401000, 100000, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpy, b + 501000, (CUdeviceptr)(uintptr_t)pinned + 501000, 100000);
    CALL(cuMemcpyPeer, b + 601000, gpu->context, a + 601000, gpu->context, 100000);
    CALL(cuMemcpyPeerAsync, b + 701000, gpu->context, a + 701000, gpu->context, SIZE - 701000, stream);
    CALL(cuStreamSynchronize, stream);
    same(b);
    memset(pinned, 0, SIZE);
    CALL(cuMemcpyDtoHAsync, (char *)pinned + 7, b + 7, SIZE - 7, stream);
    CALL(cuMemcpyDtoHAsync, back, b, 4096, stream);
    CALL(cuStreamSynchronize, stream);
    CHECK(memcmp((char *)pinned + 7, model + 7, SIZE - 7) == 0 && memcmp(back, model, 4096) == 0);

    /* In two dimensions: 300 rows of 500 bytes, between rows of 700 here and of the device's pitch there. */
    CALL(cuMemAllocPitch, &plane, &pitch, 500, 300, 4);
    CHECK(pitch >= 500 && pitch % 4 == 0);
    CALL(cuMemsetD2D8, plane, pitch, 0xee, 500, 300);
    CUDA_MEMCPY2D in = { .srcXInBytes = 13, .srcY = 2, .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = model, .srcPitch = 700,
        .dstXInBytes = 5, .dstY = 1, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = plane, .dstPitch = pitch,
        .WidthInBytes = 450, .Height = 250 };
    CALL(cuMemcpy2D, &in);
    in.srcXInBytes += 450;
    in.dstXInBytes += 450;
    in.WidthInBytes = 20;
    CALL(cuMemcpy2DUnaligned, &in);
    CALL(cuCtxSynchronize);
    CUDA_MEMCPY2D out = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = plane, .srcPitch = pitch,
        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = pinned, .dstPitch = 512, .WidthInBytes = 500, .Height = 300 };
    CALL(cuMemcpy2DAsync, &out, stream);
    CALL(cuStreamSynchronize, stream);
    for (size_t y = 0; y < 300; y++)
        for (size_t x = 0; x < 500; x++) {
            bool inside = y >= 1 && y < 251 && x >= 5 && x < 475;
            CHECK_EQUAL(((unsigned char *)pinned)[y * 512 + x], inside ? model[(y + 1) * 700 + x + 8] : 0xee);
        }
    in.dstPitch = 10;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D, &in);

    /* In three: a box of 40 × 30 × 20 out of one of 64 × 50 × 25 into one of 100 × 60 × 22, and out again. */
    CALL(cuMemsetD8, b, 0, SIZE);
    CUDA_MEMCPY3D box = { .srcXInBytes = 3, .srcY = 4, .srcZ = 5, .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = model,
        .srcPitch = 64, .srcHeight = 50, .dstXInBytes = 7, .dstY = 8, .dstZ = 1, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = b, .dstPitch = 100, .dstHeight = 60, .WidthInBytes = 40, .Height = 30, .Depth = 20 };
    CALL(cuMemcpy3D, &box);
    CALL(cuMemcpyDtoH, back, b, SIZE);
    for (size_t i = 0; i < 100 * 60 * 22; i++) {
        size_t x = i % 100, y = i / 100 % 60, z = i / 6000;
        bool inside = x >= 7 && x < 47 && y >= 8 && y < 38 && z >= 1 && z < 21;
        CHECK_EQUAL(back[i], inside ? model[((z + 4) * 50 + y - 4) * 64 + x - 4] : 0);
    }
    CUDA_MEMCPY3D unbox = { .srcXInBytes = 7, .srcY = 8, .srcZ = 1, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = b,
        .srcPitch = 100, .srcHeight = 60, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = pinned, .dstPitch = 40, .dstHeight = 30,
        .WidthInBytes = 40, .Height = 30, .Depth = 20 };
    CALL(cuMemcpy3DAsync, &unbox, stream);
    CALL(cuStreamSynchronize, stream);
    for (size_t i = 0; i < 40 * 30 * 20; i++)
        CHECK_EQUAL(((unsigned char *)pinned)[i], model[((i / 1200 + 5) * 50 + i / 40 % 30 + 4) * 64 + i % 40 + 3]);

    /* Many copies in one call. */
    CUdeviceptr to[3] = { b, b + 1000, b + 5000 }, from[3] = { a + 5000, a + 100000, (CUdeviceptr)(uintptr_t)pinned };
    size_t sizes[3] = { 1000, 4000, 100 }, first[1] = { 0 }, failed;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    CUresult result = TRY(cuMemcpyBatchAsync_v2, to, from, sizes, 3, &attributes, first, 1, stream);
    if (result == CUDA_ERROR_NOT_FOUND)
        result = TRY(cuMemcpyBatchAsync_v1, to, from, sizes, 3, &attributes, first, 1, &failed, stream);
    printf("  a batch of copies: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS) {
        CALL(cuStreamSynchronize, stream);
        CALL(cuMemcpyDtoH, back, b, 5100);
        CHECK(memcmp(back, model + 5000, 1000) == 0 && memcmp(back + 1000, model + 100000, 4000) == 0 && memcmp(back + 5000, pinned, 100) == 0);
    }
    CALL(cuMemFree, plane);
    CALL(cuMemFree, a);
    CALL(cuMemFree, b);
    CALL(cuMemFreeHost, pinned);
    CALL(cuStreamDestroy, stream);
}

static unsigned long long attribute(CUpointer_attribute which, CUdeviceptr at)
{
    unsigned long long value = 0;
    CALL(cuPointerGetAttribute, &value, which, at);
    return value;
}

static void pinned(const struct gpu *gpu)
{
    uint32_t *host;
    unsigned flags;
    CUdeviceptr seen;
    CALL(cuMemHostAlloc, (void **)&host, SIZE, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    CALL(cuMemHostGetFlags, &flags, host);
    CHECK_EQUAL(flags & (CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    CALL(cuMemHostGetDevicePointer, &seen, host, 0);
    fill(gpu, seen, SIZE / 4, 21, NULL);
    CALL(cuCtxSynchronize);
    for (size_t i = 0; i < SIZE / 4; i++)
        CHECK_EQUAL(host[i], 21);
    host[5] = 22;
    CHECK_EQUAL(sum_of(gpu, seen, SIZE / 4), 21 * (SIZE / 4) + 1);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host), CU_MEMORYTYPE_HOST);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)(uintptr_t)host), seen);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, seen), (uintptr_t)host);
    CALL(cuMemFreeHost, host);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost, host);

    uint32_t *mine = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mine != MAP_FAILED);
    memset(mine, 0, SIZE);
    CALL(cuMemHostRegister, mine, SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister, mine, SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer, &seen, mine, 0);
    fill(gpu, seen, SIZE / 4, 23, NULL);
    CALL(cuCtxSynchronize);
    for (size_t i = 0; i < SIZE / 4; i++)
        CHECK_EQUAL(mine[i], 23);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)mine), CU_MEMORYTYPE_HOST);
    CALL(cuMemHostUnregister, mine);
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister, mine);
    munmap(mine, SIZE);

    CUdeviceptr managed;
    CUresult result = TRY(cuMemAllocManaged, &managed, SIZE, CU_MEM_ATTACH_GLOBAL);
    printf("  managed memory: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS) {
        uint32_t *words = (uint32_t *)(uintptr_t)managed;
        memset(words, 0, SIZE);
        fill(gpu, managed, SIZE / 8, 24, NULL);
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(words[0], 24);
        CHECK_EQUAL(words[SIZE / 8 - 1], 24);
        CHECK_EQUAL(words[SIZE / 8], 0);
        CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1);
        CALL(cuMemFree, managed);
    } else {
        CHECK_EQUAL(result, CUDA_ERROR_NOT_SUPPORTED);
    }
}

static void queries(const struct gpu *gpu)
{
    CUdeviceptr at, base, other;
    size_t size;
    CALL(cuMemAlloc, &at, 3 * MIB);
    CALL(cuMemAlloc, &other, 3 * MIB);
    CALL(cuMemGetAddressRange, &base, &size, at + 1234567);
    CHECK_EQUAL(base, at);
    CHECK_EQUAL(size, 3 * MIB);
    CALL(cuMemGetAddressRange, &base, NULL, at + 3 * MIB - 1);
    CHECK_EQUAL(base, at);
    EXPECT_ERROR(cuMemGetAddressRange, &base, &size, 0x1000);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, at), (uintptr_t)gpu->context);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 77), CU_MEMORYTYPE_DEVICE);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 77), at + 77);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), gpu->device);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), 0);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 99), at);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 99), 3 * MIB);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_MAPPED, at), 1);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 1);
    CHECK(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at) == attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at + 5000));
    CHECK(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at) != attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));

    unsigned type = 0, managed = 7;
    int ordinal = -5;
    CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER };
    void *where[] = { &type, &ordinal, &base };
    CALL(cuPointerGetAttributes, 3, which, where, at + 4);
    CHECK_EQUAL(type, CU_MEMORYTYPE_DEVICE);
    CHECK_EQUAL(ordinal, gpu->device);
    CHECK_EQUAL(base, at + 4);
    /* A foreign address: a single query fails, several queries answer with zeros. */
    int nothing = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&nothing);
    CALL(cuPointerGetAttributes, 3, which, where, (CUdeviceptr)(uintptr_t)&nothing);
    CHECK_EQUAL(type, 0);
    CALL(cuMemFree, at);
    CALL(cuMemFree, other);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
}

static uint64_t of_pool(CUmemoryPool pool, CUmemPool_attribute which)
{
    uint64_t value = 0;
    CALL(cuMemPoolGetAttribute, pool, which, &value);
    return value;
}

static void pools(const struct gpu *gpu)
{
    int supported;
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, gpu->device);
    if (!supported) {
        puts("  not supported: memory pools");
        return;
    }
    CUmemoryPool pool, own;
    CUstream stream;
    CUdeviceptr p, q;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuDeviceGetDefaultMemPool, &pool, gpu->device);
    for (int round = 0; round < 2; round++) {
        if (round == 0) {
            CALL(cuMemAllocAsync, &p, SIZE, stream);
        } else {
            CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device } };
            CALL(cuMemPoolCreate, &own, &props);
            pool = own;
            CALL(cuMemAllocFromPoolAsync, &p, SIZE, pool, stream);
        }
        fill(gpu, p, SIZE / 4, 31, stream);
        CALL(cuMemcpyDtoHAsync, back, p, SIZE, stream);
        CALL(cuStreamSynchronize, stream);
        for (size_t i = 0; i < SIZE; i++)
            CHECK_EQUAL(back[i], i % 4 == 0 ? 31 : 0);
        uint64_t used = of_pool(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), reserved = of_pool(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        CHECK(used >= SIZE && reserved >= used);
        CHECK(of_pool(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= used);

        /* With a threshold the pool keeps freed memory and reuses it, until it is trimmed. */
        uint64_t threshold = UINT64_MAX;
        CHECK_EQUAL(of_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
        CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
        CHECK_EQUAL(of_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
        CALL(cuMemFreeAsync, p, stream);
        CALL(cuStreamSynchronize, stream);
        CHECK_EQUAL(of_pool(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        CHECK(of_pool(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= SIZE);
        CALL(cuMemAllocFromPoolAsync, &q, SIZE, pool, stream);
        CALL(cuMemAllocFromPoolAsync, &p, SIZE, pool, stream);
        CHECK(p != q);
        CALL(cuMemFreeAsync, q, stream);
        CALL(cuStreamSynchronize, stream);
        /* The plain free function accepts such memory too. */
        CALL(cuMemFree, p);
        CALL(cuCtxSynchronize);
        CALL(cuMemPoolTrimTo, pool, 0);
        CHECK_EQUAL(of_pool(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        CHECK_EQUAL(of_pool(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
        threshold = 0;
        CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    }
    CALL(cuMemPoolDestroy, own);
    size_t total;
    CALL(cuDeviceTotalMem, &total, gpu->device);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync, &p, total + MIB, stream);
    CALL(cuStreamDestroy, stream);
}

static void two_devices(const struct gpu *gpu)
{
    int count, can;
    CALL(cuDeviceGetCount, &count);
    if (count < 2) {
        puts("  one device: no copy between two");
        return;
    }
    CUdevice second;
    CUcontext there;
    CUdeviceptr a, b, c;
    CALL(cuDeviceGet, &second, 1);
    CALL(cuDevicePrimaryCtxRetain, &there, second);
    CALL(cuDeviceCanAccessPeer, &can, gpu->device, second);
    printf("  the first device %s the second's memory\n", can ? "can access" : "cannot access");
    CALL(cuMemAlloc, &a, SIZE);
    CALL(cuMemAlloc, &c, SIZE);
    CALL(cuCtxPushCurrent, there);
    CALL(cuMemAlloc, &b, SIZE);
    CHECK_EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, b), second);
    CALL(cuCtxPopCurrent, NULL);
    CALL(cuMemcpyHtoD, a, model, SIZE);
    CALL(cuMemsetD8, c, 0, SIZE);
    CALL(cuMemcpyPeer, b, there, a, gpu->context, SIZE);
    CALL(cuMemcpyPeerAsync, c, gpu->context, b, there, SIZE, NULL);
    CALL(cuCtxSynchronize);
    same(c);
    if (can) {
        CALL(cuCtxEnablePeerAccess, there, 0);
        EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess, there, 0);
        fill(gpu, b, SIZE / 4, 41, NULL);
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(gpu, b, SIZE / 4), 41 * (SIZE / 4));
        CALL(cuCtxDisablePeerAccess, there);
    }
    CALL(cuMemFree, a);
    CALL(cuMemFree, c);
    CALL(cuCtxSetCurrent, there);
    CALL(cuMemFree, b);
    CALL(cuCtxSetCurrent, gpu->context);
    CALL(cuDevicePrimaryCtxRelease, second);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    accounting(&gpu);
    memsets();
    copies(&gpu);
    pinned(&gpu);
    queries(&gpu);
    pools(&gpu);
    two_devices(&gpu);
    puts("ok");
    return 0;
}
