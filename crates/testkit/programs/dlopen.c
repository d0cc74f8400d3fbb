/* dlopen SECONDS cycle FIRST SECOND     loads and unloads two libraries in turn, so that one's addresses become the other's
 * dlopen SECONDS unlink COPY            loads COPY, removes the file, works in it
 * dlopen SECONDS replace COPY OTHER     loads COPY, moves the file OTHER to its name, works in it
 * dlopen SECONDS stay LIBRARY           loads it and works in it
 * dlopen SECONDS truncate FILE LENGTH   maps FILE for execution, cuts it to LENGTH bytes, works elsewhere
 * dlopen SECONDS run FILE OFFSET        maps FILE for execution and runs `plugin_alone`, which is at OFFSET of the file */
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t (*callback)(uint64_t);
typedef uint64_t (*enter)(callback, uint64_t);
typedef uint64_t (*alone)(uint64_t);

static FRAME uint64_t called_back(uint64_t rounds) { return spin(rounds) + 1; }

static FRAME void fail(const char *what) {
    fprintf(stderr, "dlopen: %s\n", what);
    exit(3);
}

static FRAME void *load(const char *path, enter *entry) {
    void *library = dlopen(path, RTLD_LAZY);
    if (!library) fail(dlerror());
    void *symbol = dlsym(library, "plugin_enter");
    if (!symbol) fail(dlerror());
    memcpy(entry, &symbol, sizeof *entry);
    return library;
}

static FRAME char *map(const char *path) {
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) fail(path);
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) fail(path);
    close(file);
    return memory;
}

int main(int argc, char **argv) {
    if (argc < 4) fail("usage: see the source");
    double end = cpu_time() + atof(argv[1]);
    const char *mode = argv[2];
    uint64_t ms = rounds_per_ms(), result = 0, loads = 0;
    enter entry = NULL;
    if (strcmp(mode, "cycle") == 0 && argc > 4) {
        for (; cpu_time() < end; loads++) {
            void *library = load(argv[3 + loads % 2], &entry);
            for (int i = 0; i < 10; i++) result += entry(called_back, ms);
            dlclose(library);
        }
    } else if (strcmp(mode, "truncate") == 0 && argc > 4) {
        map(argv[3]);
        if (truncate(argv[3], atol(argv[4])) != 0) fail(argv[3]);
        while (cpu_time() < end) result += called_back(ms);
    } else if (strcmp(mode, "run") == 0 && argc > 4) {
        char *at = map(argv[3]) + strtoul(argv[4], NULL, 0);
        alone code;
        memcpy(&code, &at, sizeof code);
        while (cpu_time() < end) result += code(ms) + called_back(ms);
    } else {
        load(argv[3], &entry);
        if (strcmp(mode, "unlink") == 0 && unlink(argv[3]) != 0) fail(argv[3]);
        if (strcmp(mode, "replace") == 0 && (argc < 5 || rename(argv[4], argv[3]) != 0)) fail(argv[3]);
        while (cpu_time() < end) result += entry(called_back, ms);
    }
    printf("{\"loads\": %llu, \"result\": %llu}\n", (unsigned long long)loads, (unsigned long long)result);
    return 0;
}
