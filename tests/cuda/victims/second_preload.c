/* Another library that is preloaded beside a hook in front of the driver: it exports dlsym and calls the next, and counts
 * the calls of one of the driver's functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*dlsym_t)(void *, const char *);

static dlsym_t next(void)
{
    static dlsym_t found;
    if (!found)
        found = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!found)
        found = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    return found;
}

static unsigned calls;

unsigned second_preload_calls(void)
{
    return calls;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    dlsym_t real = next();
    if (!real)
        abort();
    calls++;
    /* The C library would take this library for the caller; programs cope with such libraries. */
    return real(handle, name);
}
