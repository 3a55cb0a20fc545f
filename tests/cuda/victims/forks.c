/* Forks: before the driver is used, where parent and child each have it for themselves; and after, where the child's calls fail
 * and it can still start a program that uses it.
 *
 * usage: forks PTX */
#include "../driver.h"

static void use(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    CUdeviceptr memory;
    CALL(cuMemAlloc, &memory, 4096);
    fill(&gpu, memory, 1024, 5, NULL);
    CALL(cuCtxSynchronize);
    uint32_t words[1024];
    CALL(cuMemcpyDtoH, words, memory, sizeof words);
    CHECK_EQUAL(words[1023], 5);
    CALL(cuMemFree, memory);
}

static void wait_for(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_EQUAL(status, 0);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    if (argc > 2) {
        use(argv[1]);
        return 0;
    }
    pid_t child = fork();
    if (child == 0) {
        use(argv[1]);
        _exit(0);
    }
    use(argv[1]);
    wait_for(child);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        CUdeviceptr memory;
        printf("  in the child: cuMemAlloc %d, cuCtxSynchronize %d\n", TRY(cuMemAlloc, &memory, 4096), TRY(cuCtxSynchronize));
        fflush(stdout);
        _exit(0);
    }
    wait_for(child);
    child = fork();
    if (child == 0) {
        execv(argv[0], (char *[]){ argv[0], argv[1], "again", NULL });
        _exit(1);
    }
    wait_for(child);
    use(argv[1]);
    puts("ok");
    return 0;
}
