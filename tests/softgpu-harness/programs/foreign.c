/* Launches kernels of PTX that is not Weir's: their time is modelled, and their result is not computed.
 *
 * usage: foreign [touch]
 *
 * touch: the configuration gives `touch` the effect of the same name, and a duration. Prints `ok`. */
#include "driver.h"

#define CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES 701

static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    "// .entry none()\n"
    ".visible .entry scale(.param .u64 scale_0, .param .f32 scale_1, .param .align 16 .b8 scale_2[100], .param .u64 scale_3)\n"
    "{ .shared .align 4 .b8 t[49152]; ret; }\n"
    ".visible .entry touch(.param .u64 a, .param .u64 b) .maxntid 64, 2, 1 { ret; }\n";

static int attribute(CUfunction function, int which)
{
    int value = -1;
    CALL(cuFuncGetAttribute, &value, which, function);
    return value;
}

/* Returns the time of a launch on the device's timeline. It is queued behind one of 60 ms, so that the commands follow each other
 * there; again where queueing took longer. */
static int64_t takes(CUfunction before, CUfunction function, unsigned blocks, unsigned threads, void **of_before, void **parameters)
{
    CUevent from, to;
    CALL(cuEventCreate, &from, 0);
    CALL(cuEventCreate, &to, 0);
    for (int tries = 0; tries < 20; tries++) {
        int64_t begin = now_ns();
        CALL(cuLaunchKernel, before, 528 * 20000, 1, 1, 32, 1, 1, 0, NULL, of_before, NULL);
        CALL(cuEventRecord, from, NULL);
        CALL(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuEventRecord, to, NULL);
        int64_t queued = now_ns() - begin;
        CALL(cuEventSynchronize, to);
        if (queued < 60000000)
            return elapsed_ns(from, to);
    }
    CHECK(!"queueing took 60 ms each time");
    return 0;
}

int main(int argc, char **argv)
{
    int touches = argc > 1 && !strcmp(argv[1], "touch");
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction scale, touch;
    CUdeviceptr first, second;
    uint32_t words[4] = { 7, 8, 9, 10 }, got[4];
    cu_open();
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &scale, module, "scale");
    CALL(cuModuleGetFunction, &touch, module, "touch");
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &touch, module, "none");

    static const size_t layout[][2] = { { 0, 8 }, { 8, 4 }, { 16, 100 }, { 120, 8 } };
    for (size_t i = 0; i < COUNT(layout); i++) {
        size_t offset, size;
        CALL(cuFuncGetParamInfo, scale, i, &offset, &size);
        CHECK_EQUAL(offset, layout[i][0]);
        CHECK_EQUAL(size, layout[i][1]);
    }
    size_t offset, size;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo, scale, COUNT(layout), &offset, &size);
    /* The largest number of threads, static shared memory, registers. */
    CHECK_EQUAL(attribute(scale, 0), 1024);
    CHECK_EQUAL(attribute(touch, 0), 128);
    CHECK_EQUAL(attribute(scale, 1), 49152);
    CHECK_EQUAL(attribute(scale, 4), 32);
    /* PyCUDA sets the shape before it launches in another way. */
    CALL(cuFuncSetBlockShape, scale, 256, 2, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape, scale, 0, 1, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape, scale, 2048, 1, 1);

    CALL(cuMemAlloc, &first, sizeof words);
    CALL(cuMemAlloc, &second, sizeof words);
    CALL(cuMemcpyHtoD, first, words, sizeof words);
    CALL(cuMemcpyHtoD, second, words, sizeof words);
    float factor = 2;
    char structure[100] = { 0 };
    uint64_t number = 3;
    void *of_scale[] = { &first, &factor, structure, &number };
    /* 2 us and 3 us a wave; of 49,152 bytes an SM of an H100 has room for four blocks, and there are 132 SMs. */
    CHECK_EQUAL(takes(scale, scale, 1, 32, of_scale, of_scale), 5000);
    CHECK_EQUAL(takes(scale, scale, 528, 32, of_scale, of_scale), 5000);
    CHECK_EQUAL(takes(scale, scale, 529, 32, of_scale, of_scale), 8000);
    CALL(cuMemcpyDtoH, got, first, sizeof got);
    CHECK(!memcmp(got, words, sizeof words));
    /* A block with more shared memory than an SM has. */
    EXPECT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cuLaunchKernel, scale, 1, 1, 1, 32, 1, 1, 190 << 10, NULL, of_scale, NULL);
    CUresult (*blocks)(int *, CUfunction, int, size_t) =
        (CUresult(*)(int *, CUfunction, int, size_t))dlsym(cu_library(), "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    CUresult (*shape)(int *, int *, CUfunction, void *, size_t, int) =
        (CUresult(*)(int *, int *, CUfunction, void *, size_t, int))dlsym(cu_library(), "cuOccupancyMaxPotentialBlockSize");
    int count, block;
    CHECK(blocks && shape && !blocks(&count, scale, 32, 0));
    CHECK_EQUAL(count, 4);
    CHECK(!blocks(&count, scale, 32, 64 << 10));
    CHECK_EQUAL(count, 2);
    /* Two blocks of 1,024 threads fill an SM; of `touch` a block has at most 128, and 16 of them do. */
    CHECK(!shape(&count, &block, scale, NULL, 0, 0));
    CHECK_EQUAL(block, 1024);
    CHECK_EQUAL(count, 264);
    CHECK(!shape(&count, &block, touch, NULL, 0, 0));
    CHECK_EQUAL(block, 128);
    CHECK_EQUAL(count, 16 * 132);

    void *of_touch[] = { &first, &second };
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, touch, 1, 1, 1, 129, 1, 1, 0, NULL, of_touch, NULL);
    CALL(cuLaunchKernel, touch, 1, 1, 1, 64, 2, 1, 0, NULL, of_touch, NULL);
    /* What is not an address of device memory is left alone. */
    CUdeviceptr odd = 12345;
    void *of_odd[] = { &odd, &second };
    CHECK_EQUAL(takes(scale, touch, 1, 1, of_scale, of_odd), touches ? 70000 : 5000);
    struct {
        CUdeviceptr a, b;
    } buffer = { first, first + 4 };
    size_t bytes = sizeof buffer;
    void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END };
    CALL(cuLaunchKernel, touch, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra);
    bytes = 8;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel, touch, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra);
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, got, first, sizeof got);
    CHECK_EQUAL(got[0], touches ? 9u : 7u);
    CHECK_EQUAL(got[1], touches ? 9u : 8u);
    CALL(cuMemcpyDtoH, got, second, sizeof got);
    /* The timed launch may have been repeated. */
    CHECK(touches ? got[0] >= 9 : got[0] == 7);
    CHECK_EQUAL(got[2], 9u);
    /* PyCUDA ends its context so. */
    CUcontext own;
    CALL(cuCtxCreate, &own, 0, device);
    CALL(cuCtxSetCurrent, context);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach, own);
    CALL(cuCtxSetCurrent, own);
    CALL(cuCtxDetach, own);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach, own);
    puts("ok");
    return 0;
}
