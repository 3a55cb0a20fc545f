/* A library which is no driver, but has some functions with the driver's names. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuInit(unsigned flags)
{
    return 4711 + (int)flags;
}

int cuLaunchKernel(int a, int b)
{
    return a * b;
}

int nvmlDeviceGetMemoryInfo(int a)
{
    return a + 1;
}

/* By its own symbol, and by look-ups from this library. */
int namesake_asks(void)
{
    int (*here)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
    int found = here ? here(0) : 4711;
    return found == 4711 && cuLaunchKernel(3, 4) == 12 ? cuInit(0) : -1;
}
