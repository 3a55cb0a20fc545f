/* Without a driver: none of its symbols is found, and the loader answers other look-ups as usual. */
#include "../driver.h"

int main(void)
{
    CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
    CHECK(strstr(dlerror(), "libcuda.so.1"));
    CHECK(!dlsym(RTLD_DEFAULT, "cuInit"));
    CHECK(strstr(dlerror(), "cuInit"));
    void *self = dlopen(NULL, RTLD_NOW);
    CHECK(self && !dlsym(self, "cuLaunchKernel"));
    CHECK(strstr(dlerror(), "cuLaunchKernel"));
    CHECK(!dlsym(self, "nvmlDeviceGetMemoryInfo"));
    CHECK(dlerror() && !dlerror());
    CHECK(dlsym(self, "malloc") == (void *)malloc);
    CHECK(!dlerror());
    puts("ok");
    return 0;
}
