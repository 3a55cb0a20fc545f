/* What the device's driver takes for the calls that an eviction and a restore consist of.  Each line replaces an assumption in
 * gpu-sidecar/device/parts.
 *
 * usage: costs PTX [--handles N]
 * N handles (default 64) of 2, 20 and 256 MiB, as far as half of the free memory has room for them: the median time of each call.
 * Copies: the time of 64 KiB copies one after the other in a stream, the rate of 256 MiB from pinned and from pageable memory. */
#include "driver.h"

enum { MIB = 1 << 20 };

static int by_number(const void *a, const void *b)
{
    int64_t one = *(const int64_t *)a, two = *(const int64_t *)b;
    return one < two ? -1 : one > two;
}

static double median_us(int64_t *ns, long count)
{
    qsort(ns, (size_t)count, sizeof *ns, by_number);
    return (double)ns[count / 2] / 1e3;
}

static void mappings(const struct gpu *gpu, long handles, size_t bytes)
{
    CUmemAllocationProp prop = { 0 };
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, gpu->device };
    CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    size_t free, total;
    CALL(cuMemGetInfo, &free, &total);
    while (handles > 1 && (size_t)handles * bytes > free / 2)
        handles /= 2;
    CUmemGenericAllocationHandle *handle = calloc((size_t)handles, sizeof *handle);
    int64_t *ns[5];
    for (int call = 0; call < 5; call++)
        ns[call] = calloc((size_t)handles, sizeof **ns);
    CUdeviceptr at;
    CALL(cuMemAddressReserve, &at, (size_t)handles * bytes, 0, 0, 0);
#define TIMED(call, statement) \
    for (long i = 0; i < handles; i++) { \
        int64_t begin = now_ns(); \
        statement; \
        ns[call][i] = now_ns() - begin; \
    }
    TIMED(0, CALL(cuMemCreate, &handle[i], bytes, &prop, 0))
    TIMED(1, CALL(cuMemMap, at + (size_t)i * bytes, bytes, 0, handle[i], 0))
    TIMED(2, CALL(cuMemSetAccess, at + (size_t)i * bytes, bytes, &access, 1))
    TIMED(3, CALL(cuMemUnmap, at + (size_t)i * bytes, bytes))
    TIMED(4, CALL(cuMemRelease, handle[i]))
    printf("%zu MiB, %ld handles, us: create %.1f, map %.1f, access %.1f, unmap %.1f, release %.1f\n", bytes / MIB, handles,
           median_us(ns[0], handles), median_us(ns[1], handles), median_us(ns[2], handles), median_us(ns[3], handles),
           median_us(ns[4], handles));
    /* Access for all mappings in one call. */
    for (long i = 0; i < handles; i++) {
        CALL(cuMemCreate, &handle[i], bytes, &prop, 0);
        CALL(cuMemMap, at + (size_t)i * bytes, bytes, 0, handle[i], 0);
    }
    int64_t begin = now_ns();
    CALL(cuMemSetAccess, at, (size_t)handles * bytes, &access, 1);
    printf("%zu MiB, access for all %ld in one call: %.1f us each\n", bytes / MIB, handles,
           (double)(now_ns() - begin) / 1e3 / (double)handles);
    begin = now_ns();
    CALL(cuMemUnmap, at, (size_t)handles * bytes);
    printf("%zu MiB, unmap of all %ld in one call: %.1f us each\n", bytes / MIB, handles,
           (double)(now_ns() - begin) / 1e3 / (double)handles);
    for (long i = 0; i < handles; i++)
        CALL(cuMemRelease, handle[i]);
    CALL(cuMemAddressFree, at, (size_t)handles * bytes);
}

static double rate(CUdeviceptr device, void *host, size_t bytes, int to_device)
{
    double best = 0;
    for (int round = 0; round < 3; round++) {
        int64_t begin = now_ns();
        if (to_device)
            CALL(cuMemcpyHtoD, device, host, bytes);
        else
            CALL(cuMemcpyDtoH, host, device, bytes);
        CALL(cuCtxSynchronize);
        double now = (double)bytes / (double)(now_ns() - begin);
        best = now > best ? now : best;
    }
    return best;
}

static void copies(void)
{
    enum { COUNT = 512, SMALL = 64 << 10, LARGE = 256 * MIB };
    CUdeviceptr device;
    void *pinned, *pageable = malloc(LARGE);
    CUstream stream;
    CALL(cuMemAlloc, &device, LARGE);
    CALL(cuMemHostAlloc, &pinned, LARGE, 0);
    memset(pageable, 1, LARGE);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (size_t bytes = 2 * MIB; bytes >= SMALL; bytes /= 2) {
        int64_t begin = now_ns();
        for (int i = 0; i < COUNT; i++)
            CALL(cuMemcpyHtoDAsync, device + (size_t)i % 64 * bytes, (char *)pinned + (size_t)i % 64 * bytes, bytes, stream);
        CALL(cuStreamSynchronize, stream);
        double each = (double)(now_ns() - begin) / 1e3 / COUNT;
        printf("copies of %zu KiB to the device: %.2f us each, %.1f GB/s\n", bytes >> 10, each, (double)bytes / each / 1e3);
    }
    printf("pinned: %.3g GB/s to the device, %.3g GB/s from it\n", rate(device, pinned, LARGE, 1), rate(device, pinned, LARGE, 0));
    printf("pageable: %.3g GB/s to the device, %.3g GB/s from it\n", rate(device, pageable, LARGE, 1), rate(device, pageable, LARGE, 0));
    CALL(cuStreamDestroy, stream);
    CALL(cuMemFreeHost, pinned);
    CALL(cuMemFree, device);
    free(pageable);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--handles N]");
    long handles = option(argc, argv, "--handles", 64);
    CHECK(handles > 0);
    struct gpu gpu = gpu_open(argv[1]);
    const size_t sizes[] = { 2, 20, 256 };
    for (int i = 0; i < 3; i++)
        mappings(&gpu, handles, sizes[i] * MIB);
    copies();
    puts("ok");
    return 0;
}
