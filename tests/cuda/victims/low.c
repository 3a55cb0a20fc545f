/* A program that lowers its limit of files, before or after using the driver: files opened later have low numbers.
 *
 * usage: low PTX */
#include "../driver.h"
#include <sys/resource.h>

static void lower(rlim_t to)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = to;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static int work(const char *ptx, bool before)
{
    if (before)
        lower(48);
    struct gpu gpu = gpu_open(ptx);
    if (!before)
        lower(48);
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 4096);
    for (int i = 0; i < 100; i++) {
        fill(&gpu, at, 1024, (uint32_t)i, NULL);
        int file = open("/dev/null", O_RDONLY);
        CHECK(file >= 0 && file < 40);
        CHECK(close(file) == 0);
    }
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(&gpu, at, 1024), 99 * 1024);
    CALL(cuMemFree, at);
    return 0;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    for (int before = 0; before < 2; before++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            exit(work(argv[1], before));
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_EQUAL(status, 0);
        printf("lowered %s\n", before ? "before" : "after");
    }
    puts("ok");
    return 0;
}
