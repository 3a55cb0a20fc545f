/* Requests that a software GPU refuses: the tables of the CUDA runtime, and images of code in every form.
 *
 * usage: refused tables|link|many|FORM      FORM: ptx, elf, host, fat, wrapper, bitcode, text
 *
 * Passes a form to every call that takes images, twice, and prints the call's name and result. */
#include "driver.h"

#include <unistd.h>

/* For a later architecture than any that a software GPU has. */
static const char PTX[] = ".version 8.7\n.target sm_120\n.visible .entry add(\n)\n{ ret; }\n.entry _Z3mulPf()\n{ ret; }\n";
static unsigned char image[4096];
static size_t length;

static void put(const void *bytes, size_t count)
{
    CHECK(length + count <= sizeof image);
    memcpy(image + length, bytes, count);
    length += count;
}

static void number(uint64_t value, size_t bytes)
{
    put(&value, bytes);
}

/* Writes a section's entry in an ELF file's table. */
static void section(uint32_t name, uint32_t kind, uint64_t at, uint64_t bytes)
{
    number(name, 4);
    number(kind, 4);
    number(0, 8);
    number(0, 8);
    number(at, 8);
    number(bytes, 8);
    number(0, 4);
    number(0, 4);
    number(1, 8);
    number(0, 8);
}

/* Writes an ELF file of this machine with a kernel's bank of constants. Its names follow its table of sections, and after them
 * its table of segments follows, as in the toolkit's files. */
static void elf(uint64_t machine)
{
    static const char names[] = "\0.shstrtab\0.nv.constant0.scale";
    size_t begin = length;
    put("\x7f" "ELF\2\1\1", 7);
    number(0, 8);
    number(0, 1);
    number(2, 2);
    number(machine, 2);
    number(1, 4);
    number(0, 8);
    number(64 + 3 * 64 + sizeof names, 8);
    number(64, 8);
    number(0, 4);
    number(64, 2);
    number(56, 2);
    number(1, 2);
    number(64, 2);
    number(3, 2);
    number(1, 2);
    CHECK(length - begin == 64);
    section(0, 0, 0, 0);
    section(1, 3, 64 + 3 * 64, sizeof names);
    section(11, 1, 64, 0);
    put(names, sizeof names);
    for (int i = 0; i < 7; i++)
        number(0, 8);
}

/* Writes a part of a fat binary: the header in front of its code. */
static void part(unsigned form, unsigned architecture, size_t bytes, unsigned compressed)
{
    number(form, 2);
    number(0x101, 2);
    number(64, 4);
    number(bytes, 8);
    number(compressed, 4);
    number(0, 8);
    number(architecture, 4);
    for (int i = 0; i < 4; i++)
        number(0, 8);
}

static void fat(void)
{
    static const char ptx[] = ".version 8.0\n.entry add()\n{}\n";
    put("\x50\xed\x55\xba\1\0\x10\0", 8);
    number(0, 8);
    size_t begin = length;
    part(1, 120, sizeof ptx, 0);
    put(ptx, sizeof ptx);
    part(2, 80, 5, 3);
    put("\xf0..", 5);
    size_t before = length;
    part(2, 75, 0, 0);
    size_t code = length;
    elf(190);
    uint64_t bytes = length - code, all = length - begin;
    memcpy(image + before + 8, &bytes, 8);
    memcpy(image + 8, &all, 8);
}

static void make(const char *form)
{
    if (!strcmp(form, "ptx"))
        put(PTX, sizeof PTX);
    else if (!strcmp(form, "elf"))
        elf(190);
    else if (!strcmp(form, "host"))
        elf(62);
    else if (!strcmp(form, "fat") || !strcmp(form, "wrapper"))
        fat();
    else if (!strcmp(form, "bitcode"))
        put("BC\xc0\xde\x35\x14", 7);
    else if (!strcmp(form, "text"))
        put("__global__ void add() {}", 25);
    else
        CHECK(!"a form");
}

