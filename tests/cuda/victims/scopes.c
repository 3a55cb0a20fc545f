/* RTLD_NEXT and RTLD_DEFAULT: the loader finds the calling library by the return address. */
#include "../driver.h"

typedef void *(*find_t)(const char *);

int main(void)
{
    void *library = dlopen("libscopes_library.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    find_t find = (find_t)dlsym(library, "scopes_find"), next = (find_t)dlsym(library, "scopes_next");
    pid_t (*parent)(void) = (pid_t(*)(void))dlsym(library, "getppid");
    CHECK(find && next && parent);
    /* Searches after the library, not after the program. */
    CHECK(parent() == getppid());
    CHECK(((int (*)(void))dlsym(library, "scopes_calls"))() == 1);
    /* Searches the library's own scope. */
    CHECK(find("scopes_private") == dlsym(library, "scopes_private"));
    CHECK(!dlsym(RTLD_DEFAULT, "scopes_private"));
    CHECK(strstr(dlerror(), "scopes_private"));
    CHECK(!next("scopes_private"));
    CHECK(dlerror());
    CHECK(find("malloc") == dlsym(RTLD_DEFAULT, "malloc"));
    /* The driver, once it is in the global scope. */
    CHECK(!find("cuInit") && !next("cuInit"));
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))find("cuInit");
    CHECK(init && init == (CUresult(*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit"));
    CHECK(init(0) == CUDA_SUCCESS);
    init = (CUresult(*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
    CHECK(init && init(0) == CUDA_SUCCESS);
    puts("ok");
    return 0;
}
