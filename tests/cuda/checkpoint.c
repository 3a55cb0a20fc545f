/* The driver's checkpoint of another process: its device memory goes to the host and comes back.
 *
 * usage: checkpoint PTX [MIB].  It starts itself as `checkpoint PTX MIB hold`. */
#include "driver.h"

static int hold(const char *ptx, size_t size)
{
    struct gpu gpu = gpu_open(ptx);
    warm_up(&gpu);
    CUdeviceptr at;
    CUstream stream;
    uint64_t words = size / 4, answer;
    char byte = 0;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &at, size);
    fill(&gpu, at, words, 3, stream);
    CALL(cuStreamSynchronize, stream);
    write_all(CHILD_SOCKET, "r", 1);
    /* On each request: sums the memory again, with the old pointer, stream and functions. */
    while (read_all(CHILD_SOCKET, &byte, 1)) {
        answer = hash_of(&gpu, at, words);
        fill(&gpu, at + 4, 1, (uint32_t)byte, stream);
        CALL(cuStreamSynchronize, stream);
        write_all(CHILD_SOCKET, &answer, sizeof answer);
    }
    return 0;
}

static size_t free_bytes(void)
{
    size_t free, total;
    CALL(cuMemGetInfo, &free, &total);
    return free;
}

static CUprocessState state_of(int pid)
{
    CUprocessState state = (CUprocessState)99;
    CALL(cuCheckpointProcessGetState, pid, &state);
    return state;
}

static bool answers(struct child child, int ms)
{
    struct pollfd poll_on = { child.socket, POLLIN, 0 };
    return poll(&poll_on, 1, ms) == 1;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [MIB]");
    long mib = argc > 2 ? strtol(argv[2], NULL, 10) : 256;
    CHECK(mib > 0);
    size_t size = (size_t)mib << 20;
    if (argc > 3)
        return hold(argv[1], size);
    gpu_open(argv[1]);
    if (!cu.cuCheckpointProcessCheckpoint) {
        puts("  not supported: this driver has no checkpoint functions");
        puts("ok");
        return 0;
    }
    char number[32], byte;
    snprintf(number, sizeof number, "%ld", mib);
    struct child child = spawn_self((char *[]){ "checkpoint", argv[1], number, "hold", NULL });
    CHECK(read_all(child.socket, &byte, 1) && byte == 'r');
    int pid = child.pid;
    uint64_t words = size / 4, first, second, third;
    uint32_t *model = malloc(size);
    CHECK(model);
    for (uint64_t i = 0; i < words; i++)
        model[i] = 3;

    write_all(child.socket, "\x05", 1);
    CHECK(read_all(child.socket, &first, sizeof first));
    CHECK_EQUAL(first, hash_here(model, words));
    model[1] = 5;

    CUprocessState state;
    CUcheckpointLockArgs lock = { .timeoutMs = 10000 };
    CUcheckpointArgs plain = { { 0 } };
    CHECK_EQUAL(state_of(pid), CU_PROCESS_STATE_RUNNING);
    EXPECT_ERROR(cuCheckpointProcessGetState, 0x7ffffff0, &state);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint, pid, &plain);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock, pid, NULL);
    CALL(cuCheckpointProcessLock, pid, &lock);
    CHECK_EQUAL(state_of(pid), CU_PROCESS_STATE_LOCKED);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessLock, pid, &lock);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore, pid, &plain);

    /* Locked, it blocks in its next call. */
    write_all(child.socket, "\x07", 1);
    CHECK(!answers(child, 300));
    size_t before = free_bytes();
    int64_t begin = now_ns();
    CALL(cuCheckpointProcessCheckpoint, pid, &plain);
    int64_t out = now_ns() - begin;
    CHECK_EQUAL(state_of(pid), CU_PROCESS_STATE_CHECKPOINTED);
    size_t away = free_bytes();
    CHECK(away >= before + size);
    CHECK(!answers(child, 300));
    begin = now_ns();
    CALL(cuCheckpointProcessRestore, pid, &plain);
    int64_t in = now_ns() - begin;
    CHECK_EQUAL(state_of(pid), CU_PROCESS_STATE_LOCKED);
    CHECK(free_bytes() + size <= away);
    CHECK(!answers(child, 300));
    CALL(cuCheckpointProcessUnlock, pid, NULL);
    CHECK_EQUAL(state_of(pid), CU_PROCESS_STATE_RUNNING);
    CHECK(read_all(child.socket, &second, sizeof second));
    CHECK_EQUAL(second, hash_here(model, words));
    model[1] = 7;
    write_all(child.socket, "\x09", 1);
    CHECK(read_all(child.socket, &third, sizeof third));
    CHECK_EQUAL(third, hash_here(model, words));
    printf("  %ld MiB: out in %" PRId64 " ns, back in %" PRId64 " ns, %zu bytes freed\n", mib, out, in, away - before);

    /* Locked and unlocked without a checkpoint between. */
    CALL(cuCheckpointProcessLock, pid, NULL);
    CALL(cuCheckpointProcessUnlock, pid, NULL);
    write_all(child.socket, "\x0b", 1);
    CHECK(read_all(child.socket, &third, sizeof third));
    free(model);
    CHECK_EQUAL(reap(child), 0);
    puts("ok");
    return 0;
}
