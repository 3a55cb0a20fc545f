/* A first program: device, contexts, module, memory, copies, launches in every form, and the errors of misuse. */
#include "driver.h"

enum { N = 1000003 };

static float a[N], b[N], c[N];

static void compute(const struct gpu *gpu)
{
    for (int i = 0; i < N; i++) {
        a[i] = (float)i * 0.25f;
        b[i] = 1e6f / (float)(i + 1);
    }
    CUdeviceptr da, db, dc;
    CALL(cuMemAlloc, &da, sizeof a);
    CALL(cuMemAlloc, &db, sizeof b);
    CALL(cuMemAlloc, &dc, sizeof c);
    CHECK(da && db && dc && da != db && db != dc && da % 256 == 0 && db % 256 == 0 && dc % 256 == 0);
    CALL(cuMemcpyHtoD, da, a, sizeof a);
    CALL(cuMemcpyHtoD, db, b, sizeof b);
    uint64_t n = N;
    launch(gpu->add, blocks_for(n), 256, NULL, (void *[]){ &dc, &da, &db, &n });
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, c, dc, sizeof c);
    for (int i = 0; i < N; i++) {
        float want = a[i] + b[i];
        CHECK(memcmp(&c[i], &want, sizeof want) == 0);
    }

    /* The parameters in one buffer, in the kernel's layout: c = b + a. */
    struct {
        CUdeviceptr c, a, b;
        uint64_t n;
    } packed = { dc, db, da, N };
    size_t size = sizeof packed;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END };
    CALL(cuMemsetD8, dc, 0xff, sizeof c);
    CALL(cuLaunchKernel, gpu->add, blocks_for(n), 1, 1, 256, 1, 1, 0, NULL, NULL, extra);
    CALL(cuMemcpyDtoH, c, dc, sizeof c);
    for (int i = 0; i < N; i++) {
        float want = a[i] + b[i];
        CHECK(memcmp(&c[i], &want, sizeof want) == 0);
    }

    /* y = 3 x + y twice, with numbers whose sums are exact, through cuLaunchKernelEx; the parameters are read at the call. */
    for (int i = 0; i < N; i++) {
        a[i] = (float)(i % 1000);
        b[i] = (float)(i % 77);
    }
    CALL(cuMemcpyHtoD, da, a, sizeof a);
    CALL(cuMemcpyHtoD, db, b, sizeof b);
    float factor = 3;
    CUlaunchConfig config = { blocks_for(n), 1, 1, 256, 1, 1, 0, NULL, NULL, 0 };
    void *parameters[] = { &db, &da, &n, &factor };
    bool have_ex = TRY(cuLaunchKernelEx, &config, gpu->saxpy, parameters, NULL) == CUDA_SUCCESS;
    if (!have_ex)
        launch(gpu->saxpy, blocks_for(n), 256, NULL, parameters);
    factor = 2;
    launch(gpu->saxpy, blocks_for(n), 256, NULL, parameters);
    factor = 1000;
    CALL(cuMemcpyDtoH, c, db, sizeof c);
    for (int i = 0; i < N; i++)
        CHECK(c[i] == 5 * a[i] + b[i]);

    fill(gpu, da, N, 0xfffffffe, NULL);
    CALL(cuCtxSynchronize);
    CHECK_EQUAL(sum_of(gpu, da, N), (uint64_t)N * 0xfffffffe);

    CALL(cuMemFree, da);
    CALL(cuMemFree, db);
    CALL(cuMemFree, dc);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree, dc);
    CALL(cuMemFree, 0);
}

