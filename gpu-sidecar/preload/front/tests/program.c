/* A program that obtains driver functions in one of several ways and checks them. Without an argument it uses no driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                   \
    do {                                                                          \
        if (!(what)) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);    \
            exit(1);                                                      \
        }                                                                     \
    } while (0)

typedef int init_function(unsigned int);
typedef int alloc_function(uint64_t *, size_t);
typedef int launch_function(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                unsigned int, void *, void **, void **);

static int wrapped;

static void *driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
    return handle;
}

static int init(void *function)
{
    CHECK(function);
    return ((init_function *)function)(7);
}

static void by_handle(void)
{
    void *handle = driver();
    errno = EDOM;
    void *function = dlsym(handle, "cuInit");
    CHECK(errno == EDOM);
    CHECK(!dlerror());
    CHECK(init(function) == (wrapped ? 11007 : 1007));
    CHECK(dlsym(handle, "cuInit") == function);
    alloc_function *alloc = (alloc_function *)dlsym(handle, "cuMemAlloc_v2");
    CHECK(alloc(NULL, 5) == (wrapped ? 13005 : 3005));
    /* A different function from the one before, although CUDA's headers give both the same name. */
    alloc = (alloc_function *)dlsym(handle, "cuMemAlloc");
    CHECK(alloc(NULL, 5) == 2005);
    CHECK(((int (*)(void))dlsym(handle, "cuFromSomeLaterVersion"))() == 5000);
    CHECK(((int (*)(void *, void *))dlsym(handle, "cuGetExportTable"))(NULL, NULL) == 4000);
    CHECK(!dlsym(handle, "cuNothing"));
    CHECK(dlerror());
    CHECK(!dlerror());
    CHECK(!dlsym(handle, "cuLaunchGrid"));
    CHECK(strstr(dlerror(), "cuLaunchGrid"));
    CHECK(!dlclose(handle));
    /* Wrapped functions stay loaded. */
    if (wrapped)
        CHECK(init(function) == 11007);
}

static void by_default(void)
{
    CHECK(!dlsym(RTLD_DEFAULT, "cuInit"));
    CHECK(strstr(dlerror(), "cuInit"));
    void *self = dlopen(NULL, RTLD_NOW);
    CHECK(!dlsym(self, "cuInit"));
    CHECK(strstr(dlerror(), "cuInit"));
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    CHECK(init(dlsym(RTLD_DEFAULT, "cuInit")) == (wrapped ? 11007 : 1007));
    CHECK(!dlerror());
    CHECK(init(dlsym(self, "cuInit")) == (wrapped ? 11007 : 1007));
    /* The driver lacks it. */
    CHECK(!dlsym(RTLD_DEFAULT, "cuGraphLaunch"));
    CHECK(dlerror());
    int version = 0;
    CHECK(!((int (*)(int *))dlsym(RTLD_DEFAULT, "cuDriverGetVersion"))(&version) && version == 13000);
    CHECK(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc);
    CHECK(dlsym(RTLD_NEXT, "malloc") == (void *)malloc);
    CHECK(dlsym(RTLD_NEXT, "dlsym") != NULL);
}

static pthread_barrier_t barrier;

static void *in_thread(void *argument)
{
    (void)argument;
    pthread_barrier_wait(&barrier);
    return (void *)(intptr_t)init(dlsym(driver(), "cuInit"));
}

static void by_threads(void)
{
    enum { COUNT = 32 };
    pthread_t threads[COUNT];
    pthread_barrier_init(&barrier, NULL, COUNT);
    for (int i = 0; i < COUNT; i++)
        CHECK(!pthread_create(&threads[i], NULL, in_thread, NULL));
    for (int i = 0; i < COUNT; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result));
        CHECK((intptr_t)result == (wrapped ? 11007 : 1007));
    }
}

#ifdef LINKED
extern int cuInit(unsigned int);
extern alloc_function cuMemAlloc_v2;
extern launch_function cuLaunchKernel;

static void by_link(void)
{
    int stack[4];
    errno = EDOM;
    int sum = cuLaunchKernel((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void **)10, (void **)stack);
    CHECK(errno == EDOM);
    CHECK(sum == (int)(1 + 4 + 9 + 20 + 35 + 66 + 91 + 136 + 171 + 230 + 29 * (uintptr_t)stack));
    for (int i = 0; i < 3; i++)
        CHECK(cuInit(7) == (wrapped ? 11007 : 1007));
    CHECK(cuMemAlloc_v2(NULL, 5) == (wrapped ? 13005 : 3005));
    /* A function has one address unless it is looked up by another handle. */
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") == (void *)cuInit);
}
#endif

static void by_fork(void)
{
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        by_handle();
        if (!child)
            _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && !status);
    }
}

int main(int count, char **arguments)
{
    const char *way = count > 1 ? arguments[1] : "";
    wrapped = count > 2 && !strcmp(arguments[2], "wrapped");
    if (!strcmp(way, "handle"))
        by_handle();
    if (!strcmp(way, "default"))
        by_default();
    if (!strcmp(way, "threads"))
        by_threads();
    if (!strcmp(way, "fork"))
        by_fork();
#ifdef LINKED
    if (!strcmp(way, "link"))
        by_link();
#endif
    puts("ok");
    return 0;
}
