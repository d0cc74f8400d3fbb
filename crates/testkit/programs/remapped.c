/* remapped [SECONDS [again]]
 *
 * Half of the time in a function where the loader put it, and half in a second mapping of the same part of the file, as V8 maps its functions again
 * near the code that it makes; with a second argument all of the time there. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Calls nothing and refers to no data, so that it runs anywhere. */
static FRAME uint64_t mapped_twice(uint64_t rounds) {
    volatile uint64_t sum = 0;
    while (rounds-- > 0) sum = sum + rounds;
    return sum;
}

typedef uint64_t (*code)(uint64_t rounds);

static FRAME uint64_t caller(code entry, uint64_t rounds) {
    volatile uint64_t kept = entry(rounds);
    return kept + 1;
}

int main(int argc, char **argv) {
    double seconds = argument(argc, argv, 1, 3);
    uint64_t address = (uint64_t)mapped_twice;
    uint64_t start = 0, end = 0, offset = 0;
    char line[4096], rights[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return 1;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s %lx", &start, &end, rights, &offset) == 4 && start <= address && address < end) break;
    }
    fclose(maps);
    int file = open("/proc/self/exe", O_RDONLY);
    unsigned char *again = mmap(NULL, end - start, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)offset);
    if (again == MAP_FAILED) return 1;
    unsigned char *second = again + (address - start);
    code there;
    memcpy(&there, &second, sizeof there);

    uint64_t rounds = rounds_per_ms();
    double begin = cpu_time(), half = argc > 2 ? begin : begin + seconds / 2;
    while (cpu_time() < half) caller(mapped_twice, rounds);
    while (cpu_time() < begin + seconds) caller(there, rounds);
    return 0;
}