/* Every shape of a launch gives the same result, equal to sums and hashes computed on the host. */
static void shapes(const struct gpu *gpu)
{
    enum { WORDS = 100003, SIDE = 37 };
    static uint32_t words[WORDS];
    static const unsigned shape[][6] = { { 1, 1, 1, 1, 1, 1 }, { 3, 5, 7, 8, 4, 2 }, { 1, 1, 64, 1, 1, 64 }, { 40, 1, 1, 1024, 1, 1 } };
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = i * 2654435761u ^ i >> 3;
    uint64_t total = 0, n = WORDS, got;
    for (uint32_t i = 0; i < WORDS; i++)
        total += words[i];
    CUdeviceptr in, out;
    CALL(cuMemAlloc, &in, sizeof words);
    CALL(cuMemAlloc, &out, 8);
    CALL(cuMemcpyHtoD, in, words, sizeof words);
    for (size_t i = 0; i < COUNT(shape); i++) {
        const unsigned *s = shape[i];
        uint64_t base = 1000 * i;
        CALL(cuMemcpyHtoD, out, &base, 8);
        CALL(cuLaunchKernel, gpu->sum, s[0], s[1], s[2], s[3], s[4], s[5], 0, NULL, (void *[]){ &out, &in, &n }, NULL);
        CALL(cuMemcpyDtoH, &got, out, 8);
        CHECK_EQUAL(got, base + total);
        CALL(cuMemsetD8, out, 0, 8);
        CALL(cuLaunchKernel, gpu->hash, s[0], s[1], s[2], s[3], s[4], s[5], 0, NULL, (void *[]){ &out, &in, &n }, NULL);
        CALL(cuMemcpyDtoH, &got, out, 8);
        CHECK_EQUAL(got, hash_here(words, WORDS));
    }
    CALL(cuMemFree, in);
    CALL(cuMemFree, out);

    /* A product of matrices of small integers, which is exact. */
    static float x[SIDE * SIDE], y[SIDE * SIDE], z[SIDE * SIDE];
    CUdeviceptr dx, dy, dz;
    uint32_t side = SIDE;
    for (int i = 0; i < SIDE * SIDE; i++) {
        x[i] = (float)(i % 11 - 5);
        y[i] = (float)(i % 7 - 3);
    }
    CALL(cuMemAlloc, &dx, sizeof x);
    CALL(cuMemAlloc, &dy, sizeof y);
    CALL(cuMemAlloc, &dz, sizeof z);
    CALL(cuMemcpyHtoD, dx, x, sizeof x);
    CALL(cuMemcpyHtoD, dy, y, sizeof y);
    CALL(cuLaunchKernel, gpu->matmul, 3, 3, 1, 16, 16, 1, 0, NULL, (void *[]){ &dz, &dx, &dy, &side }, NULL);
    CALL(cuMemcpyDtoH, z, dz, sizeof z);
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++) {
            float want = 0;
            for (int k = 0; k < SIDE; k++)
                want += x[row * SIDE + k] * y[k * SIDE + column];
            CHECK(z[row * SIDE + column] == want);
        }
    CALL(cuMemFree, dx);
    CALL(cuMemFree, dy);
    CALL(cuMemFree, dz);
}

static void misuse(const struct gpu *gpu, const char *ptx)
{
    CUdeviceptr p;
    CUfunction f;
    CUmodule m;
    uint64_t ns = 0;
    uint32_t zero = 0;
    void *parameters[] = { &ns, &zero, &zero, &zero };
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &f, gpu->module, "no_such_kernel");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, gpu->spin, 0, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, gpu->spin, 1, 1, 1, 0, 1, 1, 0, NULL, parameters, NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, gpu->spin, 1, 1, 1, 2048, 1, 1, 0, NULL, parameters, NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, gpu->spin, 1, 65536, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc, &p, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc, NULL, 16);
    EXPECT_ERROR(cuModuleLoadData, &m, "this is not PTX");
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad, &m, "/no/such/file.ptx");
    CALL(cuModuleLoad, &m, ptx);
    CALL(cuModuleUnload, m);
    char *text = read_file(ptx);
    CALL(cuModuleLoadDataEx, &m, text, 0, NULL, NULL);
    CALL(cuModuleGetFunction, &f, m, "weir_spin");
    CALL(cuModuleUnload, m);
    free(text);
    CALL(cuCtxSynchronize);
}

