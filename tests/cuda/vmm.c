/* Virtual memory management: reserve, create, map, set access; aliases; the same address with new memory behind it; sharing
 * with another process by file descriptor; misuse.
 *
 * usage: vmm PTX.  It starts itself as `vmm PTX import WORDS` and `vmm PTX no-access`. */
#include "driver.h"

enum { WORDS = 1 << 20, BYTES = 4 * WORDS };

static uint32_t pattern[WORDS], back[WORDS];

static CUmemAllocationProp property(CUdevice device)
{
    CUmemAllocationProp prop = { 0 };
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, device };
    return prop;
}

static void allow(CUdeviceptr at, size_t size, CUdevice device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, flags };
    CALL(cuMemSetAccess, at, size, &access, 1);
}

static size_t free_bytes(void)
{
    size_t free, total;
    CALL(cuMemGetInfo, &free, &total);
    CHECK(free <= total);
    return free;
}

/* The child's part of share(): imports the parent's memory, and sums it after the parent has released it. */
static int import_child(const char *ptx, uint64_t words)
{
    struct gpu gpu = gpu_open(ptx);
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec vector = { &byte, 1 };
    struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    CHECK(recvmsg(CHILD_SOCKET, &message, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS);
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);

    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size = words * 4;
    CALL(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    CALL(cuMemAddressReserve, &at, size, 0, 0, 0);
    CALL(cuMemMap, at, size, 0, handle, 0);
    CALL(cuMemRelease, handle);
    allow(at, size, gpu.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    write_all(CHILD_SOCKET, "i", 1);
    CHECK(read_all(CHILD_SOCKET, &byte, 1));
    uint64_t total = sum_of(&gpu, at, words);
    write_all(CHILD_SOCKET, &total, sizeof total);
    /* Written here, read by the parent. */
    CHECK(read_all(CHILD_SOCKET, &byte, 1));
    fill(&gpu, at, words, 5, NULL);
    CALL(cuCtxSynchronize);
    write_all(CHILD_SOCKET, "w", 1);
    CHECK(read_all(CHILD_SOCKET, &byte, 1));
    CALL(cuMemUnmap, at, size);
    CALL(cuMemAddressFree, at, size);
    return 0;
}

static void share(const struct gpu *gpu, const char *ptx, size_t size)
{
    CUmemAllocationProp prop = property(gpu->device);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    int fd = -1;
    uint64_t words = size / 4, total = 0;
    char number[32], byte = 'f';
    CALL(cuMemCreate, &handle, size, &prop, 0);
    CALL(cuMemAddressReserve, &at, size, 0, 0, 0);
    CALL(cuMemMap, at, size, 0, handle, 0);
    allow(at, size, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill(gpu, at, words, 3, NULL);
    CALL(cuCtxSynchronize);
    CALL(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CHECK(fd >= 0);

    snprintf(number, sizeof number, "%" PRIu64, words);
    struct child child = spawn_self((char *[]){ "vmm", (char *)ptx, "import", number, NULL });
    char control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec vector = { &byte, 1 };
    struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(child.socket, &message, 0) == 1);
    CHECK(read_all(child.socket, &byte, 1) && byte == 'i');

    /* The child holds it now: handle, mapping and descriptor may be released, the memory stays. */
    size_t before = free_bytes();
    CALL(cuMemUnmap, at, size);
    CALL(cuMemRelease, handle);
    CHECK(free_bytes() < before + size);
    write_all(child.socket, "g", 1);
    CHECK(read_all(child.socket, &total, sizeof total));
    CHECK_EQUAL(total, 3 * words);

    /* Import it back through our descriptor, at the old address. */
    CALL(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    CALL(cuMemMap, at, size, 0, handle, 0);
    allow(at, size, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQUAL(sum_of(gpu, at, words), 3 * words);
    write_all(child.socket, "w", 1);
    CHECK(read_all(child.socket, &byte, 1) && byte == 'w');
    CHECK_EQUAL(sum_of(gpu, at, words), 5 * words);
    write_all(child.socket, "e", 1);
    CHECK_EQUAL(reap(child), 0);
    CHECK_EQUAL(sum_of(gpu, at, words), 5 * words);
    CALL(cuMemUnmap, at, size);
    CALL(cuMemRelease, handle);
    CALL(cuMemAddressFree, at, size);
}

/* Mapped memory without access cannot be used: a kernel that touches it faults, and the context is lost. */
static int no_access_child(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    warm_up(&gpu);
    CUmemAllocationProp prop = property(gpu.device);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at, p;
    size_t grain;
    CALL(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CALL(cuMemCreate, &handle, grain, &prop, 0);
    CALL(cuMemAddressReserve, &at, grain, 0, 0, 0);
    CALL(cuMemMap, at, grain, 0, handle, 0);
    uint64_t words = 16;
    uint32_t value = 1;
    launch(gpu.fill, 1, 32, NULL, (void *[]){ &at, &words, &value });
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize);
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc, &p, 4096);
    return 0;
}

static void same_address(const struct gpu *gpu, CUdeviceptr at, size_t size, CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle, other;
    uint32_t *host;
    CALL(cuMemCreate, &handle, size, prop, 0);
    CALL(cuMemMap, at, size, 0, handle, 0);
    unsigned long long flags = 9;
    CUmemLocation location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device };
    CALL(cuMemGetAccess, &flags, &location, at);
    CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    allow(at, size, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CALL(cuMemGetAccess, &flags, &location, at);
    CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CALL(cuMemcpyHtoD, at, pattern, BYTES);
    uint64_t hash = hash_here(pattern, WORDS);
    CHECK_EQUAL(hash_of(gpu, at, WORDS), hash);

    /* Out: copy, unmap, release.  Other allocations take memory; back in: create, map, copy. */
    CALL(cuMemHostAlloc, (void **)&host, BYTES, CU_MEMHOSTALLOC_PORTABLE);
    size_t before = free_bytes();
    CALL(cuMemcpyDtoH, host, at, BYTES);
    CALL(cuCtxSynchronize);
    CALL(cuMemUnmap, at, size);
    CALL(cuMemRelease, handle);
    CHECK(free_bytes() >= before + size);
    CALL(cuMemCreate, &other, size, prop, 0);
    CALL(cuMemCreate, &handle, size, prop, 0);
    CALL(cuMemMap, at, size, 0, handle, 0);
    CALL(cuMemGetAccess, &flags, &location, at);
    CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    allow(at, size, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CALL(cuMemcpyHtoD, at, host, BYTES);
    CALL(cuMemRelease, other);
    CHECK_EQUAL(hash_of(gpu, at, WORDS), hash);
    CALL(cuMemcpyDtoH, back, at, BYTES);
    CHECK(memcmp(back, pattern, BYTES) == 0);
    fill(gpu, at, WORDS, 9, NULL);
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(gpu, at, WORDS), 9 * (uint64_t)WORDS);
    CALL(cuMemFreeHost, host);

    /* Memory whose handle is released stays while it is mapped, and its mapping leads back to a handle. */
    CUmemGenericAllocationHandle retained;
    CALL(cuMemRelease, handle);
    CHECK_EQUAL(sum_of(gpu, at, WORDS), 9 * (uint64_t)WORDS);
    CALL(cuMemRetainAllocationHandle, &retained, (void *)(uintptr_t)(at + 4096));
    CUmemAllocationProp found = { 0 };
    CALL(cuMemGetAllocationPropertiesFromHandle, &found, retained);
    CHECK_EQUAL(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    CHECK_EQUAL(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    CHECK_EQUAL(found.location.id, gpu->device);
    CHECK_EQUAL(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    /* The same memory at a second address. */
    CUdeviceptr alias;
    CALL(cuMemAddressReserve, &alias, size, 0, 0, 0);
    CHECK(alias != at);
    CALL(cuMemMap, alias, size, 0, retained, 0);
    CALL(cuMemRelease, retained);
    allow(alias, size, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQUAL(sum_of(gpu, alias, WORDS), 9 * (uint64_t)WORDS);
    fill(gpu, alias, WORDS, 10, NULL);
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(gpu, at, WORDS), 10 * (uint64_t)WORDS);
    CALL(cuMemUnmap, at, size);
    CHECK_EQUAL(sum_of(gpu, alias, WORDS), 10 * (uint64_t)WORDS);

    CUmemAccessDesc read_only = { location, CU_MEM_ACCESS_FLAGS_PROT_READ };
    CUresult result = TRY(cuMemSetAccess, alias, size, &read_only, 1);
    printf("  read-only access to device memory: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS) {
        CALL(cuMemGetAccess, &flags, &location, alias);
        CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
        CHECK_EQUAL(sum_of(gpu, alias, WORDS), 10 * (uint64_t)WORDS);
    }

    /* Queries on it. */
    unsigned long long value = 0;
    CUipcMemHandle ipc;
    CALL(cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, alias);
    CHECK_EQUAL(value, 0);
    EXPECT_ERROR(cuIpcGetMemHandle, &ipc, alias);
    value = 0;
    CALL(cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, alias);
    CHECK_EQUAL(value, CU_MEMORYTYPE_DEVICE);
    value = 0;
    CALL(cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, alias);
    CHECK_EQUAL(value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr base;
    size_t range;
    CALL(cuMemGetAddressRange, &base, &range, alias + 8192);
    CHECK(base <= alias && base + range >= alias + 8192);
    CALL(cuMemUnmap, alias, size);
    CALL(cuMemAddressFree, alias, size);
}

static void misuse(const struct gpu *gpu, CUdeviceptr at, size_t grain, CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle, second, none;
    CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, gpu->device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &none, grain + 1, prop, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &none, 0, prop, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &p, 0, 0, 0, 0);
    EXPECT_ERROR(cuMemAddressReserve, &p, grain + 1, 0, 0, 0);
    CALL(cuMemCreate, &handle, 2 * grain, prop, 0);
    CALL(cuMemCreate, &second, grain, prop, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap, at, grain, grain, handle, 0);
    EXPECT_ERROR(cuMemMap, at, 4 * grain, 0, handle, 0);
    CALL(cuMemMap, at, 2 * grain, 0, handle, 0);
    EXPECT_ERROR(cuMemMap, at + grain, grain, 0, second, 0);
    CALL(cuMemMap, at + 2 * grain, grain, 0, second, 0);
    /* One call may set the access of several adjacent mappings, but not of a gap. */
    EXPECT_ERROR(cuMemSetAccess, at, 4 * grain, &access, 1);
    CALL(cuMemSetAccess, at, 3 * grain, &access, 1);
    fill(gpu, at, 3 * grain / 4, 1, NULL);
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(gpu, at, 3 * grain / 4), 3 * grain / 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap, at, grain);
    CHECK_EQUAL(sum_of(gpu, at, 3 * grain / 4), 3 * grain / 4);
    CALL(cuMemUnmap, at, 3 * grain);
    EXPECT_ERROR(cuMemUnmap, at, 3 * grain);
    CALL(cuMemRelease, handle);
    CALL(cuMemRelease, second);
    EXPECT_ERROR(cuMemImportFromShareableHandle, &none, (void *)(intptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    /* More than the device's memory. */
    size_t total;
    CALL(cuDeviceTotalMem, &total, gpu->device);
    size_t much = (total / grain + 16) * grain;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate, &none, much, prop, 0);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    if (argc > 3 && strcmp(argv[2], "import") == 0)
        return import_child(argv[1], strtoull(argv[3], NULL, 10));
    if (argc > 2 && strcmp(argv[2], "no-access") == 0)
        return no_access_child(argv[1]);
    for (uint32_t i = 0; i < WORDS; i++)
        pattern[i] = i * 2246822519u + 1;

    /* Granularity and physical memory need an initialised driver, but no context. */
    cu_open();
    CALL(cuInit, 0);
    CUdevice device;
    CALL(cuDeviceGet, &device, 0);
    int supported;
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    CHECK(supported);
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
    CHECK(supported);
    CUmemAllocationProp prop = property(device);
    size_t grain, recommended;
    CALL(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CALL(cuMemGetAllocationGranularity, &recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    printf("  granularity %zu, recommended %zu\n", grain, recommended);
    CHECK(grain > 0 && (grain & (grain - 1)) == 0 && recommended % grain == 0);
    CUmemGenericAllocationHandle early;
    CALL(cuMemCreate, &early, grain, &prop, 0);

    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    CALL(cuMemRelease, early);
    size_t size = (BYTES + grain - 1) / grain * grain;
    CUdeviceptr at, near;
    CALL(cuMemAddressReserve, &at, 8 * size, 0, 0, 0);
    CHECK(at && at % grain == 0);
    CALL(cuMemAddressReserve, &near, size, 16 * size, 0, 0);
    CHECK(near % (16 * size) == 0);
    CALL(cuMemAddressFree, near, size);
    same_address(&gpu, at, size, &prop);
    misuse(&gpu, at, grain, &prop);
    CALL(cuMemAddressFree, at, 8 * size);
    share(&gpu, argv[1], size);
    struct child child = spawn_self((char *[]){ "vmm", argv[1], "no-access", NULL });
    CHECK_EQUAL(reap(child), 0);
    /* The child's fault is not ours (unless both are clients of one MPS server). */
    CALL(cuCtxSynchronize);
    puts("ok");
    return 0;
}
