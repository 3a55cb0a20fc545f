/* Forks without exec after the driver is in use, as data loaders do, while other threads launch and allocate: what
 * the child does without the driver works, and its end does not affect the parent.
 *
 * usage: workers PTX */
#include "../driver.h"
#include <sys/syscall.h>

static struct gpu gpu;
static volatile bool stop;

static void *work(void *argument)
{
    (void)argument;
    CUstream stream;
    CALL(cuCtxSetCurrent, gpu.context);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    while (!stop) {
        CUdeviceptr at;
        for (int i = 0; i < 8; i++)
            spin(&gpu, 20000, 4, stream);
        CALL(cuMemAlloc, &at, 3000);
        CALL(cuMemFree, at);
        CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamDestroy, stream);
    return NULL;
}

static void *nothing(void *argument)
{
    return argument;
}

/* Work of a worker: memory, threads, files, the loader; not the driver. */
static void child(int how)
{
    void *memory = malloc(1 << 20);
    CHECK(memory);
    memset(memory, how, 1 << 20);
    free(memory);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(dlsym(RTLD_DEFAULT, "malloc"));
    CHECK(dlsym(cu_library(), "cuInit"));
    FILE *file = fopen("/dev/null", "w");
    CHECK(file && fprintf(file, "%d", how) > 0 && fclose(file) == 0);
    _exit(how);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    gpu = gpu_open(argv[1]);
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int how = 0; how < 20; how++) {
        /* Some calls bypass the C library. */
        pid_t own = how % 4 == 3 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
        if (own == 0) {
            if (how % 4 == 3)
                syscall(SYS_exit_group, how);
            child(how);
        }
        int status;
        CHECK(own > 0 && waitpid(own, &status, 0) == own);
        CHECK(WIFEXITED(status));
        CHECK_EQUAL(WEXITSTATUS(status), how);
    }
    stop = true;
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 4096);
    fill(&gpu, at, 1024, 3, NULL);
    CHECK_EQUAL(sum_of(&gpu, at, 1024), 3 * 1024);
    CALL(cuMemFree, at);
    puts("ok");
    return 0;
}
