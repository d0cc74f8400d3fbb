/* exec_mid COUNT MS STATUS
 *
 * Works MS milliseconds, then becomes itself again, COUNT times; every other time with two threads working, which the exec ends wherever
 * they are. At last exits with STATUS. */
#include "common.h"
#include <pthread.h>
#include <unistd.h>

static uint64_t ms;

static void *worker(void *unused) {
    for (;;) spin(ms);
    return unused;
}

static FRAME void before_exec(double milliseconds) { spin((uint64_t)((double)ms * milliseconds)); }

int main(int argc, char **argv) {
    long count = (long)argument(argc, argv, 1, 50);
    double milliseconds = argument(argc, argv, 2, 20);
    int status = (int)argument(argc, argv, 3, 0);
    ms = rounds_per_ms();
    pthread_t thread;
    for (int i = 0; i < 2 && count % 2; i++) pthread_create(&thread, NULL, worker, NULL);
    before_exec(milliseconds);
    if (count <= 0) return status;
    char left[32], each[32], last[32];
    snprintf(left, sizeof left, "%ld", count - 1);
    snprintf(each, sizeof each, "%g", milliseconds);
    snprintf(last, sizeof last, "%d", status);
    execl("/proc/self/exe", argv[0], left, each, last, (char *)NULL);
    return 127;
}
