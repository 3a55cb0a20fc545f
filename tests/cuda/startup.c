/* The start of a CUDA runtime: one dlsym, a few calls, then look-ups of hundreds of names by the resolver, and from then on
 * only the pointers that it returned.  A hook between a program and the driver must survive this.
 *
 * usage: startup PTX [--verbose 1] */
#include "driver.h"
#include "startup_names.h"

static cuGetProcAddress_v2_t resolve;

struct answer {
    CUresult result;
    CUdriverProcAddressQueryResult status;
    void *pointer;
};

static struct answer ask(const char *name, int version, uint64_t flags)
{
    struct answer answer = { CUDA_ERROR_UNKNOWN, (CUdriverProcAddressQueryResult)99, (void *)(uintptr_t)1 };
    answer.result = resolve(name, &answer.pointer, version, flags, &answer.status);
    return answer;
}

/* Stores the pointer, which must not be null, into a variable of a function's type. */
static void have(const char *name, int version, uint64_t flags, void *variable)
{
    struct answer answer = ask(name, version, flags);
    if (answer.result != CUDA_SUCCESS || answer.status != CU_GET_PROC_ADDRESS_SUCCESS || !answer.pointer) {
        fprintf(stderr, "%s:%d: cuGetProcAddress_v2(%s, %d, %d): result %d, status %d, pointer %p\n", __FILE__, __LINE__, name, version,
                (int)flags, (int)answer.result, (int)answer.status, answer.pointer);
        exit(1);
    }
    memcpy(variable, &answer.pointer, sizeof answer.pointer);
}

/* The pointers used below, for flags 0 and for flags 2. */
struct functions {
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    CUresult (*to_device)(CUdeviceptr, const void *, size_t);
    CUresult (*to_host)(void *, CUdeviceptr, size_t);
    CUresult (*record)(CUevent, CUstream);
    CUresult (*synchronize)(CUstream);
};

