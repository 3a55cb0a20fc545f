/* Many small allocations: 10,000 of 64 KiB, freed in random order and replaced by others, each with a pattern of
 * its own that is intact when it is freed.  Also several threads that do the same with mixed sizes at once.
 *
 * usage: small PTX [--count N] [--kib K]        (default 10000 of 64)
 * It prints, with and without a preload library:
 *   one thread: all patterns were right
 *   four threads: all patterns were right
 *   nothing is left
 *   ok */
#include "../driver.h"

enum { KIB = 1024, MIB = 1024 * KIB, LARGEST = 2 * MIB };

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed >> 11;
}

struct one {
    CUdeviceptr at;
    size_t size;
    uint32_t mark;
};

/* The ends and the middle are checked: an overlapping neighbour changes one of them. */
static void write_marks(const struct one *one)
{
    CALL(cuMemsetD8, one->at, (unsigned char)one->mark, one->size);
    if (one->size >= 12) {
        CALL(cuMemcpyHtoD, one->at, &one->mark, 4);
        CALL(cuMemcpyHtoD, one->at + one->size - 4, &one->mark, 4);
    }
}

static void check_marks(const struct one *one)
{
    uint32_t begin = 0, end = 0;
    unsigned char middle = 0;
    CALL(cuMemcpyDtoH, &middle, one->at + one->size / 2, 1);
    CHECK_EQUAL(middle, (unsigned char)one->mark);
    if (one->size >= 12) {
        CALL(cuMemcpyDtoH, &begin, one->at, 4);
        CALL(cuMemcpyDtoH, &end, one->at + one->size - 4, 4);
        CHECK_EQUAL(begin, one->mark);
        CHECK_EQUAL(end, one->mark);
    }
}

static void one_thread(size_t count, size_t size)
{
    struct one *all = calloc(count, sizeof *all);
    CHECK(all);
    uint64_t seed = 42;
    for (size_t i = 0; i < count; i++) {
        all[i] = (struct one){ .size = size, .mark = (uint32_t)(i * 2654435761u + 1) };
        CALL(cuMemAlloc, &all[i].at, size);
        write_marks(&all[i]);
    }
    /* Half of them again, so that pieces of every age are adjacent. */
    for (size_t i = 0; i < count / 2; i++) {
        struct one *one = &all[next(&seed) % count];
        check_marks(one);
        CALL(cuMemFree, one->at);
        one->size = size / 2 + next(&seed) % size;
        one->mark = (uint32_t)next(&seed);
        CALL(cuMemAlloc, &one->at, one->size);
        write_marks(one);
    }
    for (size_t i = 0; i < count; i++) {
        size_t which = i + next(&seed) % (count - i);
        struct one swap = all[i];
        all[i] = all[which];
        all[which] = swap;
        check_marks(&all[i]);
        CALL(cuMemFree, all[i].at);
    }
    free(all);
    puts("one thread: all patterns were right");
}

struct part {
    CUcontext context;
    uint64_t seed;
};

static void *work(void *argument)
{
    struct part *part = argument;
    enum { HELD = 50 };
    struct one held[HELD] = { 0 };
    CALL(cuCtxSetCurrent, part->context);
    for (int i = 0; i < 1500; i++) {
        struct one *one = &held[next(&part->seed) % HELD];
        if (one->at) {
            check_marks(one);
            CALL(cuMemFree, one->at);
        }
        /* From a few bytes to more than a slab. */
        one->size = 1 + next(&part->seed) % ((size_t)1 << (next(&part->seed) % 21 + 1));
        one->mark = (uint32_t)next(&part->seed);
        CALL(cuMemAlloc, &one->at, one->size);
        write_marks(one);
    }
    for (int i = 0; i < HELD; i++) {
        if (held[i].at) {
            check_marks(&held[i]);
            CALL(cuMemFree, held[i].at);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    want_ptx(argc, argv, " [--count N] [--kib K]");
    struct gpu gpu = gpu_open(argv[1]);
    warm_up(&gpu);
    size_t before, after, total;
    CALL(cuMemGetInfo, &before, &total);
    one_thread((size_t)option(argc, argv, "--count", 10000), (size_t)option(argc, argv, "--kib", 64) * KIB);
    struct part parts[4];
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT(threads); i++) {
        parts[i] = (struct part){ gpu.context, 1234567 * (i + 1) };
        CHECK(pthread_create(&threads[i], NULL, work, &parts[i]) == 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("four threads: all patterns were right");
    CALL(cuMemGetInfo, &after, &total);
    CHECK_EQUAL(after, before);
    puts("nothing is left");
    puts("ok");
    return 0;
}
