/* jit [SECONDS [over]]
 *
 * Code made at run time, in anonymous memory, with frame pointers and named in /tmp/perf-PID.map; it is called from, and calls no more
 * than, code without frame pointers. The map stays behind, for whoever reports later. Prints the process's number.
 *
 * With "over", the memory replaces a mapping of the program's own code, which has run for 0.3 s. */
#include "common.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
static const unsigned char inner[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xe5, /* mov %rsp,%rbp */
    0x48, 0x89, 0xf8, /* mov %rdi,%rax */
    0x48, 0xff, 0xc8, /* 1: dec %rax */
    0x75, 0xfb,       /* jnz 1b */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
static const unsigned char outer[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xe5, /* mov %rsp,%rbp */
    0xff, 0xd6,       /* call *%rsi */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
#elif defined(__aarch64__)
static const uint32_t inner[] = {
    0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
    0x910003fd, /* mov x29, sp */
    0xf1000400, /* 1: subs x0, x0, #1 */
    0x54ffffe1, /* b.ne 1b */
    0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
    0xd65f03c0, /* ret */
};
static const uint32_t outer[] = {
    0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
    0x910003fd, /* mov x29, sp */
    0xd63f0020, /* blr x1 */
    0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
    0xd65f03c0, /* ret */
};
#else
#error "no code for this CPU"
#endif

typedef void (*code)(uint64_t rounds, void *callee);

static FRAME void call_made_code(code entry, void *callee, uint64_t rounds) {
    volatile uint64_t kept = rounds;
    entry(rounds, callee);
    kept++;
}

/* Maps the program's code a second time, runs `spin` there, and returns where that was, with its length. */
static unsigned char *own_code(size_t *length) {
    unsigned long start = 0, stop = 0, offset = 0, at = (unsigned long)spin;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &stop, &offset) == 3 && start <= at && at < stop) break;
    }
    if (maps) fclose(maps);
    *length = stop - start;
    int file = open("/proc/self/exe", O_RDONLY);
    unsigned char *copy = mmap(NULL, *length, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)offset), *found = copy + (at - start);
    if (copy == MAP_FAILED) return copy;
    uint64_t (*spin_there)(uint64_t);
    memcpy(&spin_there, &found, sizeof spin_there);
    for (double end = now() + 0.3; now() < end;) spin_there(100000);
    return copy;
}

int main(int argc, char **argv) {
    double end = now() + argument(argc, argv, 1, 3);
    size_t length = 1 << 16;
    unsigned char *place = argc > 2 ? own_code(&length) : NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
    unsigned char *memory = place == MAP_FAILED ? place : mmap(place, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) return 1;
    unsigned char *at_inner = memory + 0x40, *at_outer = memory + 0x400;
    memcpy(at_inner, inner, sizeof inner);
    memcpy(at_outer, outer, sizeof outer);
    if (mprotect(memory, length, PROT_READ | PROT_EXEC) != 0) return 1;
    __builtin___clear_cache((char *)memory, (char *)memory + length);

    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) return 1;
    fprintf(map, "%lx %zx jit_inner\n%lx %zx jit_outer\n", (unsigned long)at_inner, sizeof inner, (unsigned long)at_outer, sizeof outer);
    fclose(map);
    printf("%d\n", (int)getpid());
    fflush(stdout);

    uint64_t rounds = rounds_per_ms();
    code entry;
    memcpy(&entry, &at_outer, sizeof entry);
    while (now() < end) call_made_code(entry, at_inner, rounds);
    return 0;
}
