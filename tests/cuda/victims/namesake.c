/* Linked to a library that has functions with the driver's names, and to no driver: it gets that library's functions. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

extern int cuInit(unsigned flags);
extern int cuLaunchKernel(int a, int b);
extern int nvmlDeviceGetMemoryInfo(int a);
extern int namesake_asks(void);

#define CHECK(condition)                                              \
    do {                                                              \
        if (!(condition)) {                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

int main(void)
{
    CHECK(cuInit(1) == 4712);
    CHECK(cuLaunchKernel(6, 7) == 42);
    CHECK(nvmlDeviceGetMemoryInfo(1) == 2);
    CHECK(namesake_asks() == 4711);
    void *library = dlopen("libnamesake_library.so", RTLD_NOW);
    CHECK(library);
    CHECK(((int (*)(int, int))dlsym(library, "cuLaunchKernel"))(2, 3) == 6);
    CHECK(((int (*)(unsigned))dlsym(library, "cuInit"))(2) == 4713);
    /* The driver is still a separate library. */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) {
        CHECK(((int (*)(unsigned))dlsym(driver, "cuInit"))(0) == 0);
        CHECK(((int (*)(unsigned))dlsym(library, "cuInit"))(2) == 4713);
        CHECK(cuInit(1) == 4712);
    }
    puts("ok");
    return 0;
}
