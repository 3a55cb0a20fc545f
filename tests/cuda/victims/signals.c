/* Frequent signals, from a timer and from children that end: they are handled, on threads of the program alone, and
 * disturb nothing.
 *
 * usage: signals PTX */
#include "../driver.h"
#include <sys/syscall.h>
#include <sys/time.h>

enum { THREADS = 3 };

static volatile pid_t own[THREADS + 1];
static volatile sig_atomic_t alarms, children, strangers;

static void handle(int number)
{
    pid_t self = (pid_t)syscall(SYS_gettid);
    bool is_own = false;
    for (int i = 0; i <= THREADS; i++)
        is_own |= own[i] == self;
    if (!is_own)
        strangers = strangers + 1;
    if (number == SIGALRM)
        alarms = alarms + 1;
    else
        children = children + 1;
}

static struct gpu gpu;

static void *work(void *argument)
{
    int *index = argument;
    own[*index] = (pid_t)syscall(SYS_gettid);
    CALL(cuCtxSetCurrent, gpu.context);
    CUstream stream;
    CUdeviceptr at;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &at, 4096);
    for (uint32_t i = 0; i < 60; i++) {
        for (int j = 0; j < 10; j++)
            spin(&gpu, 100000, 4, stream);
        fill(&gpu, at, 1024, i, stream);
        uint32_t words[1024];
        CALL(cuMemcpyDtoHAsync, words, at, sizeof words, stream);
        CALL(cuStreamSynchronize, stream);
        CHECK_EQUAL(words[1023], i);
    }
    CALL(cuMemFree, at);
    CALL(cuStreamDestroy, stream);
    return NULL;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    own[THREADS] = (pid_t)syscall(SYS_gettid);
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGCHLD, &action, NULL) == 0);
    struct itimerval every = { { 0, 200 }, { 0, 200 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    gpu = gpu_open(argv[1]);
    pthread_t threads[THREADS];
    int index[THREADS];
    sigset_t all, before;
    sigfillset(&all);
    for (int i = 0; i < THREADS; i++) {
        index[i] = i;
        /* None is handled in a thread that is not recorded yet. */
        CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
        CHECK(pthread_create(&threads[i], NULL, work, &index[i]) == 0);
        CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        CHECK(child > 0);
        pid_t ended;
        while ((ended = waitpid(child, NULL, 0)) < 0 && errno == EINTR) {
        }
        CHECK_EQUAL(ended, child);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    /* Signals are sent to the process, and its other threads have them blocked: all go to the recorded threads. */
    CHECK(alarms > 10 && children > 0);
    CHECK_EQUAL(strangers, 0);
    puts("ok");
    return 0;
}
