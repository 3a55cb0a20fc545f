/* A library that uses the two kinds of look-up whose result depends on the calling library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

static int calls;

/* Replaces the C library's function. */
pid_t getppid(void)
{
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
    calls++;
    return next ? next() : -1;
}

int scopes_calls(void)
{
    return calls;
}

/* Visible to this library, and to no other if it is opened locally. */
int scopes_private(void)
{
    return 17;
}

void *scopes_find(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

void *scopes_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}
