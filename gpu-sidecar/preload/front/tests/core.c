/* A core that wraps cuInit and cuMemAlloc_v2 and writes every request to standard error. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct front {
    uint32_t abi_version;
    void *(*real_dlsym)(void *, const char *);
    const char *folder;
    void *(*own)(const char *);
};

struct core {
    uint32_t abi_version;
    void *(*wrap)(const char *, void *);
    void *(*wrap_nvml)(const char *, void *);
    void (*unknown)(const char *);
};

static const struct front *front;
static int (*real_init)(unsigned int);
static int (*real_alloc)(uint64_t *, size_t);

static void report(const char *what, const char *name)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %s\n", what, name);
    if (write(2, line, (size_t)length) != length)
        abort();
    /* The front has to preserve errno. */
    errno = ERANGE;
}

static int init(unsigned int flags)
{
    return 10000 + real_init(flags);
}

static int alloc(uint64_t *address, size_t size)
{
    return 10000 + real_alloc(address, size);
}

static void *wrap(const char *symbol, void *real)
{
    report("wrap", symbol);
    if (getenv("CORE_RECURSES")) {
        /* Through the front, which must not query the core again. */
        void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        report(dlsym(handle, "cuInit") == front->real_dlsym(handle, "cuInit") ? "same" : "other", "cuInit");
    }
    if (!strcmp(symbol, "cuInit")) {
        real_init = (int (*)(unsigned int))real;
        return (void *)init;
    }
    if (!strcmp(symbol, "cuMemAlloc_v2")) {
        real_alloc = (int (*)(uint64_t *, size_t))real;
        return (void *)alloc;
    }
    return real;
}

static void unknown(const char *name)
{
    report("unknown", name);
}

static struct core core = { 1, wrap, wrap, unknown };

const struct core *weir_preload_core(const struct front *lent)
{
    front = lent;
    if (front->abi_version != 1 || !front->real_dlsym || front->own("cuGetExportTable"))
        abort();
    if (getenv("CORE_REFUSES"))
        return NULL;
    if (getenv("CORE_IS_NEWER"))
        core.abi_version = 2;
    report("folder", front->folder);
    return &core;
}
