/* forker [SECONDS] [MS]
 *
 * Short-lived children, in turn: forked and ended; forked, then another program (itself, as `forker leaf MS`); spawned; forked with a
 * thread of its own. Each works MS milliseconds. Prints how many there were. */
#include "common.h"
#include <pthread.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static double milliseconds;
static uint64_t ms;

static FRAME void child_work(double share) { spin((uint64_t)((double)ms * milliseconds * share)); }

static void *thread(void *unused) {
    child_work(0.5);
    return unused;
}

static FRAME void child(int kind, char **argv) {
    pthread_t other;
    switch (kind) {
    case 0:
        child_work(1);
        break;
    case 1:
        child_work(0.3);
        execv("/proc/self/exe", argv);
        _exit(127);
    default:
        pthread_create(&other, NULL, thread, NULL);
        child_work(0.5);
        pthread_join(other, NULL);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    ms = rounds_per_ms();
    if (argc > 2 && strcmp(argv[1], "leaf") == 0) {
        milliseconds = argument(argc, argv, 2, 5);
        child_work(0.7);
        return 0;
    }
    double end = now() + argument(argc, argv, 1, 3);
    milliseconds = argument(argc, argv, 2, 10);
    char text[32];
    snprintf(text, sizeof text, "%g", milliseconds);
    char *leaf[] = {argv[0], "leaf", text, NULL};
    unsigned children = 0, failed = 0;
    while (now() < end) {
        pid_t pid[2];
        for (int i = 0; i < 2; i++, children++) {
            int kind = (int)(children % 4);
            if (kind == 3) {
                if (posix_spawn(&pid[i], "/proc/self/exe", NULL, NULL, leaf, environ) != 0) return 1;
                continue;
            }
            pid[i] = fork();
            if (pid[i] < 0) return 1;
            if (pid[i] == 0) child(kind, leaf);
        }
        for (int i = 0; i < 2; i++) {
            int status = 0;
            waitpid(pid[i], &status, 0);
            failed += status != 0;
        }
    }
    printf("{\"children\": %u, \"failed\": %u}\n", children, failed);
    return failed != 0;
}
