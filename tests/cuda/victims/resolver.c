/* Requests to cuGetProcAddress and their answers: see the documentation of the driver's entry points. */
#include "../driver.h"

typedef CUresult (*cuGetProcAddress_t)(const char *, void **, int, uint64_t);

static void *found(cuGetProcAddress_v2_t resolve, const char *name, int version, uint64_t flags)
{
    void *pointer = NULL;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)99;
    CHECK(resolve(name, &pointer, version, flags, &status) == CUDA_SUCCESS);
    CHECK(pointer && status == CU_GET_PROC_ADDRESS_SUCCESS);
    return pointer;
}

static void asks(cuGetProcAddress_v2_t resolve, void *library)
{
    /* By default a name gives the function for the program's stream 0; that for the calling thread's stream 0 is a different
     * one. */
    void *legacy = found(resolve, "cuLaunchKernel", 4000, 0), *own = found(resolve, "cuLaunchKernel", 7000, 2);
    CHECK(legacy != own);
    CHECK(found(resolve, "cuLaunchKernel", 12000, 1) == legacy && found(resolve, "cuLaunchKernel", 12000, 2) == own);
    CHECK(found(resolve, "cuMemcpyHtoD", 7000, 2) != found(resolve, "cuMemcpyHtoD", 7000, 1));
    /* This function exists once, for either stream. */
    CHECK(found(resolve, "cuMemAlloc", 12000, 2) == found(resolve, "cuMemAlloc", 12000, 1));
    CHECK(found(resolve, "cuCtxCreate", 3020, 0) != found(resolve, "cuCtxCreate", 11040, 0));
    /* Users of the driver's tables check them: the function that returns them is the driver's own. */
    CHECK(found(resolve, "cuGetExportTable", 3000, 0) == dlsym(library, "cuGetExportTable"));

    void *pointer = (void *)(uintptr_t)1;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)99;
    CUresult result = resolve("cuNothingOfTheKind", &pointer, 12000, 0, &status);
    printf("  unknown: %d, status %d, %s\n", result, status, pointer ? "a pointer" : "null");
    CHECK(!pointer && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    pointer = (void *)(uintptr_t)1;
    result = resolve("cuLaunchKernel", &pointer, 2000, 0, &status);
    printf("  later: %d, status %d, %s\n", result, status, pointer ? "a pointer" : "null");
    CHECK(!pointer && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    /* A name with a suffix is not found, nor is one of another library. */
    CHECK(resolve("cuMemAlloc_v2", &pointer, 12000, 0, &status) != CUDA_SUCCESS || !pointer);
    CHECK(resolve("cudaMalloc", &pointer, 12000, 0, &status) != CUDA_SUCCESS || !pointer);
    CHECK(resolve("cuLaunchKernel", &pointer, 99000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CHECK(resolve("cuLaunchKernel", NULL, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CHECK(resolve("cuLaunchKernel", &pointer, 12000, 3, &status) == CUDA_ERROR_INVALID_VALUE);
    printf("  no name: %d\n", resolve(NULL, &pointer, 12000, 0, &status));
    /* No pointer for the status. */
    CHECK(resolve("cuLaunchKernel", &pointer, 12000, 0, NULL) == CUDA_SUCCESS && pointer == legacy);
    printf("  unknown, no status: %d\n", resolve("cuNothingOfTheKind", &pointer, 12000, 0, NULL));
}

int main(void)
{
    void *library = cu_library();
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    cuGetProcAddress_v2_t resolve;
    memcpy(&resolve, &symbol, sizeof resolve);
    CHECK(resolve);
    asks(resolve, library);

    /* The resolver that the resolver returns, and the one that this returns. */
    void *second = found(resolve, "cuGetProcAddress", 12000, 0);
    memcpy(&resolve, &second, sizeof resolve);
    asks(resolve, library);

    /* The one from before CUDA 12 has no status. */
    void *older = found(resolve, "cuGetProcAddress", 11030, 0);
    CHECK(older != second);
    cuGetProcAddress_t resolve_older;
    memcpy(&resolve_older, &older, sizeof resolve_older);
    void *pointer = NULL;
    CHECK(resolve_older("cuLaunchKernel", &pointer, 4000, 0) == CUDA_SUCCESS);
    CHECK(pointer == found(resolve, "cuLaunchKernel", 4000, 0));
    CHECK(resolve_older("cuLaunchKernel", &pointer, 7000, 2) == CUDA_SUCCESS);
    CHECK(pointer == found(resolve, "cuLaunchKernel", 7000, 2));
    void *nothing = NULL;
    CHECK(resolve_older("cuNothingOfTheKind", &nothing, 12000, 0) != CUDA_SUCCESS && !nothing);

    /* The one for programs compiled for the per-thread default stream. */
    void *own = dlsym(library, "cuGetProcAddress_v2_ptsz");
    CHECK(own && own != symbol);
    memcpy(&resolve, &own, sizeof resolve);
    CHECK(found(resolve, "cuLaunchKernel", 7000, 0) == pointer);
    CHECK(found(resolve, "cuLaunchKernel", 7000, 1) != pointer);
    puts("ok");
    return 0;
}
