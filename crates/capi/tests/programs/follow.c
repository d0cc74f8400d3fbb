/* follow PLUGIN [NOT]
 *
 * Opens a library after the tables were made, and takes backtraces in it until they equal
 * glibc's; then the same in a forked child, which requests the tables itself. With NOT, no
 * thread makes the tables, and the backtraces never become equal. Prints how often they ended
 * early. */
#include "compare.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

typedef uint64_t (*callback)(uint64_t);
typedef uint64_t (*enter)(callback, uint64_t);

static int follows;

/* How often our backtraces ended early before they equalled glibc's; exits after five seconds. */
static FRAME uint64_t become_same(uint64_t unused) {
    (void)unused;
    for (int again = 0; again < 500; again++) {
        void *glibc[MOST], *ours[MOST];
        int glibc_count = backtrace(glibc, MOST), count = backtrail_backtrace(ours, MOST);
        for (int i = 1; i < count; i++)
            if (i >= glibc_count || ours[i] != glibc[i]) tell("library", glibc, glibc_count, ours, count);
        if (count == glibc_count) return (uint64_t)again;
        if (!follows && again == 20) return 20;
        usleep(10000);
    }
    fprintf(stderr, "never the same\n");
    _exit(1);
}

static volatile uint64_t ended_early;

static FRAME uint64_t enough(uint64_t rounds) {
    ended_early = become_same(rounds);
    return 0;
}

static void make_tables(void) {
    struct backtrail_init_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.follow = follows;
    if (backtrail_init(&options) != 0) _exit(2);
}

static void open_and_enter(const char *path) {
    void *library = dlopen(path, RTLD_NOW), *symbol = library ? dlsym(library, "plugin_enter") : NULL;
    if (!symbol) _exit(3);
    enter entry;
    memcpy(&entry, &symbol, sizeof entry);
    entry(enough, 1);
    dlclose(library);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    follows = argc == 2;
    make_tables();
    open_and_enter(argv[1]);
    uint64_t early = ended_early;
    /* Forked at any moment of the thread's work. */
    for (int child = 0; child < 20; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            make_tables();
            open_and_enter(argv[1]);
            _exit(0);
        }
        int status = 0;
        open_and_enter(argv[1]);
        if (waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "a child ended with %d\n", status);
            return 1;
        }
    }
    printf("%d times early\n", (int)early);
    return 0;
}
