// Threads that wait, and one that reads the clock without end and keeps the longest time between two readings.
//
//     gaps THREADS [differing]
//
// With a second argument each thread is a recursion of twelve calls, of which each has other arguments than all other ones.
//
// For each line on standard input: "r" forgets the longest gap, "g" prints it in nanoseconds.
#include "common.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static volatile uint64_t longest;
static volatile int forget;

static uint64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

FRAME void *read_the_clock(void *unused) {
    uint64_t last = nanoseconds();
    for (;;) {
        uint64_t now = nanoseconds();
        if (forget) {
            longest = 0;
            forget = 0;
        } else if (now - last > longest) {
            longest = now - last;
        }
        last = now;
    }
    return unused;
}

FRAME int wait_deep(int depth) {
    if (depth == 0) {
        pause();
        return 0;
    }
    return wait_deep(depth - 1) + 1;
}

FRAME void *wait(void *number) { return (void *)(intptr_t)wait_deep((int)(intptr_t)number % 20); }

struct request {
    unsigned id;
    const char *path;
    double weight;
};

FRAME int answer(struct request *request, const char *name, int depth);

FRAME int pass_on(struct request request, const char *name, int depth) {
    char *longer = malloc(strlen(name) + 16);
    sprintf(longer, "%s/%d", name, depth);
    request.id += 1000;
    request.path = longer;
    return answer(&request, longer, depth - 1) + (int)request.id + longer[0];
}

FRAME int answer(struct request *request, const char *name, int depth) {
    if (depth <= 0) {
        pause();
        return 0;
    }
    return pass_on(*request, name, depth - 1) + depth + (int)request->id + name[0];
}

FRAME void *wait_differing(void *number) {
    char name[32];
    sprintf(name, "thread %d", (int)(intptr_t)number);
    struct request request = {(unsigned)(intptr_t)number, name, 0.5};
    return (void *)(intptr_t)answer(&request, name, 12);
}

int main(int argc, char **argv) {
    long threads = argc > 1 ? atol(argv[1]) : 63;
    void *(*begin)(void *) = argc > 2 ? wait_differing : wait;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    pthread_t thread;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&thread, &small, begin, (void *)i) != 0) return 1;
    if (pthread_create(&thread, NULL, read_the_clock, NULL) != 0) return 1;
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'r') {
            forget = 1;
            while (forget) usleep(100);
        }
        printf("%llu\n", (unsigned long long)longest);
        fflush(stdout);
    }
    return 0;
}
