/* The part of NVIDIA's public CUDA driver API that these programs use: types, values, and a table of functions filled at run
 * time from libcuda.so.1.  Written from the API's documentation (CUDA 12.9 and 13); 64-bit Linux only.
 *
 * Every program includes this first.  A program linked to the library defines DRIVER_TYPES_ONLY before. */
#ifndef WEIR_TESTS_DRIVER_H
#define WEIR_TESTS_DRIVER_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Types ---- */

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_opaque *CUcontext;
typedef struct CUmod_opaque *CUmodule;
typedef struct CUfunc_opaque *CUfunction;
typedef struct CUlib_opaque *CUlibrary;
typedef struct CUkern_opaque *CUkernel;
typedef struct CUstream_opaque *CUstream;
typedef struct CUevent_opaque *CUevent;
typedef struct CUgraph_opaque *CUgraph;
typedef struct CUgraphNode_opaque *CUgraphNode;
typedef struct CUgraphExec_opaque *CUgraphExec;
typedef struct CUarray_opaque *CUarray;
typedef struct CUmemPool_opaque *CUmemoryPool;
typedef void (*CUhostFn)(void *data);

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

typedef enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31,
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125
} CUdevice_attribute;

typedef enum CUfunction_attribute { CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0 } CUfunction_attribute;

typedef enum CUpointer_attribute {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14
} CUpointer_attribute;

typedef enum CUmemorytype { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 } CUmemorytype;

#define CU_STREAM_LEGACY ((CUstream)(uintptr_t)1)
#define CU_STREAM_PER_THREAD ((CUstream)(uintptr_t)2)

enum {
    CU_STREAM_DEFAULT = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_DEVICEMAP = 2,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
    CU_CTX_SCHED_SPIN = 1,
    CU_CTX_SCHED_BLOCKING_SYNC = 4,
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2
};

/* The end marker and the two keys of cuLaunchKernel's `extra`. */
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)(uintptr_t)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)(uintptr_t)2)

typedef struct CUuuid {
    char bytes[16];
} CUuuid;

typedef struct CUipcMemHandle {
    char reserved[64];
} CUipcMemHandle;

typedef struct CUipcEventHandle {
    char reserved[64];
} CUipcEventHandle;

typedef enum CUdriverProcAddressQueryResult {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} CUdriverProcAddressQueryResult;

/* Virtual memory management. */
typedef enum CUmemLocationType { CU_MEM_LOCATION_TYPE_INVALID = 0, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2 } CUmemLocationType;
typedef enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum CUmemAllocationHandleType { CU_MEM_HANDLE_TYPE_NONE = 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 } CUmemAllocationHandleType;
typedef enum CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 } CUmemAccess_flags;
typedef enum CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 } CUmemAllocationGranularity_flags;