#define OK(call) cu_expect(call, CUDA_SUCCESS, __FILE__, __LINE__, #call, "")

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--verbose 1]");
    bool verbose = option(argc, argv, "--verbose", 0) != 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    CHECK(symbol);
    memcpy(&resolve, &symbol, sizeof resolve);

    /* A probe without a name: its answer is not checked. */
    ask("", 0, 0);
    have("cuGetErrorName", 6000, 0, &cu.cuGetErrorName);
    CUresult (*export_table)(const void **, const CUuuid *);
    CUresult (*driver_version)(int *);
    CUresult (*init)(unsigned);
    CUresult (*count)(int *);
    have("cuGetExportTable", 3000, 0, &export_table);
    have("cuDriverGetVersion", 2020, 0, &driver_version);
    have("cuInit", 2000, 0, &init);
    have("cuDeviceGetCount", 2000, 0, &count);
    static const unsigned char id[16] = { 0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9 };
    CUuuid uuid;
    const void *table = NULL;
    memcpy(uuid.bytes, id, sizeof id);
    printf("  cuGetExportTable: %s\n", cu_error(export_table(&table, &uuid)));
    int version = 0, devices = 0;
    OK(driver_version(&version));
    CHECK(version >= 12000);
    cu_expect(count(&devices), CUDA_ERROR_NOT_INITIALIZED, __FILE__, __LINE__, "cuDeviceGetCount", "before cuInit");
    OK(init(0));
    OK(count(&devices));
    CHECK(devices >= 1);

    /* The resolver that the resolver returns. */
    cuGetProcAddress_v2_t second;
    have("cuGetProcAddress", 12000, 0, &second);
    resolve = second;

    static const struct {
        const char *name;
        int version;
        bool twin;
    } names[] = {
#define N(name, version) { name, version, false },
#define T(name, version) { name, version, true },
        STARTUP_NAMES(N, T)
#undef N
#undef T
    };
    int asked = 0, found = 0, twins = 0, newer = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct answer plain, per_thread;
        if (names[i].version > version) {
            newer++;
            plain = ask(names[i].name, names[i].version, 0);
            CHECK_EQUAL(plain.result, CUDA_ERROR_INVALID_VALUE);
            continue;
        }
        plain = ask(names[i].name, names[i].version, 0);
        bool there = plain.result == CUDA_SUCCESS && plain.pointer;
        asked++;
        found += there;
        /* A pointer is returned exactly with the status of success. */
        CHECK((plain.pointer != NULL) == (plain.status == CU_GET_PROC_ADDRESS_SUCCESS));
        if (!there && verbose)
            printf("  missing: %s at %d\n", names[i].name, names[i].version);
        if (!names[i].twin)
            continue;
        per_thread = ask(names[i].name, names[i].version < 7000 ? 7000 : names[i].version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
        asked++;
        found += per_thread.result == CUDA_SUCCESS && per_thread.pointer;
        if (!there)
            continue;
        twins++;
        if (per_thread.pointer == plain.pointer || !per_thread.pointer) {
            fprintf(stderr, "%s:%d: %s at %d: the per-thread stream's function is %s\n", __FILE__, __LINE__, names[i].name, names[i].version,
                    per_thread.pointer ? "the legacy stream's" : "missing");
            return 1;
        }
    }
    printf("  driver %d: %d requests, %d answered with a function, %d twins that differ, %d names newer than the driver\n", version, asked,
           found, twins, newer);

    /* If a function has no twin, the plain one answers a per-thread request; flag 1 requests the plain one by name. */
    struct answer a = ask("cuMemAlloc", 3020, 0), b = ask("cuMemAlloc", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    CHECK(a.pointer && a.pointer == b.pointer);
    a = ask("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_DEFAULT);
    b = ask("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    CHECK(a.pointer && a.pointer == b.pointer);
    /* The exported cuMemAlloc is the old one with 32-bit sizes, the resolver's is not. */
    symbol = dlsym(library, "cuMemAlloc");
    a = ask("cuMemAlloc", 3020, 0);
    CHECK(!symbol || symbol != a.pointer);

    a = ask("cuNoSuchFunction", 12000, 0);
    CHECK(a.result == CUDA_SUCCESS || a.result == CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(a.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(!a.pointer);
    a = ask("cuMemAllocAsync", 11010, 0);
    CHECK(a.result == CUDA_SUCCESS || a.result == CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(a.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(!a.pointer);
    a = ask("cuMemAlloc", version + 1000, 0);
    CHECK_EQUAL(a.result, CUDA_ERROR_INVALID_VALUE);
    void *pointer;
    CHECK_EQUAL(resolve(NULL, &pointer, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(resolve("cuMemAlloc", NULL, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    /* The first interface of the resolver, which returns no status. */
    CUresult (*first)(const char *, void **, int, uint64_t);
    have("cuGetProcAddress", 11030, 0, &first);
    OK(first("cuMemAlloc", &pointer, 3020, 0));
    CHECK(pointer);
    CHECK_EQUAL(first("cuNoSuchFunction", &pointer, 12000, 0), CUDA_ERROR_NOT_FOUND);

    /* Work, through pointers of both kinds. */
    struct functions kinds[2];
    for (int i = 0; i < 2; i++) {
        uint64_t flags = i ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
        have("cuLaunchKernel", i ? 7000 : 4000, flags, &kinds[i].launch);
        have("cuMemcpyHtoD", i ? 7000 : 3020, flags, &kinds[i].to_device);
        have("cuMemcpyDtoH", i ? 7000 : 3020, flags, &kinds[i].to_host);
        have("cuEventRecord", i ? 7000 : 2000, flags, &kinds[i].record);
        have("cuStreamSynchronize", i ? 7000 : 2000, flags, &kinds[i].synchronize);
    }
    setenv("CUDA_TEST_LOADER", "resolver", 1);
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    enum { WORDS = 10000 };
    static uint32_t words[WORDS];
    CUdeviceptr at, out;
    CUstream blocking;
    CUevent spun, done;
    uint64_t number = WORDS, total = 0;
    CALL(cuMemAlloc, &at, sizeof words);
    CALL(cuMemAlloc, &out, 8);
    CALL(cuStreamCreate, &blocking, CU_STREAM_DEFAULT);
    CALL(cuEventCreate, &spun, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &done, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < WORDS; j++)
            words[j] = j + (uint32_t)i;
        total = 100;
        OK(kinds[i].to_device(at, words, sizeof words));
        OK(kinds[i].to_device(out, &total, 8));
        OK(kinds[i].launch(gpu.sum, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){ &out, &at, &number }, NULL));
        OK(kinds[i].synchronize(NULL));
        OK(kinds[i].to_host(&total, out, 8));
        CHECK_EQUAL(total, 100 + (uint64_t)WORDS * (WORDS - 1) / 2 + (uint64_t)i * WORDS);

        /* Stream 0 of one kind waits for a blocking stream, that of the other does not. */
        spin(&gpu, 200000000, 1, blocking);
        CALL(cuEventRecord, spun, blocking);
        uint32_t value = 1;
        OK(kinds[i].launch(gpu.fill, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){ &at, &number, &value }, NULL));
        OK(kinds[i].record(done, NULL));
        CALL(cuEventSynchronize, done);
        CHECK_EQUAL(TRY(cuEventQuery, spun), i ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
        CALL(cuEventSynchronize, spun);
    }
    CALL(cuStreamDestroy, blocking);
    CALL(cuMemFree, at);
    CALL(cuMemFree, out);
    puts("ok");
    return 0;
}
