/* hostile SECONDS MODE LIBRARY FOLDER
 * Again and again, so fast that a recorder comes late: copies LIBRARY into FOLDER, loads the copy, works in it, unloads it, and does to
 * its name what MODE says. Then works elsewhere until SECONDS have passed.
 *   fifo    a named pipe takes its place
 *   zeros   a link to /dev/zero
 *   loop    a link to itself
 *   swap    another library
 *   shrink  it is cut to its first page while it is in use */
#include "common.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t (*work)(uint64_t);

static sigjmp_buf back;

static void jump(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static FRAME void fail(const char *what) {
    fprintf(stderr, "hostile: %s\n", what);
    exit(3);
}

static FRAME void copy(const char *from, const char *to) {
    static char buffer[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    if (!in || !out) fail(to);
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, in)) > 0;) fwrite(buffer, 1, got, out);
    fclose(in);
    if (fclose(out) != 0) fail(to);
}

static FRAME void replace(const char *mode, const char *path, const char *library) {
    if (!strcmp(mode, "fifo") && (unlink(path) || mkfifo(path, 0600))) fail(path);
    if (!strcmp(mode, "zeros") && (unlink(path) || symlink("/dev/zero", path))) fail(path);
    if (!strcmp(mode, "loop") && (unlink(path) || symlink(path, path))) fail(path);
    if (!strcmp(mode, "swap") && unlink(path)) fail(path);
    if (!strcmp(mode, "swap")) copy(library, path);
}

int main(int argc, char **argv) {
    if (argc < 5) fail("usage: see the source");
    double end = now() + atof(argv[1]);
    const char *mode = argv[2], *library = argv[3];
    int shrinks = !strcmp(mode, "shrink");
    uint64_t ms = rounds_per_ms(), result = 0;
    signal(SIGBUS, jump);
    for (int turn = 0; turn < (shrinks ? 12 : 60); turn++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/copy%d.so", argv[4], turn);
        copy(library, path);
        void *loaded = dlopen(path, RTLD_LAZY);
        work work_in_it = NULL;
        void *symbol = loaded ? dlsym(loaded, "large_work") : NULL;
        if (!symbol) fail(path);
        memcpy(&work_in_it, &symbol, sizeof symbol);
        pid_t shrinker = shrinks ? fork() : -1;
        if (shrinker == 0) {
            usleep(3000 * (useconds_t)turn);
            _exit(truncate(path, 4096) ? 1 : 0);
        }
        if (!sigsetjmp(back, 1)) result += work_in_it(ms * (shrinks ? 60 : 3));
        if (shrinker > 0) waitpid(shrinker, NULL, 0);
        // Its destructors may be cut off.
        if (!shrinks) dlclose(loaded);
        replace(mode, path, library);
    }
    while (now() < end) result += spin(ms);
    return result == 0;
}
