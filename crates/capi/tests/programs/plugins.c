/* plugins FIRST SECOND COPY
 *
 * Copies one library after the other to COPY, loads it from there, goes through it, and unloads it: the second comes to where the first has been, with
 * other frames at the same addresses. While it is loaded, and after the other has come, both backtraces must be the same; before
 * its tables are made, ours may end, but no more than that. Exits with 1 at the first difference. */
#include "compare.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t (*callback)(uint64_t);
typedef uint64_t (*enter)(callback, uint64_t);

static int without_tables, ended_early, same_places;
static void *places[2];

static FRAME uint64_t called_back(uint64_t rounds) {
    if (!without_tables) return (uint64_t)same("plugin") + rounds;
    void *glibc[MOST], *ours[MOST];
    int glibc_count = backtrace(glibc, MOST), count = backtrail_backtrace(ours, MOST);
    for (int i = 1; i < count; i++)
        if (i >= glibc_count || ours[i] != glibc[i]) tell("without tables", glibc, glibc_count, ours, count);
    ended_early += count < glibc_count;
    return rounds + 1;
}

static FRAME void copy(const char *from, const char *to) {
    char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    if (in < 0 || out < 0) _exit(3);
    for (ssize_t count; (count = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, (size_t)count) != count) _exit(3);
    close(in);
    close(out);
}

int main(int argc, char **argv) {
    if (argc != 4 || backtrail_init(NULL) != 0) return 2;
    for (int round = 0; round < 40; round++) {
        copy(argv[1 + round % 2], argv[3]);
        void *library = dlopen(argv[3], RTLD_NOW);
        if (!library) return 3;
        void *symbol = dlsym(library, "plugin_enter");
        if (!symbol) return 3;
        enter entry;
        memcpy(&entry, &symbol, sizeof entry);
        if (round > 1 && places[round % 2] == symbol) same_places++;
        places[round % 2] = symbol;
        without_tables = 1;
        entry(called_back, 1);
        without_tables = 0;
        if (backtrail_init(NULL) != 0) return 2;
        for (int again = 0; again < 3; again++) entry(called_back, 1);
        dlclose(library);
        same("after");
    }
    printf("%d stacks, %d deep; %d ended early; %d times at the same place\n", compared, deepest, ended_early, same_places);
    return 0;
}
