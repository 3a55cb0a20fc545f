/* A kernel with a name like NCCL's, and another one.
 *
 * usage: collective PTX.  Prints the results of launching both. */
#include "../driver.h"

static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry ncclDevKernel_x()\n{\nret;\n}\n"
                           ".visible .entry plain()\n{\nret;\n}\n";

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    CUmodule module;
    CUfunction function;
    CALL(cuModuleLoadData, &module, text);
    const char *names[] = { "plain", "ncclDevKernel_x", "plain", "ncclDevKernel_x" };
    for (size_t i = 0; i < COUNT(names); i++) {
        CALL(cuModuleGetFunction, &function, module, names[i]);
        CUresult result = TRY(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        printf("%s: %d\n", names[i], result);
        CALL(cuCtxSynchronize);
    }
    spin(&gpu, 1000, 4, NULL);
    CALL(cuCtxSynchronize);
    puts("ok");
    return 0;
}
