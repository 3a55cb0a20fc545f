/* A program that closes every file it does not know, as daemons do at their start, and then has files of its own under the
 * same numbers: nothing but the program writes to them, none is shut or closed, and its kernels run.  Below MINE are the files
 * that the driver has opened, which no driver works without.
 *
 * usage: swept PTX */
#include "../driver.h"

enum { MINE = 600, LAST = 900, FILES = 1024 };

int main(int argc, char **argv)
{
    want_ptx(argc, argv, "");
    struct gpu gpu = gpu_open(argv[1]);
    for (int file = MINE; file < FILES; file++)
        close(file);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 && pair[1] < MINE);
    /* A socket is most easily mistaken for a library's own. */
    for (int file = MINE; file < LAST; file++)
        CHECK(dup2(pair[0], file) == file);
    CUdeviceptr at;
    CALL(cuMemAlloc, &at, 4096);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 50; i++)
            fill(&gpu, at, 1024, (uint32_t)(round + i), NULL);
        CALL(cuCtxSynchronize);
        sleep_ms(10);
    }
    CHECK_EQUAL(sum_of(&gpu, at, 1024), (19 + 49) * 1024);
    CALL(cuMemFree, at);
    char bytes[64];
    CHECK(recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    for (int file = MINE; file < LAST; file++) {
        CHECK(send(file, "x", 1, MSG_NOSIGNAL) == 1);
        CHECK(recv(pair[1], bytes, sizeof bytes, 0) == 1 && bytes[0] == 'x');
    }
    puts("ok");
    return 0;
}
