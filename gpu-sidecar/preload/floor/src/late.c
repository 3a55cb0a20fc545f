/* Functions that glibc exports only since a version later than the floor, or links statically into each library. They are
 * implemented here by system calls and by symbols which every glibc has. The structures are those of the 64-bit interface. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

struct stat64;

HIDDEN int fstatat64(int folder, const char *path, struct stat64 *result, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, path, result, flags);
}

HIDDEN int stat64(const char *path, struct stat64 *result)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, result, 0);
}

HIDDEN int lstat64(const char *path, struct stat64 *result)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}

HIDDEN int fstat64(int file, struct stat64 *result)
{
    return (int)syscall(SYS_newfstatat, file, "", result, AT_EMPTY_PATH);
}

HIDDEN int gettid(void)
{
    return (int)syscall(SYS_gettid);
}

HIDDEN int tgkill(int process, int thread, int signal)
{
    return (int)syscall(SYS_tgkill, process, thread, signal);
}

extern void *__dso_handle HIDDEN;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
extern int __cxa_atexit(void (*)(void *), void *, void *);

HIDDEN int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    return __register_atfork(before, parent, child, &__dso_handle);
}

HIDDEN int atexit(void (*function)(void))
{
    return __cxa_atexit((void (*)(void *))function, 0, &__dso_handle);
}
