/* A stand-in for the driver: each function returns a value that distinguishes it from the others. */
#include <stddef.h>
#include <stdint.h>

int cuInit(unsigned int flags)
{
    return 1000 + (int)flags;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

/* Eleven arguments: registers and stack. */
int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
           unsigned int bz, unsigned int shared, void *stream, void **params, void **extra)
{
    uint64_t sum = (uintptr_t)function + 2 * gx + 3 * gy + 5 * gz + 7 * bx + 11 * by + 13 * bz + 17 * shared +
               19 * (uintptr_t)stream + 23 * (uintptr_t)params + 29 * (uintptr_t)extra;
    return (int)sum;
}

int cuMemAlloc(unsigned int *address, unsigned int size)
{
    (void)address;
    return 2000 + (int)size;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    (void)address;
    return 3000 + (int)size;
}

int cuGetExportTable(const void **table, const void *id)
{
    (void)table;
    (void)id;
    return 4000;
}

int cuFromSomeLaterVersion(void)
{
    return 5000;
}