static void functions(const struct gpu *gpu, const char *ptx)
{
    int threads;
    CALL(cuFuncGetAttribute, &threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, gpu->add);
    CHECK(threads > 0 && threads <= 1024);
    const char *name;
    if (TRY(cuFuncGetName, &name, gpu->add) == CUDA_SUCCESS)
        CHECK(strcmp(name, "weir_add") == 0);
    else
        puts("  not supported: cuFuncGetName");
    int cooperative;
    CALL(cuDeviceGetAttribute, &cooperative, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, gpu->device);
    if (cooperative) {
        CUdeviceptr p;
        uint64_t words = 1000;
        uint32_t value = 9;
        void *parameters[] = { &p, &words, &value };
        CALL(cuMemAlloc, &p, 4 * words);
        CALL(cuLaunchCooperativeKernel, gpu->fill, 2, 1, 1, 256, 1, 1, 0, NULL, parameters);
        EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, gpu->fill, 1 << 20, 1, 1, 1024, 1, 1, 0, NULL, parameters);
        CHECK_EQUAL(sum_of(gpu, p, words), 9 * words);
        CALL(cuMemFree, p);
    } else {
        puts("  not supported: cooperative launches");
    }
    static const size_t want[][2] = { { 0, 8 }, { 8, 4 }, { 12, 4 }, { 16, 4 } };
    size_t at, size;
    if (TRY(cuFuncGetParamInfo, gpu->spin, 0, &at, &size) == CUDA_SUCCESS) {
        for (size_t i = 0; i < COUNT(want); i++) {
            CALL(cuFuncGetParamInfo, gpu->spin, i, &at, &size);
            CHECK_EQUAL(at, want[i][0]);
            CHECK_EQUAL(size, want[i][1]);
        }
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo, gpu->spin, 4, &at, &size);
    } else {
        puts("  not supported: cuFuncGetParamInfo");
    }

    CUlibrary library;
    CUkernel kernel;
    char *text = read_file(ptx);
    if (TRY(cuLibraryLoadData, &library, text, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS) {
        CALL(cuLibraryGetKernel, &kernel, library, "weir_fill");
        EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel, &kernel, library, "no_such_kernel");
        CUfunction function;
        CALL(cuKernelGetFunction, &function, kernel);
        if (TRY(cuKernelGetParamInfo, kernel, 2, &at, &size) == CUDA_SUCCESS) {
            CHECK_EQUAL(at, 16);
            CHECK_EQUAL(size, 4);
        }
        /* A launch accepts a function, and a kernel cast to one. */
        CUdeviceptr p;
        uint64_t words = 1000;
        uint32_t value = 3;
        CALL(cuMemAlloc, &p, 4 * words);
        launch(function, blocks_for(words), 256, NULL, (void *[]){ &p, &words, &value });
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(gpu, p, words), 3 * words);
        value = 4;
        launch((CUfunction)(void *)kernel, blocks_for(words), 256, NULL, (void *[]){ &p, &words, &value });
        CALL(cuCtxSynchronize);
        CHECK_EQUAL(sum_of(gpu, p, words), 4 * words);
        CALL(cuMemFree, p);
        CALL(cuLibraryUnload, library);
    } else {
        puts("  not supported: cuLibraryLoadData");
    }
    free(text);
}

/* A second thread keeps a context current while the first destroys it. */
static pthread_barrier_t barrier;

static void *keep_current(void *context)
{
    CUdeviceptr p;
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc, &p, 4096);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    CUresult result = EXPECT_ERROR(cuMemAlloc, &p, 4096);
    CHECK(result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT);
    CALL(cuCtxSetCurrent, NULL);
    return NULL;
}

static void own_context(const struct gpu *primary, const char *ptx)
{
    struct gpu gpu = { .device = primary->device };
    CUcontext current, popped;
    CUdevice device;
    unsigned flags, version;
    CALL(cuCtxCreate, &gpu.context, CU_CTX_SCHED_BLOCKING_SYNC, gpu.device);
    CALL(cuCtxGetCurrent, &current);
    CHECK(current == gpu.context && current != primary->context);
    CALL(cuCtxGetDevice, &device);
    CHECK_EQUAL(device, gpu.device);
    CALL(cuCtxGetFlags, &flags);
    CHECK_EQUAL(flags & 7, CU_CTX_SCHED_BLOCKING_SYNC);
    CALL(cuCtxGetApiVersion, gpu.context, &version);
    CHECK(version >= 3020);
    gpu_load(&gpu, ptx);
    compute(&gpu);

    /* The stack of contexts. */
    CALL(cuCtxPushCurrent, primary->context);
    CALL(cuCtxGetCurrent, &current);
    CHECK(current == primary->context);
    CALL(cuCtxPopCurrent, &popped);
    CHECK(popped == primary->context);
    CALL(cuCtxGetCurrent, &current);
    CHECK(current == gpu.context);

    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(pthread_create(&thread, NULL, keep_current, gpu.context) == 0);
    pthread_barrier_wait(&barrier);
    CALL(cuCtxDestroy, gpu.context);
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, NULL) == 0);

    /* Destruction popped it: the context below is current again. */
    CALL(cuCtxGetCurrent, &current);
    CHECK(current == primary->context);
    CALL(cuCtxSetCurrent, NULL);
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc, &p, 4096);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice, &device);
    CALL(cuCtxSetCurrent, primary->context);

    CUctxCreateParams params = { 0 };
    if (TRY(cuCtxCreate_v4, &gpu.context, &params, 0, gpu.device) == CUDA_SUCCESS) {
        gpu_load(&gpu, ptx);
        compute(&gpu);
        CALL(cuCtxDestroy, gpu.context);
    } else {
        puts("  not supported: cuCtxCreate_v4");
    }
    CALL(cuCtxSetCurrent, primary->context);
}