typedef struct CUmemLocation {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemPoolProps {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef enum CUmemPool_attribute {
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8
} CUmemPool_attribute;

/* Copies. */
typedef struct CUDA_MEMCPY2D {
    size_t srcXInBytes, srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef enum CUmemcpySrcAccessOrder { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 } CUmemcpySrcAccessOrder;

typedef struct CUmemcpyAttributes {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

/* Launches. */
typedef enum CUlaunchAttributeID { CU_LAUNCH_ATTRIBUTE_IGNORE = 0, CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_PRIORITY = 8 } CUlaunchAttributeID;

/* The used members; `align` replaces the pointers of the others. */
typedef union CUlaunchAttributeValue {
    char pad[64];
    void *align;
    int cooperative;
    int priority;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

/* Contexts: all members zero means no affinity and no graphics interoperation. */
typedef struct CUctxCreateParams {
    void *execAffinityParams;
    int numExecAffinityParams;
    void *cigParams;
} CUctxCreateParams;

/* Graphs. */
typedef enum CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 } CUstreamCaptureMode;
typedef enum CUstreamCaptureStatus { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2 } CUstreamCaptureStatus;

typedef enum CUgraphNodeType {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_EMPTY = 5
} CUgraphNodeType;

typedef struct CUgraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

/* The second version of the structure, as CUDA 12 and later have it. */
typedef struct CUDA_KERNEL_NODE_PARAMS {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams;
    void **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUDA_HOST_NODE_PARAMS {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;

/* Checkpoints. */
typedef enum CUprocessState { CU_PROCESS_STATE_RUNNING = 0, CU_PROCESS_STATE_LOCKED = 1, CU_PROCESS_STATE_CHECKPOINTED = 2, CU_PROCESS_STATE_FAILED = 3 } CUprocessState;

typedef struct CUcheckpointLockArgs {
    unsigned timeoutMs, reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;

/* The checkpoint, restore and unlock calls each take 64 bytes; zeros request the plain operation. */
typedef struct CUcheckpointArgs {
    uint64_t zero[8];
} CUcheckpointArgs;

/* A descriptor of a tensor in device memory. */
typedef struct CUtensorMap {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);

_Static_assert(sizeof(void *) == 8, "64-bit only");
_Static_assert(sizeof(CUmemAllocationProp) == 32 && sizeof(CUmemAccessDesc) == 12 && sizeof(CUmemPoolProps) == 88, "memory structures");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200 && sizeof(CUmemcpyAttributes) == 24, "copy structures");
_Static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "launch structures");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72 && sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "graph structures");
_Static_assert(sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointArgs) == 64, "checkpoint structures");

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- Small helpers that need no driver ---- */

static inline int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void sleep_ms(long ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fflush(stdout);                                                                  \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

/* CHECK which prints both sides. */
#define CHECK_EQUAL(got, want)                                                                              \
    do {                                                                                                    \
        unsigned long long got_ = (unsigned long long)(got), want_ = (unsigned long long)(want);            \
        if (got_ != want_) {                                                                                \
            fflush(stdout);                                                                                 \
            fprintf(stderr, "%s:%d: %s is %llu (%#llx), not %llu (%#llx)\n", __FILE__, __LINE__, #got,      \
                    got_, got_, want_, want_);                                                              \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

/* Reads a whole file and appends a zero byte. */
static inline char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    CHECK(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    char *text = malloc((size_t)size + 1);
    CHECK(text && fread(text, 1, (size_t)size, file) == (size_t)size);
    text[size] = 0;
    fclose(file);
    return text;
}

static inline void write_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EPIPE)
            return;
        CHECK(n > 0);
        at += n;
        size -= (size_t)n;
    }
}

/* Returns false if the other side closed first. */
static inline bool read_all(int fd, void *data, size_t size)
{
    char *at = data;
    while (size > 0) {
        ssize_t n = read(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* Starts this program again as a new process with one end of a socket pair as descriptor 3. */
struct child {
    pid_t pid;
    int socket;
};

#define CHILD_SOCKET 3

static inline struct child spawn_self(char *const argv[])
{
    int ends[2];
    /* A dead child is noticed when its answer is read. */
    signal(SIGPIPE, SIG_IGN);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    fflush(stdout);
    fflush(stderr);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (ends[1] == CHILD_SOCKET)
            fcntl(CHILD_SOCKET, F_SETFD, 0);
        else if (dup2(ends[1], CHILD_SOCKET) < 0)
            _exit(126);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(ends[1]);
    return (struct child){ pid, ends[0] };
}

/* Waits for the child's end and returns its exit status, or 128 + the signal that ended it. */
static inline int reap(struct child child)
{
    int status;
    close(child.socket);
    while (waitpid(child.pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#ifndef DRIVER_TYPES_ONLY

/* ---- The functions: member, name for the resolver, version of its introduction, exported symbol, suffix of the symbol's
 * per-thread twin (from version 7000 on, or the function's own if later), parameters ---- */

#define NONE ""
#define PTSZ "_ptsz"
#define PTDS "_ptds"
#define CUDA_FUNCTIONS(X)                                                                                                           \
    X(cuGetErrorName, "cuGetErrorName", 6000, "cuGetErrorName", NONE, (CUresult, const char **))                                    \
    X(cuGetErrorString, "cuGetErrorString", 6000, "cuGetErrorString", NONE, (CUresult, const char **))                              \
    X(cuInit, "cuInit", 2000, "cuInit", NONE, (unsigned))                                                                           \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, "cuDriverGetVersion", NONE, (int *))                                          \
    X(cuDeviceGet, "cuDeviceGet", 2000, "cuDeviceGet", NONE, (CUdevice *, int))                                                     \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, "cuDeviceGetCount", NONE, (int *))                                                \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, "cuDeviceGetName", NONE, (char *, int, CUdevice))                                   \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2", NONE, (CUuuid *, CUdevice))                                  \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2", NONE, (size_t *, CUdevice))                                \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute", NONE, (int *, CUdevice_attribute, CUdevice))      \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, "cuDeviceGetPCIBusId", NONE, (char *, int, CUdevice))                       \
    X(cuDeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", 4010, "cuDeviceGetByPCIBusId", NONE, (CUdevice *, const char *))              \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, "cuDeviceCanAccessPeer", NONE, (int *, CUdevice, CUdevice))             \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, "cuDeviceGetDefaultMemPool", NONE, (CUmemoryPool *, CUdevice)) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", NONE, (CUcontext *, CUdevice))        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", NONE, (CUdevice))              \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2", NONE, (CUdevice))                    \
    X(cuDevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags", 11000, "cuDevicePrimaryCtxSetFlags_v2", NONE, (CUdevice, unsigned)) \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState", NONE,                           \
      (CUdevice, unsigned *, int *))                                                                                                \
    X(cuCtxCreate, "cuCtxCreate", 3020, "cuCtxCreate_v2", NONE, (CUcontext *, unsigned, CUdevice))                                  \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, "cuCtxCreate_v4", NONE, (CUcontext *, CUctxCreateParams *, unsigned, CUdevice))         \
    X(cuCtxDestroy, "cuCtxDestroy", 4000, "cuCtxDestroy_v2", NONE, (CUcontext))                                                     \
    X(cuCtxDetach, "cuCtxDetach", 2000, "cuCtxDetach", NONE, (CUcontext))                                                           \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", NONE, (CUcontext *))                                             \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, "cuCtxSetCurrent", NONE, (CUcontext))                                               \
    X(cuCtxPushCurrent, "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", NONE, (CUcontext))                                         \
    X(cuCtxPopCurrent, "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", NONE, (CUcontext *))                                          \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, "cuCtxGetDevice", NONE, (CUdevice *))                                                 \
    X(cuCtxGetFlags, "cuCtxGetFlags", 7000, "cuCtxGetFlags", NONE, (unsigned *))                                                    \
    X(cuCtxGetApiVersion, "cuCtxGetApiVersion", 3020, "cuCtxGetApiVersion", NONE, (CUcontext, unsigned *))                          \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, "cuCtxSynchronize", NONE, (void))                                                 \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, "cuCtxGetStreamPriorityRange", NONE, (int *, int *))        \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess", NONE, (CUcontext, unsigned))                   \
    X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, "cuCtxDisablePeerAccess", NONE, (CUcontext))                          \
    X(cuModuleLoad, "cuModuleLoad", 2000, "cuModuleLoad", NONE, (CUmodule *, const char *))                                         \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, "cuModuleLoadData", NONE, (CUmodule *, const void *))                             \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, "cuModuleLoadDataEx", NONE,                                                   \
      (CUmodule *, const void *, unsigned, int *, void **))                                                                         \
    X(cuModuleUnload, "cuModuleUnload", 2000, "cuModuleUnload", NONE, (CUmodule))                                                   \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, "cuModuleGetFunction", NONE, (CUfunction *, CUmodule, const char *))        \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, "cuLibraryLoadData", NONE,                                                     \
      (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))                                              \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, "cuLibraryUnload", NONE, (CUlibrary))                                              \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, "cuLibraryGetKernel", NONE, (CUkernel *, CUlibrary, const char *))           \
    X(cuKernelGetFunction, "cuKernelGetFunction", 12000, "cuKernelGetFunction", NONE, (CUfunction *, CUkernel))                     \
    X(cuKernelGetParamInfo, "cuKernelGetParamInfo", 12040, "cuKernelGetParamInfo", NONE, (CUkernel, size_t, size_t *, size_t *))    \
    X(cuFuncGetParamInfo, "cuFuncGetParamInfo", 12040, "cuFuncGetParamInfo", NONE, (CUfunction, size_t, size_t *, size_t *))        \
    X(cuFuncGetName, "cuFuncGetName", 12030, "cuFuncGetName", NONE, (const char **, CUfunction))                                    \
    X(cuFuncSetBlockShape, "cuFuncSetBlockShape", 2000, "cuFuncSetBlockShape", NONE, (CUfunction, int, int, int))                   \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", 2020, "cuFuncGetAttribute", NONE, (int *, CUfunction_attribute, CUfunction))        \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, "cuLaunchKernel", PTSZ,                                                               \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))               \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, "cuLaunchKernelEx", PTSZ, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, "cuLaunchCooperativeKernel", PTSZ,                              \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))                        \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, "cuLaunchHostFunc", PTSZ, (CUstream, CUhostFn, void *))                          \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled", 12000, "cuTensorMapEncodeTiled", NONE,                                      \
      (CUtensorMap *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int))\
    X(cuTensorMapReplaceAddress, "cuTensorMapReplaceAddress", 12000, "cuTensorMapReplaceAddress", NONE, (CUtensorMap *, void *))    \
    X(cuMemGetInfo, "cuMemGetInfo", 3020, "cuMemGetInfo_v2", NONE, (size_t *, size_t *))                                            \
    X(cuMemAlloc, "cuMemAlloc", 3020, "cuMemAlloc_v2", NONE, (CUdeviceptr *, size_t))                                               \
    X(cuMemAllocPitch, "cuMemAllocPitch", 3020, "cuMemAllocPitch_v2", NONE, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))    \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, "cuMemAllocManaged", NONE, (CUdeviceptr *, size_t, unsigned))                   \
    X(cuMemFree, "cuMemFree", 3020, "cuMemFree_v2", NONE, (CUdeviceptr))                                                            \
    X(cuMemGetAddressRange, "cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2", NONE, (CUdeviceptr *, size_t *, CUdeviceptr))  \
    X(cuMemAllocHost, "cuMemAllocHost", 3020, "cuMemAllocHost_v2", NONE, (void **, size_t))                                         \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, "cuMemHostAlloc", NONE, (void **, size_t, unsigned))                                  \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, "cuMemFreeHost", NONE, (void *))                                                        \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", NONE,                           \
      (CUdeviceptr *, void *, unsigned))                                                                                            \
    X(cuMemHostGetFlags, "cuMemHostGetFlags", 2030, "cuMemHostGetFlags", NONE, (unsigned *, void *))                                \
    X(cuMemHostRegister, "cuMemHostRegister", 6050, "cuMemHostRegister_v2", NONE, (void *, size_t, unsigned))                       \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, "cuMemHostUnregister", NONE, (void *))                                      \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, "cuPointerGetAttribute", NONE,                                          \
      (void *, CUpointer_attribute, CUdeviceptr))                                                                                   \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, "cuPointerGetAttributes", NONE,                                       \
      (unsigned, CUpointer_attribute *, void **, CUdeviceptr))                                                                      \
    X(cuMemcpy, "cuMemcpy", 4000, "cuMemcpy", PTDS, (CUdeviceptr, CUdeviceptr, size_t))                                             \
    X(cuMemcpyAsync, "cuMemcpyAsync", 4000, "cuMemcpyAsync", PTSZ, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                    \
    X(cuMemcpyHtoD, "cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2", PTDS, (CUdeviceptr, const void *, size_t))                             \
    X(cuMemcpyDtoH, "cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2", PTDS, (void *, CUdeviceptr, size_t))                                   \
    X(cuMemcpyDtoD, "cuMemcpyDtoD", 3020, "cuMemcpyDtoD_v2", PTDS, (CUdeviceptr, CUdeviceptr, size_t))                              \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2", PTSZ, (CUdeviceptr, const void *, size_t, CUstream))    \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2", PTSZ, (void *, CUdeviceptr, size_t, CUstream))          \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2", PTSZ, (CUdeviceptr, CUdeviceptr, size_t, CUstream))     \
    X(cuMemcpyPeer, "cuMemcpyPeer", 4000, "cuMemcpyPeer", PTDS, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))           \
    X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, "cuMemcpyPeerAsync", PTSZ,                                                      \
      (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))                                                           \
    X(cuMemcpy2D, "cuMemcpy2D", 3020, "cuMemcpy2D_v2", PTDS, (const CUDA_MEMCPY2D *))                                               \
    X(cuMemcpy2DUnaligned, "cuMemcpy2DUnaligned", 3020, "cuMemcpy2DUnaligned_v2", PTDS, (const CUDA_MEMCPY2D *))                    \
    X(cuMemcpy2DAsync, "cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2", PTSZ, (const CUDA_MEMCPY2D *, CUstream))                      \
    X(cuMemcpy3D, "cuMemcpy3D", 3020, "cuMemcpy3D_v2", PTDS, (const CUDA_MEMCPY3D *))                                               \
    X(cuMemcpy3DAsync, "cuMemcpy3DAsync", 3020, "cuMemcpy3DAsync_v2", PTSZ, (const CUDA_MEMCPY3D *, CUstream))                      \
    X(cuMemcpyBatchAsync_v1, "cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync", PTSZ,                                               \
      (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream))                 \
    X(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2", PTSZ,                                            \
      (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, CUstream))                           \
    X(cuMemsetD8, "cuMemsetD8", 3020, "cuMemsetD8_v2", PTDS, (CUdeviceptr, unsigned char, size_t))                                  \
    X(cuMemsetD16, "cuMemsetD16", 3020, "cuMemsetD16_v2", PTDS, (CUdeviceptr, unsigned short, size_t))                              \
    X(cuMemsetD32, "cuMemsetD32", 3020, "cuMemsetD32_v2", PTDS, (CUdeviceptr, unsigned, size_t))                                    \
    X(cuMemsetD2D8, "cuMemsetD2D8", 3020, "cuMemsetD2D8_v2", PTDS, (CUdeviceptr, size_t, unsigned char, size_t, size_t))            \
    X(cuMemsetD2D16, "cuMemsetD2D16", 3020, "cuMemsetD2D16_v2", PTDS, (CUdeviceptr, size_t, unsigned short, size_t, size_t))        \
    X(cuMemsetD2D32, "cuMemsetD2D32", 3020, "cuMemsetD2D32_v2", PTDS, (CUdeviceptr, size_t, unsigned, size_t, size_t))              \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, "cuMemsetD8Async", PTSZ, (CUdeviceptr, unsigned char, size_t, CUstream))            \
    X(cuMemsetD16Async, "cuMemsetD16Async", 3020, "cuMemsetD16Async", PTSZ, (CUdeviceptr, unsigned short, size_t, CUstream))        \
    X(cuMemsetD32Async, "cuMemsetD32Async", 3020, "cuMemsetD32Async", PTSZ, (CUdeviceptr, unsigned, size_t, CUstream))              \
    X(cuMemsetD2D8Async, "cuMemsetD2D8Async", 3020, "cuMemsetD2D8Async", PTSZ,                                                      \
      (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))                                                               \
    X(cuMemsetD2D16Async, "cuMemsetD2D16Async", 3020, "cuMemsetD2D16Async", PTSZ,                                                   \
      (CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream))                                                              \
    X(cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020, "cuMemsetD2D32Async", PTSZ,                                                   \
      (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))                                                                    \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, "cuMemAllocAsync", PTSZ, (CUdeviceptr *, size_t, CUstream))                        \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, "cuMemFreeAsync", PTSZ, (CUdeviceptr, CUstream))                                     \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync", PTSZ,                                   \
      (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                                                              \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, "cuMemPoolCreate", NONE, (CUmemoryPool *, const CUmemPoolProps *))                 \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, "cuMemPoolDestroy", NONE, (CUmemoryPool))                                        \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, "cuMemPoolTrimTo", NONE, (CUmemoryPool, size_t))                                   \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, "cuMemPoolSetAttribute", NONE,                                         \
      (CUmemoryPool, CUmemPool_attribute, void *))                                                                                  \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, "cuMemPoolGetAttribute", NONE,                                         \
      (CUmemoryPool, CUmemPool_attribute, void *))                                                                                  \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020, "cuMemAddressReserve", NONE,                                               \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                                             \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, "cuMemAddressFree", NONE, (CUdeviceptr, size_t))                                 \
    X(cuMemCreate, "cuMemCreate", 10020, "cuMemCreate", NONE,                                                                       \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                                    \
    X(cuMemRelease, "cuMemRelease", 10020, "cuMemRelease", NONE, (CUmemGenericAllocationHandle))                                    \
    X(cuMemMap, "cuMemMap", 10020, "cuMemMap", NONE,                                                                                \
      (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                                              \
    X(cuMemUnmap, "cuMemUnmap", 10020, "cuMemUnmap", NONE, (CUdeviceptr, size_t))                                                   \
    X(cuMemSetAccess, "cuMemSetAccess", 10020, "cuMemSetAccess", NONE, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))      \
    X(cuMemGetAccess, "cuMemGetAccess", 10020, "cuMemGetAccess", NONE, (unsigned long long *, const CUmemLocation *, CUdeviceptr))  \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity", NONE,                 \
      (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                                                    \
    X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020,                                      \
      "cuMemGetAllocationPropertiesFromHandle", NONE, (CUmemAllocationProp *, CUmemGenericAllocationHandle))                        \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, "cuMemRetainAllocationHandle", NONE,                       \
      (CUmemGenericAllocationHandle *, void *))                                                                                     \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle", NONE,                    \
      (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                                        \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle", NONE,              \
      (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                                                          \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle", NONE, (CUipcMemHandle *, CUdeviceptr))                     \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2", NONE, (CUdeviceptr *, CUipcMemHandle, unsigned))    \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle", NONE, (CUdeviceptr))                                 \
    X(cuIpcGetEventHandle, "cuIpcGetEventHandle", 4010, "cuIpcGetEventHandle", NONE, (CUipcEventHandle *, CUevent))                 \
    X(cuIpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, "cuIpcOpenEventHandle", NONE, (CUevent *, CUipcEventHandle))              \
    X(cuStreamCreate, "cuStreamCreate", 2000, "cuStreamCreate", NONE, (CUstream *, unsigned))                                       \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority", NONE, (CUstream *, unsigned, int)) \
    X(cuStreamDestroy, "cuStreamDestroy", 4000, "cuStreamDestroy_v2", NONE, (CUstream))                                             \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, "cuStreamSynchronize", PTSZ, (CUstream))                                    \
    X(cuStreamQuery, "cuStreamQuery", 2000, "cuStreamQuery", PTSZ, (CUstream))                                                      \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, "cuStreamWaitEvent", PTSZ, (CUstream, CUevent, unsigned))                       \
    X(cuStreamGetPriority, "cuStreamGetPriority", 5050, "cuStreamGetPriority", PTSZ, (CUstream, int *))                             \
    X(cuStreamGetFlags, "cuStreamGetFlags", 5050, "cuStreamGetFlags", PTSZ, (CUstream, unsigned *))                                 \
    X(cuStreamGetCtx, "cuStreamGetCtx", 9020, "cuStreamGetCtx", PTSZ, (CUstream, CUcontext *))                                      \
    X(cuStreamAddCallback, "cuStreamAddCallback", 5000, "cuStreamAddCallback", PTSZ, (CUstream, CUstreamCallback, void *, unsigned)) \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2", PTSZ, (CUstream, CUstreamCaptureMode))        \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, "cuStreamEndCapture", PTSZ, (CUstream, CUgraph *))                           \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, "cuStreamIsCapturing", PTSZ, (CUstream, CUstreamCaptureStatus *))          \
    X(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2", PTSZ,                                   \
      (CUstream, CUstreamCaptureStatus *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *))                                   \
    X(cuStreamGetCaptureInfo_v3, "cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3", PTSZ,                                \
      (CUstream, CUstreamCaptureStatus *, uint64_t *, CUgraph *, const CUgraphNode **, const CUgraphEdgeData **, size_t *))         \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode", NONE,     \
      (CUstreamCaptureMode *))                                                                                                      \
    X(cuEventCreate, "cuEventCreate", 2000, "cuEventCreate", NONE, (CUevent *, unsigned))                                           \
    X(cuEventDestroy, "cuEventDestroy", 4000, "cuEventDestroy_v2", NONE, (CUevent))                                                 \
    X(cuEventRecord, "cuEventRecord", 2000, "cuEventRecord", PTSZ, (CUevent, CUstream))                                             \
    X(cuEventQuery, "cuEventQuery", 2000, "cuEventQuery", NONE, (CUevent))                                                          \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, "cuEventSynchronize", NONE, (CUevent))                                        \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, "cuEventElapsedTime", NONE, (float *, CUevent, CUevent))                      \
    X(cuGraphCreate, "cuGraphCreate", 10000, "cuGraphCreate", NONE, (CUgraph *, unsigned))                                          \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, "cuGraphDestroy", NONE, (CUgraph))                                                   \
    X(cuGraphAddKernelNode, "cuGraphAddKernelNode", 12000, "cuGraphAddKernelNode_v2", NONE,                                         \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))                                       \
    X(cuGraphAddMemcpyNode, "cuGraphAddMemcpyNode", 10000, "cuGraphAddMemcpyNode", NONE,                                            \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext))                                      \
    X(cuGraphAddMemsetNode, "cuGraphAddMemsetNode", 10000, "cuGraphAddMemsetNode", NONE,                                            \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext))                            \
    X(cuGraphAddHostNode, "cuGraphAddHostNode", 10000, "cuGraphAddHostNode", NONE,                                                  \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *))                                         \
    X(cuGraphAddEmptyNode, "cuGraphAddEmptyNode", 10000, "cuGraphAddEmptyNode", NONE,                                               \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))                                                                        \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, "cuGraphGetNodes", NONE, (CUgraph, CUgraphNode *, size_t *))                       \
    X(cuGraphGetRootNodes, "cuGraphGetRootNodes", 10000, "cuGraphGetRootNodes", NONE, (CUgraph, CUgraphNode *, size_t *))           \
    X(cuGraphGetEdges, "cuGraphGetEdges", 10000, "cuGraphGetEdges", NONE, (CUgraph, CUgraphNode *, CUgraphNode *, size_t *))        \
    X(cuGraphNodeGetType, "cuGraphNodeGetType", 10000, "cuGraphNodeGetType", NONE, (CUgraphNode, CUgraphNodeType *))                \
    X(cuGraphNodeGetDependencies, "cuGraphNodeGetDependencies", 10000, "cuGraphNodeGetDependencies", NONE,                          \
      (CUgraphNode, CUgraphNode *, size_t *))                                                                                       \
    X(cuGraphKernelNodeGetParams, "cuGraphKernelNodeGetParams", 12000, "cuGraphKernelNodeGetParams_v2", NONE,                       \
      (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                                                                                     \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, "cuGraphInstantiateWithFlags", NONE,                       \
      (CUgraphExec *, CUgraph, unsigned long long))                                                                                 \
    X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams", 12000, "cuGraphExecKernelNodeSetParams_v2", NONE,           \
      (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))                                                                  \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, "cuGraphExecDestroy", NONE, (CUgraphExec))                                   \
    X(cuGraphUpload, "cuGraphUpload", 11010, "cuGraphUpload", PTSZ, (CUgraphExec, CUstream))                                        \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, "cuGraphLaunch", PTSZ, (CUgraphExec, CUstream))                                        \
    X(cuCheckpointProcessGetState, "cuCheckpointProcessGetState", 12080, "cuCheckpointProcessGetState", NONE, (int, CUprocessState *)) \
    X(cuCheckpointProcessLock, "cuCheckpointProcessLock", 12080, "cuCheckpointProcessLock", NONE, (int, CUcheckpointLockArgs *))    \
    X(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080, "cuCheckpointProcessCheckpoint", NONE,                 \
      (int, CUcheckpointArgs *))                                                                                                    \
    X(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, "cuCheckpointProcessRestore", NONE, (int, CUcheckpointArgs *)) \
    X(cuCheckpointProcessUnlock, "cuCheckpointProcessUnlock", 12080, "cuCheckpointProcessUnlock", NONE, (int, CUcheckpointArgs *))

