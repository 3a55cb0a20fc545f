/* Two processes, one limit: together they get as much as one alone; memory freed by one is available to the other; memory held
 * by one is reported to the other.  Also memory of one, opened in the other by its legacy handle.
 *
 * usage: pair PTX [--slack MIB]
 *   --slack: unused memory allowed in the claims of both (default 0, as without a limit below the device's).
 * It starts itself as `pair PTX other`, and prints:
 *   one process takes what there is
 *   two processes share it
 *   a process that ends gives back what it held
 *   an opened handle
 *   ok */
#include "../driver.h"

enum { KIB = 1024, MIB = 1024 * KIB, MOST = 8192, CHUNK = 4 * MIB };

static CUdeviceptr taken[MOST];

static size_t take(size_t most)
{
    size_t count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < most && (result = TRY(cuMemAlloc, &taken[count], CHUNK)) == CUDA_SUCCESS)
        count++;
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    return count;
}

static void give(size_t count)
{
    for (size_t i = 0; i < count; i++)
        CALL(cuMemFree, taken[i]);
}

static size_t free_now(void)
{
    size_t free, total;
    CALL(cuMemGetInfo, &free, &total);
    return free;
}

/* Executes commands: 't' allocates at most this many chunks and answers the number; 'g' frees all; 'f' answers the free bytes;
 * 'o' opens a handle, answers the sum of this many words there, fills them, and closes it; 'q' ends. */
static int other(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    warm_up(&gpu);
    size_t count = 0;
    char what;
    write_all(CHILD_SOCKET, "r", 1);
    while (read_all(CHILD_SOCKET, &what, 1) && what != 'q') {
        uint64_t number = 0;
        if (what == 't') {
            CHECK(read_all(CHILD_SOCKET, &number, sizeof number));
            count = take(number);
            number = count;
        } else if (what == 'g') {
            give(count);
            count = 0;
        } else if (what == 'f') {
            number = free_now();
        } else if (what == 'o') {
            CUipcMemHandle handle;
            CUdeviceptr at, again;
            uint64_t words;
            unsigned long long value = 0;
            CHECK(read_all(CHILD_SOCKET, &handle, sizeof handle) && read_all(CHILD_SOCKET, &words, sizeof words));
            CALL(cuIpcOpenMemHandle, &at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
            CALL(cuIpcOpenMemHandle, &again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
            CHECK_EQUAL(again, at);
            CHECK(TRY(cuMemFree, at) != CUDA_SUCCESS);
            CALL(cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
            CHECK_EQUAL(value, CU_MEMORYTYPE_DEVICE);
            number = sum_of(&gpu, at, words);
            CALL(cuIpcCloseMemHandle, again);
            fill(&gpu, at, words, 2, NULL);
            CALL(cuIpcCloseMemHandle, at);
            CHECK(TRY(cuIpcCloseMemHandle, at) != CUDA_SUCCESS);
        }
        write_all(CHILD_SOCKET, &number, sizeof number);
    }
    return 0;
}

static uint64_t tell(struct child child, char what, uint64_t number)
{
    write_all(child.socket, &what, 1);
    if (what == 't')
        write_all(child.socket, &number, sizeof number);
    CHECK(read_all(child.socket, &number, sizeof number));
    return number;
}

static void opened(const struct gpu *gpu, struct child child)
{
    /* A small one among others, a large one, and one of several handles if there is room. */
    const size_t sizes[] = { 40 * KIB, 5 * MIB, (size_t)1200 * MIB };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        if (sizes[i] > free_now() / 2)
            continue;
        CUdeviceptr before, at, behind;
        CUipcMemHandle handle;
        uint64_t words = sizes[i] / 4, total;
        CALL(cuMemAlloc, &before, 3000);
        CALL(cuMemAlloc, &at, sizes[i]);
        CALL(cuMemAlloc, &behind, 3000);
        CALL(cuMemsetD8, before, 7, 3000);
        CALL(cuMemsetD8, behind, 7, 3000);
        CALL(cuMemsetD32, at, 1, words);
        CALL(cuCtxSynchronize);
        CALL(cuIpcGetMemHandle, &handle, at);
        write_all(child.socket, "o", 1);
        write_all(child.socket, &handle, sizeof handle);
        write_all(child.socket, &words, sizeof words);
        CHECK(read_all(child.socket, &total, sizeof total));
        CHECK_EQUAL(total, words);
        CHECK_EQUAL(sum_of(gpu, at, words), 2 * words);
        unsigned char bytes[3000];
        CALL(cuMemcpyDtoH, bytes, before, sizeof bytes);
        CHECK(bytes[0] == 7 && bytes[2999] == 7);
        CALL(cuMemcpyDtoH, bytes, behind, sizeof bytes);
        CHECK(bytes[0] == 7 && bytes[2999] == 7);
        CALL(cuMemFree, before);
        CALL(cuMemFree, at);
        CALL(cuMemFree, behind);
    }
    puts("an opened handle");
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--slack MIB]");
    if (argc > 2 && strcmp(argv[2], "other") == 0)
        return other(argv[1]);
    size_t slack = (size_t)option(argc, argv, "--slack", 0) * MIB / CHUNK;
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    struct child child = spawn_self((char *[]){ "pair", argv[1], "other", NULL });
    char byte;
    CHECK(read_all(child.socket, &byte, 1));

    size_t all = take(MOST), told = free_now() / CHUNK;
    CHECK(all < MOST && told <= slack);
    CHECK_EQUAL(tell(child, 't', MOST) > slack, 0);
    tell(child, 'g', 0);
    give(all);
    puts("one process takes what there is");

    size_t half = take(all / 2), before = tell(child, 'f', 0) / CHUNK;
    CHECK_EQUAL(half, all / 2);
    CHECK(before + half <= all + slack);
    size_t rest = tell(child, 't', MOST);
    CHECK(half + rest <= all + slack && half + rest + 2 * slack >= all);
    CUdeviceptr none;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc, &none, (2 * slack + 1) * CHUNK);
    tell(child, 'g', 0);
    puts("two processes share it");

    CHECK(tell(child, 't', all / 4) > 0);
    write_all(child.socket, "q", 1);
    CHECK_EQUAL(reap(child), 0);
    puts("a process that ends gives back what it held");

    child = spawn_self((char *[]){ "pair", argv[1], "other", NULL });
    CHECK(read_all(child.socket, &byte, 1));
    give(half);
    opened(&gpu, child);
    write_all(child.socket, "q", 1);
    CHECK_EQUAL(reap(child), 0);
    puts("ok");
    return 0;
}
