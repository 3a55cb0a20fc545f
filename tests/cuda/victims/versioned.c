/* dlsym as requested by programs built on an old system, and on a new one: two versions of one name. */
#include "../driver.h"

#if defined(__x86_64__) && __GLIBC_PREREQ(2, 34)
extern void *old_dlsym(void *, const char *);
extern void *new_dlsym(void *, const char *);
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver new_dlsym, dlsym@GLIBC_2.34");
#else
#define old_dlsym dlsym
#define new_dlsym dlsym
#endif

int main(void)
{
    void *library = cu_library();
    void *old = old_dlsym(library, "cuInit"), *new = new_dlsym(library, "cuInit");
    CHECK(old && old == new);
    CHECK(old == dlsym(library, "cuInit"));
    CHECK(((CUresult(*)(unsigned))old)(0) == CUDA_SUCCESS);
    CHECK(old_dlsym(RTLD_DEFAULT, "malloc") == new_dlsym(RTLD_DEFAULT, "malloc"));
    CHECK(!old_dlsym(library, "cuNothingOfTheKind") && !new_dlsym(library, "cuNothingOfTheKind"));
    /* Looked up by version, it is the C library's. */
    CHECK(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5") || dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.17"));
    puts("ok");
    return 0;
}