static struct {
#define X(member, name, version, symbol, twin, parameters) CUresult(*member) parameters;
    CUDA_FUNCTIONS(X)
#undef X
} cu;

typedef CUresult (*cuGetProcAddress_v2_t)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

/* Whether stream 0 is the calling thread's own: CUDA_TEST_LOADER names a per-thread way. */
static bool cu_per_thread;

static inline const char *cu_error(CUresult result)
{
    static _Thread_local char numbers[2][32];
    static _Thread_local unsigned turn;
    char *number = numbers[turn++ % 2];
    const char *name = NULL;
    if (cu.cuGetErrorName && cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    snprintf(number, sizeof numbers[0], "error %d", (int)result);
    return number;
}

static inline CUresult cu_expect(CUresult got, CUresult want, const char *file, int line, const char *call, const char *arguments)
{
    if (got != want) {
        fflush(stdout);
        fprintf(stderr, "%s:%d: %s(%s): %s, not %s\n", file, line, call, arguments, cu_error(got), cu_error(want));
        exit(1);
    }
    return got;
}

static inline CUresult cu_expect_error(CUresult got, const char *file, int line, const char *call, const char *arguments)
{
    if (got == CUDA_SUCCESS) {
        fflush(stdout);
        fprintf(stderr, "%s:%d: %s(%s): succeeded where an error was due\n", file, line, call, arguments);
        exit(1);
    }
    printf("  %s(%s): %s\n", call, arguments, cu_error(got));
    return got;
}

/* TRY calls and returns the result; NOT_FOUND for a function that the library lacks.  CALL requires success, EXPECT this error,
 * EXPECT_ERROR any (for cases whose error the documentation leaves open; it is printed). */
#define TRY(function, ...) (cu.function ? cu.function(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)
#define EXPECT(want, function, ...) \
    cu_expect(TRY(function, __VA_ARGS__), want, __FILE__, __LINE__, #function, #__VA_ARGS__)
#define CALL(function, ...) EXPECT(CUDA_SUCCESS, function, __VA_ARGS__)
#define EXPECT_ERROR(function, ...) cu_expect_error(TRY(function, __VA_ARGS__), __FILE__, __LINE__, #function, #__VA_ARGS__)

static inline void *cu_library(void)
{
    static void *library;
    if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

/* Fills the table.  The environment variable CUDA_TEST_LOADER selects the way: dlsym (also when unset), dlsym-per-thread,
 * resolver, resolver-per-thread.  Functions that the library lacks stay null. */
static inline void cu_open(void)
{
    static const struct {
        const char *name, *symbol, *twin;
        int version;
        size_t at;
    } table[] = {
#define X(member, name, version, symbol, twin, parameters) { name, symbol, twin, version, offsetof(__typeof__(cu), member) },
        CUDA_FUNCTIONS(X)
#undef X
    };
    const char *way = getenv("CUDA_TEST_LOADER");
    if (!way || !*way)
        way = "dlsym";
    bool resolver = strncmp(way, "resolver", 8) == 0;
    cu_per_thread = strstr(way, "-per-thread") != NULL;
    if (strcmp(way, resolver ? "resolver" : "dlsym") != 0 && !cu_per_thread) {
        fprintf(stderr, "CUDA_TEST_LOADER = %s: dlsym, dlsym-per-thread, resolver or resolver-per-thread\n", way);
        exit(1);
    }
    cuGetProcAddress_v2_t resolve = NULL;
    if (resolver) {
        void *symbol = dlsym(cu_library(), "cuGetProcAddress_v2");
        memcpy(&resolve, &symbol, sizeof resolve);
        CHECK(resolve);
    }
    for (size_t i = 0; i < COUNT(table); i++) {
        bool twin = cu_per_thread && *table[i].twin;
        void *found = NULL;
        if (resolver) {
            CUdriverProcAddressQueryResult status;
            int version = twin && table[i].version < 7000 ? 7000 : table[i].version;
            uint64_t flags = twin ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
            if (resolve(table[i].name, &found, version, flags, &status) != CUDA_SUCCESS)
                found = NULL;
        } else {
            char symbol[96];
            snprintf(symbol, sizeof symbol, "%s%s", table[i].symbol, twin ? table[i].twin : "");
            found = dlsym(cu_library(), symbol);
        }
        memcpy((char *)&cu + table[i].at, &found, sizeof found);
    }
}

/* ---- A device, its primary context and Weir's kernels ---- */

struct gpu {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    unsigned sms;
    CUfunction spin, fill, sum, hash, add, saxpy, matmul;
};

static inline void gpu_load(struct gpu *gpu, const char *ptx)
{
    int sms;
    CALL(cuDeviceGetAttribute, &sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
    gpu->sms = (unsigned)sms;
    char *text = read_file(ptx);
    CALL(cuModuleLoadData, &gpu->module, text);
    free(text);
    CALL(cuModuleGetFunction, &gpu->spin, gpu->module, "weir_spin");
    CALL(cuModuleGetFunction, &gpu->fill, gpu->module, "weir_fill");
    CALL(cuModuleGetFunction, &gpu->sum, gpu->module, "weir_sum");
    CALL(cuModuleGetFunction, &gpu->hash, gpu->module, "weir_hash");
    CALL(cuModuleGetFunction, &gpu->add, gpu->module, "weir_add");
    CALL(cuModuleGetFunction, &gpu->saxpy, gpu->module, "weir_saxpy");
    CALL(cuModuleGetFunction, &gpu->matmul, gpu->module, "weir_matmul");
}

static inline struct gpu gpu_open(const char *ptx)
{
    struct gpu gpu = { 0 };
    cu_open();
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &gpu.device, 0);
    CALL(cuDevicePrimaryCtxRetain, &gpu.context, gpu.device);
    CALL(cuCtxSetCurrent, gpu.context);
    gpu_load(&gpu, ptx);
    return gpu;
}

static inline void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void **parameters)
{
    CALL(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

static inline unsigned blocks_for(uint64_t threads)
{
    return (unsigned)((threads + 255) / 256);
}

/* Computes for this time on this many SMs, with one block of 1024 threads on each. */
static inline void spin(const struct gpu *gpu, uint64_t ns, unsigned blocks, CUstream stream)
{
    uint32_t law = 0, parameter = 0, interference = 0;
    launch(gpu->spin, blocks, 1024, stream, (void *[]){ &ns, &law, &parameter, &interference });
}

static inline void fill(const struct gpu *gpu, CUdeviceptr out, uint64_t words, uint32_t value, CUstream stream)
{
    launch(gpu->fill, blocks_for(words), 256, stream, (void *[]){ &out, &words, &value });
}

/* Adds the sum of the words to the 64-bit number at `out`. */
static inline void sum(const struct gpu *gpu, CUdeviceptr out, CUdeviceptr in, uint64_t words, CUstream stream)
{
    launch(gpu->sum, blocks_for(words), 256, stream, (void *[]){ &out, &in, &words });
}

/* Returns the result of weir_sum or weir_hash on the words, after all queued work. */
static inline uint64_t fold(CUfunction function, CUdeviceptr in, uint64_t words)
{
    CALL(cuCtxSynchronize);
    uint64_t total = 0;
    CUdeviceptr out;
    CUstream stream;
    CALL(cuMemAlloc, &out, sizeof total);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemsetD8Async, out, 0, sizeof total, stream);
    launch(function, blocks_for(words), 256, stream, (void *[]){ &out, &in, &words });
    CALL(cuMemcpyDtoHAsync, &total, out, sizeof total, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuStreamDestroy, stream);
    CALL(cuMemFree, out);
    return total;
}

static inline uint64_t sum_of(const struct gpu *gpu, CUdeviceptr in, uint64_t words)
{
    return fold(gpu->sum, in, words);
}

static inline uint64_t hash_of(const struct gpu *gpu, CUdeviceptr in, uint64_t words)
{
    return fold(gpu->hash, in, words);
}

/* weir_hash in C. */
static inline uint64_t hash_here(const uint32_t *words, uint64_t count)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t z = ((i + 1) * 0x9e3779b97f4a7c15) ^ (words[i] * 0xd1342543de82ef95);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        total += z ^ (z >> 31);
    }
    return total;
}

/* Runs every kernel once, so that none is loaded, compiled or first launched during a measurement. */
static inline void warm_up(const struct gpu *gpu)
{
    CUdeviceptr some;
    CALL(cuMemAlloc, &some, 4096);
    CALL(cuMemsetD8, some, 0, 4096);
    spin(gpu, 1000, gpu->sms, NULL);
    fill(gpu, some, 16, 1, NULL);
    sum(gpu, some + 1024, some, 16, NULL);
    uint64_t out = some + 1024, words = 16;
    launch(gpu->hash, 1, 256, NULL, (void *[]){ &out, &some, &words });
    uint64_t n = 4;
    float a = 1;
    CUdeviceptr x = some + 2048, y = some + 3072;
    launch(gpu->add, 1, 256, NULL, (void *[]){ &y, &x, &x, &n });
    launch(gpu->saxpy, 1, 256, NULL, (void *[]){ &y, &x, &n, &a });
    CALL(cuCtxSynchronize);
    CALL(cuMemFree, some);
}

/* Returns the time between two completed events. */
static inline int64_t elapsed_ns(CUevent from, CUevent to)
{
    float ms;
    CALL(cuEventElapsedTime, &ms, from, to);
    return (int64_t)((double)ms * 1e6 + 0.5);
}

/* Returns the value of `--name VALUE` among the arguments, else the default. */
static inline long option(int argc, char **argv, const char *name, long otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return strtol(argv[i + 1], NULL, 10);
    return otherwise;
}

static inline void want_ptx(int argc, char **argv, const char *rest)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s PTX%s\n", argv[0], rest);
        exit(1);
    }
}

#endif /* DRIVER_TYPES_ONLY */
#endif