static void describe(CUdevice device, int count)
{
    static const struct {
        const char *name;
        CUdevice_attribute attribute;
        int least;
    } attributes[] = {
        { "multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1 },
        { "compute capability, major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 5 },
        { "compute capability, minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0 },
        { "threads in a block", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
        { "block x", CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
        { "grid x", CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff },
        { "shared memory of a block", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024 },
        { "warp", CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
        { "compute mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0 },
        { "concurrent kernels", CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1 },
        { "copy engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1 },
        { "unified addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
        { "managed memory", CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0 },
        { "cooperative launch", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0 },
        { "virtual memory management", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0 },
        { "memory pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0 },
    };
    char name[128] = "", bus[32] = "";
    CUuuid uuid = { { 0 } };
    size_t total;
    CUdevice found, beyond;
    CALL(cuDeviceGetName, name, sizeof name, device);
    CHECK(name[0]);
    CALL(cuDeviceTotalMem, &total, device);
    CHECK(total > 0);
    CALL(cuDeviceGetUuid, &uuid, device);
    CALL(cuDeviceGetPCIBusId, bus, sizeof bus, device);
    CALL(cuDeviceGetByPCIBusId, &found, bus);
    CHECK_EQUAL(found, device);
    printf("  %s, %zu bytes, %s, UUID ", name, total, bus);
    for (size_t i = 0; i < sizeof uuid.bytes; i++)
        printf("%02x", (unsigned char)uuid.bytes[i]);
    puts("");
    for (size_t i = 0; i < COUNT(attributes); i++) {
        int value = -1;
        CALL(cuDeviceGetAttribute, &value, attributes[i].attribute, device);
        printf("  %s: %d\n", attributes[i].name, value);
        CHECK(value >= attributes[i].least);
    }
    int value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute, &value, (CUdevice_attribute)100000, device);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet, &beyond, count);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet, &beyond, -1);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem, &total, count + 7);
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = { 0 };
    int count, version, active;
    unsigned flags;
    const char *name;
    cu_open();
    CALL(cuInit, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit, 1);
    CALL(cuDriverGetVersion, &version);
    CHECK(version >= 12000);
    CALL(cuDeviceGetCount, &count);
    CHECK(count >= 1);
    CALL(cuGetErrorName, CUDA_ERROR_OUT_OF_MEMORY, &name);
    CHECK(strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    CALL(cuGetErrorString, CUDA_ERROR_OUT_OF_MEMORY, &name);
    CHECK(name && *name);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName, (CUresult)424242, &name);
    printf("  driver %d, %d device(s)\n", version, count);
    CALL(cuDeviceGet, &gpu.device, 0);
    describe(gpu.device, count);

    CALL(cuDevicePrimaryCtxGetState, gpu.device, &flags, &active);
    CHECK_EQUAL(active, 0);
    CALL(cuDevicePrimaryCtxSetFlags, gpu.device, CU_CTX_SCHED_BLOCKING_SYNC);
    CALL(cuDevicePrimaryCtxRetain, &gpu.context, gpu.device);
    CALL(cuDevicePrimaryCtxGetState, gpu.device, &flags, &active);
    CHECK_EQUAL(active, 1);
    CHECK_EQUAL(flags & 7, CU_CTX_SCHED_BLOCKING_SYNC);
    CUcontext again;
    CALL(cuDevicePrimaryCtxRetain, &again, gpu.device);
    CHECK(again == gpu.context);
    CALL(cuDevicePrimaryCtxRelease, gpu.device);
    CALL(cuCtxSetCurrent, gpu.context);

    gpu_load(&gpu, argv[1]);
    compute(&gpu);
    shapes(&gpu);
    functions(&gpu, argv[1]);
    misuse(&gpu, argv[1]);
    own_context(&gpu, argv[1]);
    compute(&gpu);

    CALL(cuModuleUnload, gpu.module);
    CALL(cuDevicePrimaryCtxRelease, gpu.device);
    CALL(cuDevicePrimaryCtxGetState, gpu.device, &flags, &active);
    CHECK_EQUAL(active, 0);
    EXPECT_ERROR(cuDevicePrimaryCtxRelease, gpu.device);
    puts("ok");
    return 0;
}
