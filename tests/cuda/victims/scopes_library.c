/* A library that asks the loader in the two ways whose answer depends on who asks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

static int calls;

/* In place of the C library's. */
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

/* Seen by this library, and by nobody else where it is opened locally. */
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