static void *function(const char *name)
{
    void *found = dlsym(cu_library(), name);
    CHECK(found);
    return found;
}

static void file(void)
{
    FILE *out = fopen("refused-image", "wb");
    CHECK(out && fwrite(image, 1, length, out) == length && !fclose(out));
}

static void tables(void)
{
    static const unsigned char uuid[16] = { 0x6b, 0xd5 };
    CUresult (*get)(const void **, const void *) = function("cuGetExportTable");
    for (int i = 0; i < 4; i++) {
        const void *table = &table;
        CHECK(get(&table, uuid) == CUDA_ERROR_NOT_FOUND && !table);
        if (i == 1)
            CALL(cuInit, 0);
    }
}

static void load(const void *code, int with_files)
{
    CUresult (*data)(void **, const void *) = function("cuModuleLoadData");
    CUresult (*data_ex)(void **, const void *, unsigned, void *, void *) = function("cuModuleLoadDataEx");
    CUresult (*fat_binary)(void **, const void *) = function("cuModuleLoadFatBinary");
    CUresult (*library)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned) = function("cuLibraryLoadData");
    CUresult (*module_file)(void **, const char *) = function("cuModuleLoad");
    CUresult (*library_file)(void **, const char *, void *, void *, unsigned, void *, void *, unsigned) =
        function("cuLibraryLoadFromFile");
    void *out;
    for (int call = 0; call < (with_files ? 12 : 8); call++)
        switch (call / 2) {
        case 0: printf("cuModuleLoadData %d\n", data(&out, code)); break;
        case 1: printf("cuModuleLoadDataEx %d\n", data_ex(&out, code, 0, NULL, NULL)); break;
        case 2: printf("cuModuleLoadFatBinary %d\n", fat_binary(&out, code)); break;
        case 3: printf("cuLibraryLoadData %d\n", library(&out, code, NULL, NULL, 0, NULL, NULL, 0)); break;
        case 4: printf("cuModuleLoad %d\n", module_file(&out, "refused-image")); break;
        default: printf("cuLibraryLoadFromFile %d\n", library_file(&out, "refused-image", NULL, NULL, 0, NULL, NULL, 0));
        }
}

static void link_all(void)
{
    CUresult (*create)(unsigned, void *, void *, void **) = function("cuLinkCreate_v2");
    CUresult (*data)(void *, unsigned, const void *, size_t, const char *, unsigned, void *, void *) = function("cuLinkAddData_v2");
    CUresult (*from)(void *, unsigned, const char *, unsigned, void *, void *) = function("cuLinkAddFile_v2");
    void *state = NULL;
    elf(190);
    file();
    for (int i = 0; i < 2; i++) {
        CHECK(create(0, NULL, NULL, &state) == CUDA_ERROR_NOT_SUPPORTED);
        CHECK(data(state, 1, PTX, sizeof PTX, "mine", 0, NULL, NULL) == CUDA_ERROR_NOT_SUPPORTED);
        CHECK(from(state, 0, "refused-image", 0, NULL, NULL) == CUDA_ERROR_NOT_SUPPORTED);
    }
}

static void many(void)
{
    for (int i = 0; i < 100; i++) {
        char text[64];
        void *out;
        CUresult (*data)(void **, const void *) = function("cuModuleLoadData");
        snprintf(text, sizeof text, ".version 8.7\n.target sm_120\n.entry k%d()\n{}\n", i);
        CHECK(data(&out, text) == 209);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    cu_open();
    if (!strcmp(argv[1], "tables")) {
        tables();
        return 0;
    }
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    if (!strcmp(argv[1], "link")) {
        link_all();
    } else if (!strcmp(argv[1], "many")) {
        many();
    } else {
        make(argv[1]);
        file();
        struct {
            uint32_t magic, version;
            const void *code, *none;
        } wrapper = { 0x466243b1, 1, image, NULL };
        int is_wrapped = !strcmp(argv[1], "wrapper");
        load(is_wrapped ? (const void *)&wrapper : image, !is_wrapped);
    }
    return 0;
}
