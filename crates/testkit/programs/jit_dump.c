/* jit_dump FOLDER [SECONDS]
 *
 * Code made at run time at one address, first under one name and for as long under another, then moved; FOLDER/jit-PID.dump says so, which
 * is mapped for execution as recorders expect. The file stays behind, for whoever reports later. */
#include "common.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE 62
static const unsigned char made[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xe5, /* mov %rsp,%rbp */
    0x48, 0xff, 0xcf, /* 1: dec %rdi */
    0x75, 0xfb,       /* jnz 1b */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
#elif defined(__aarch64__)
#define MACHINE 183
static const uint32_t made[] = {
    0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
    0x910003fd, /* mov x29, sp */
    0xf1000400, /* 1: subs x0, x0, #1 */
    0x54ffffe1, /* b.ne 1b */
    0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
    0xd65f03c0, /* ret */
};
#else
#error "no code for this CPU"
#endif

struct header {
    uint32_t magic, version, size, machine, padding, process;
    uint64_t time, flags;
};
struct record {
    uint32_t kind, size;
    uint64_t time;
};
struct load {
    uint32_t process, thread;
    uint64_t vma, address, size, index;
};
struct move {
    uint32_t process, thread;
    uint64_t vma, old, new, size, index;
};
struct lines {
    uint64_t address, count, first;
    uint32_t line, discriminator;
    char file[8];
};

typedef void (*code)(uint64_t rounds);

static FILE *dump;

static uint64_t nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void put(uint32_t kind, const void *content, size_t size, const char *name) {
    size_t text = name ? strlen(name) + 1 : 0;
    struct record record = {kind, (uint32_t)(sizeof record + size + text + (name ? sizeof made : 0)), nanoseconds()};
    fwrite(&record, sizeof record, 1, dump);
    fwrite(content, size, 1, dump);
    if (name) {
        fwrite(name, text, 1, dump);
        fwrite(made, sizeof made, 1, dump);
    }
    fflush(dump);
}

static void load(unsigned char *at, uint64_t index, const char *name, uint32_t line) {
    uint64_t address = (uint64_t)at;
    struct lines lines = {address, 1, address, line, 0, "jit.src"};
    put(2, &lines, sizeof lines, NULL);
    struct load loaded = {(uint32_t)getpid(), (uint32_t)getpid(), address, address, sizeof made, index};
    memcpy(at, made, sizeof made);
    __builtin___clear_cache((char *)at, (char *)at + sizeof made);
    put(0, &loaded, sizeof loaded, name);
}

static FRAME void run_for(unsigned char *at, double seconds) {
    uint64_t rounds = rounds_per_ms();
    double end = cpu_time() + seconds;
    code entry;
    memcpy(&entry, &at, sizeof entry);
    while (cpu_time() < end) entry(rounds);
}

int main(int argc, char **argv) {
    double seconds = argument(argc, argv, 2, 3);
    char path[4096];
    snprintf(path, sizeof path, "%s/jit-%d.dump", argc > 1 ? argv[1] : ".", (int)getpid());
    dump = fopen(path, "w+");
    if (!dump) return 1;
    struct header header = {0x4a695444, 1, sizeof header, MACHINE, 0, (uint32_t)getpid(), nanoseconds(), 0};
    fwrite(&header, sizeof header, 1, dump);
    fflush(dump);
    size_t length = (size_t)sysconf(_SC_PAGESIZE);
    if (mmap(NULL, length, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) == MAP_FAILED) return 1;
    unsigned char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;

    load(memory, 1, "compiled_first", 10);
    run_for(memory, seconds / 3);
    load(memory, 2, "compiled_again", 20);
    run_for(memory, seconds / 3);
    unsigned char *moved = memory + 0x400;
    struct move move = {(uint32_t)getpid(), (uint32_t)getpid(), (uint64_t)moved, (uint64_t)memory, (uint64_t)moved, sizeof made, 1};
    memcpy(moved, made, sizeof made);
    __builtin___clear_cache((char *)moved, (char *)moved + sizeof made);
    put(1, &move, sizeof move, NULL);
    run_for(moved, seconds / 3);
    return 0;
}
