/* Legacy inter-process communication: memory handles and event handles between two processes.
 *
 * usage: ipc PTX.  It starts itself as `ipc PTX import` and `ipc PTX export`. */
#include "driver.h"

#include <signal.h>

#define MS UINT64_C(1000000)
enum { WORDS = 3 << 20, ROUNDS = 200 };

struct offer {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

static CUevent shared_event(void)
{
    CUevent event;
    CALL(cuEventCreate, &event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    return event;
}

static void want(char expected)
{
    char byte = 0;
    CHECK(read_all(CHILD_SOCKET, &byte, 1));
    CHECK_EQUAL(byte, expected);
}

/* Adds one to the number at an address, as the sum of a single word of value one. */
static void add_one(struct gpu *gpu, CUdeviceptr at, CUstream stream)
{
    fill(gpu, at + 8, 1, 1, stream);
    sum(gpu, at, at + 8, 1, stream);
}

/* Holds a stream until the child's next byte. */
static void hold(void *socket)
{
    char byte = 0;
    CHECK(read_all(*(int *)socket, &byte, 1) && byte == 'n');
}

static int import_child(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    warm_up(&gpu);
    struct offer offer;
    CUdeviceptr at, again, out;
    CUevent theirs, ours = shared_event();
    CUipcEventHandle reply;
    CUstream stream;
    uint64_t total;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &out, 8);
    CALL(cuMemsetD8, out, 0, 8);
    CHECK(read_all(CHILD_SOCKET, &offer, sizeof offer));
    CALL(cuIpcOpenMemHandle, &at, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CALL(cuIpcOpenEventHandle, &theirs, offer.event);
    CALL(cuIpcGetEventHandle, &reply, ours);
    write_all(CHILD_SOCKET, &reply, sizeof reply);
    total = sum_of(&gpu, at, WORDS);
    write_all(CHILD_SOCKET, &total, sizeof total);

    /* A record is known here once its caller says so: the parent's stream is held until this process answers. */
    for (int i = 0; i < ROUNDS; i++) {
        want('h');
        EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, theirs);
        write_all(CHILD_SOCKET, "n", 1);
        CALL(cuEventSynchronize, theirs);
        write_all(CHILD_SOCKET, "s", 1);
    }

    /* The parent has queued a spin, a fill with 2 and the event; work after the event sees the fill. */
    want('r');
    CALL(cuStreamWaitEvent, stream, theirs, 0);
    sum(&gpu, out, at, WORDS, stream);
    CALL(cuMemcpyDtoHAsync, &total, out, 8, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuEventQuery, theirs);
    write_all(CHILD_SOCKET, &total, sizeof total);

    /* The other direction, with a spin and a fill with 3 here. */
    want('b');
    spin(&gpu, 100 * MS, 1, stream);
    fill(&gpu, at, WORDS, 3, stream);
    CALL(cuEventRecord, ours, stream);
    write_all(CHILD_SOCKET, "b", 1);
    want('d');
    CALL(cuStreamSynchronize, stream);

    /* A ping-pong that is queued completely before any of it has run: each side waits for the other's last record. */
    want('p');
    for (int i = 0; i < ROUNDS; i++) {
        want('1');
        CALL(cuStreamWaitEvent, stream, theirs, 0);
        add_one(&gpu, at, stream);
        CALL(cuEventRecord, ours, stream);
        write_all(CHILD_SOCKET, "2", 1);
    }
    CALL(cuStreamSynchronize, stream);
    want('f');
    fill(&gpu, at, WORDS, 3, NULL);
    CALL(cuCtxSynchronize);
    write_all(CHILD_SOCKET, "e", 1);

    /* An event that was recorded and completed before it was opened here. */
    CHECK(read_all(CHILD_SOCKET, &reply, sizeof reply));
    CUevent early;
    CALL(cuIpcOpenEventHandle, &early, reply);
    CALL(cuEventQuery, early);
    CALL(cuEventSynchronize, early);
    CALL(cuEventDestroy, early);

    /* Opening twice gives the same address and requires closing twice. */
    CALL(cuIpcOpenMemHandle, &again, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CHECK_EQUAL(again, at);
    CALL(cuIpcCloseMemHandle, again);
    CHECK_EQUAL(sum_of(&gpu, at, WORDS), 3 * (uint64_t)WORDS);
    CALL(cuIpcCloseMemHandle, at);
    EXPECT_ERROR(cuIpcCloseMemHandle, at);
    CALL(cuEventDestroy, theirs);
    CALL(cuEventDestroy, ours);
    write_all(CHILD_SOCKET, "c", 1);
    return 0;
}

/* Records an event behind work that never ends in time, and is killed. */
static int record_child(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    CUipcEventHandle handle;
    CUevent event = shared_event();
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    spin(&gpu, 100000 * MS, 1, stream);
    CALL(cuEventRecord, event, stream);
    CALL(cuIpcGetEventHandle, &handle, event);
    write_all(CHILD_SOCKET, &handle, sizeof handle);
    want('q');
    raise(SIGKILL);
    return 1;
}

/* Exports, and ends at once on request. */
static int export_child(const char *ptx)
{
    struct gpu gpu = gpu_open(ptx);
    struct offer offer;
    CUdeviceptr at;
    CUevent event = shared_event();
    CALL(cuMemAlloc, &at, 4 * WORDS);
    fill(&gpu, at, WORDS, 8, NULL);
    CALL(cuCtxSynchronize);
    CALL(cuIpcGetMemHandle, &offer.memory, at);
    CALL(cuIpcGetEventHandle, &offer.event, event);
    write_all(CHILD_SOCKET, &offer, sizeof offer);
    want('q');
    return 0;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    if (argc > 2)
        return strcmp(argv[2], "import") == 0 ? import_child(argv[1])
            : strcmp(argv[2], "record") == 0 ? record_child(argv[1]) : export_child(argv[1]);
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    struct offer offer;
    CUdeviceptr at, wrong;
    CUevent event = shared_event(), plain, opened, theirs;
    CUipcEventHandle reply;
    CUstream stream;
    uint64_t total = 0;
    char byte;
    int supported;
    CALL(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, gpu.device);
    CHECK(supported);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &at, 4 * WORDS);
    fill(&gpu, at, WORDS, 1, NULL);
    CALL(cuCtxSynchronize);
    CALL(cuIpcGetMemHandle, &offer.memory, at);
    CALL(cuIpcGetEventHandle, &offer.event, event);

    CALL(cuEventCreate, &plain, CU_EVENT_DISABLE_TIMING);
    EXPECT_ERROR(cuIpcGetEventHandle, &reply, plain);
    CALL(cuEventDestroy, plain);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate, &plain, CU_EVENT_INTERPROCESS);
    /* A handle is for other processes. */
    EXPECT_ERROR(cuIpcOpenMemHandle, &wrong, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    /* The documentation does not state this for events: the result is printed, but not checked. */
    CUresult result = TRY(cuIpcOpenEventHandle, &opened, offer.event);
    printf("  an event handle opened where it was made: %s\n", cu_error(result));
    if (result == CUDA_SUCCESS)
        CALL(cuEventDestroy, opened);
    EXPECT_ERROR(cuIpcGetMemHandle, &offer.memory, 0x1000);
    CALL(cuIpcGetMemHandle, &offer.memory, at);

    struct child child = spawn_self((char *[]){ "ipc", argv[1], "import", NULL });
    write_all(child.socket, &offer, sizeof offer);
    CHECK(read_all(child.socket, &reply, sizeof reply));
    CALL(cuIpcOpenEventHandle, &theirs, reply);
    CHECK(read_all(child.socket, &total, sizeof total));
    CHECK_EQUAL(total, WORDS);

    for (int i = 0; i < ROUNDS; i++) {
        CALL(cuLaunchHostFunc, stream, hold, &child.socket);
        CALL(cuEventRecord, event, stream);
        write_all(child.socket, "h", 1);
        CALL(cuEventSynchronize, event);
        CHECK(read_all(child.socket, &byte, 1) && byte == 's');
    }

    spin(&gpu, 300 * MS, 1, stream);
    fill(&gpu, at, WORDS, 2, stream);
    CALL(cuEventRecord, event, stream);
    write_all(child.socket, "r", 1);
    CHECK(read_all(child.socket, &total, sizeof total));
    CHECK_EQUAL(total, 2 * (uint64_t)WORDS);

    write_all(child.socket, "b", 1);
    CHECK(read_all(child.socket, &byte, 1));
    CALL(cuStreamWaitEvent, stream, theirs, 0);
    CUdeviceptr out;
    CALL(cuMemAlloc, &out, 8);
    CALL(cuMemsetD8Async, out, 0, 8, stream);
    sum(&gpu, out, at, WORDS, stream);
    CALL(cuMemcpyDtoHAsync, &total, out, 8, stream);
    CALL(cuStreamSynchronize, stream);
    CHECK_EQUAL(total, 3 * (uint64_t)WORDS);
    write_all(child.socket, "d", 1);

    fill(&gpu, at, WORDS, 0, NULL);
    CALL(cuCtxSynchronize);
    write_all(child.socket, "p", 1);
    for (int i = 0; i < ROUNDS; i++) {
        if (i == 0)
            spin(&gpu, 100 * MS, 1, stream);
        add_one(&gpu, at, stream);
        CALL(cuEventRecord, event, stream);
        write_all(child.socket, "1", 1);
        CHECK(read_all(child.socket, &byte, 1) && byte == '2');
        CALL(cuStreamWaitEvent, stream, theirs, 0);
    }
    CALL(cuMemcpyDtoHAsync, &total, at, 8, stream);
    CALL(cuStreamSynchronize, stream);
    CHECK_EQUAL(total, 2 * ROUNDS);
    write_all(child.socket, "f", 1);
    CHECK(read_all(child.socket, &byte, 1) && byte == 'e');

    CUevent before = shared_event();
    fill(&gpu, out, 1, 1, stream);
    CALL(cuEventRecord, before, stream);
    CALL(cuEventSynchronize, before);
    CALL(cuIpcGetEventHandle, &reply, before);
    write_all(child.socket, &reply, sizeof reply);
    CHECK(read_all(child.socket, &byte, 1) && byte == 'c');
    CALL(cuEventDestroy, before);
    CHECK_EQUAL(reap(child), 0);
    CALL(cuEventDestroy, theirs);
    CHECK_EQUAL(sum_of(&gpu, at, WORDS), 3 * (uint64_t)WORDS);
    CALL(cuMemFree, at);
    CALL(cuMemFree, out);

    /* The memory of an exporter is freed at its end. */
    child = spawn_self((char *[]){ "ipc", argv[1], "export", NULL });
    CHECK(read_all(child.socket, &offer, sizeof offer));
    CALL(cuIpcOpenMemHandle, &at, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CHECK_EQUAL(sum_of(&gpu, at, WORDS), 8 * (uint64_t)WORDS);
    CALL(cuIpcCloseMemHandle, at);
    write_all(child.socket, "q", 1);
    CHECK_EQUAL(reap(child), 0);
    EXPECT_ERROR(cuIpcOpenMemHandle, &at, offer.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    result = TRY(cuIpcOpenEventHandle, &theirs, offer.event);
    printf("  an event handle whose maker is gone: %s\n", cu_error(result));

    /* Waiting for an event recorded by a killed process ends. */
    child = spawn_self((char *[]){ "ipc", argv[1], "record", NULL });
    CHECK(read_all(child.socket, &reply, sizeof reply));
    CALL(cuIpcOpenEventHandle, &theirs, reply);
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery, theirs);
    CALL(cuStreamWaitEvent, stream, theirs, 0);
    write_all(child.socket, "q", 1);
    CALL(cuStreamSynchronize, stream);
    CALL(cuEventSynchronize, theirs);
    CHECK(reap(child) != 0);
    CALL(cuEventDestroy, theirs);
    CALL(cuStreamDestroy, stream);
    CALL(cuEventDestroy, event);
    puts("ok");
    return 0;
}
