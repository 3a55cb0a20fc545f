/* A thread ends the process while other threads launch, wait and allocate: it ends with the thread's exit code, in each way to
 * end.
 *
 * usage: exits PTX */
#include "../driver.h"

static struct gpu gpu;

static void *work(void *argument)
{
    (void)argument;
    CUstream stream;
    CUdeviceptr at;
    if (TRY(cuCtxSetCurrent, gpu.context) != CUDA_SUCCESS || TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    /* While the process ends the driver may return any result. */
    for (;;) {
        uint64_t ns = 50000;
        uint32_t zero = 0;
        void *parameters[] = { &ns, &zero, &zero, &zero };
        for (int i = 0; i < 8; i++)
            (void)TRY(cuLaunchKernel, gpu.spin, 4, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
        if (TRY(cuMemAlloc, &at, 3000) == CUDA_SUCCESS)
            (void)TRY(cuMemFree, at);
        (void)TRY(cuStreamSynchronize, stream);
    }
}

static void *end(void *argument)
{
    int *how = argument;
    sleep_ms(30);
    if (*how % 3 == 0)
        exit(40 + *how);
    if (*how % 3 == 1)
        _exit(40 + *how);
    kill(getpid(), SIGKILL);
    return NULL;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    for (int how = 0; how < 6; how++) {
        pid_t child = fork();
        if (child == 0) {
            gpu = gpu_open(argv[1]);
            pthread_t threads[4];
            for (size_t i = 0; i < COUNT(threads); i++)
                CHECK(pthread_create(&threads[i], NULL, i == 3 ? end : work, &how) == 0);
            for (size_t i = 0; i < COUNT(threads); i++)
                pthread_join(threads[i], NULL);
            return 1;
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        if (how % 3 == 2)
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            CHECK_EQUAL(WEXITSTATUS(status), 40 + how);
    }
    puts("ok");
    return 0;
}
