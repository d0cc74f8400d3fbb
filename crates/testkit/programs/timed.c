// timed: calls of known durations. Prints, for each function, the number of its calls and of those
// that return, and bounds of the time that the latter take: measured within the call, and around it.
//
//     timed
//
// naps: 20 calls that sleep 20 ms, 200 that don't sleep. nests: a recursion of 80 calls, of which
// each sleeps 1 ms. leaves: 10 calls that end by longjmp, then 5 that return. ends: a call that ends
// its thread. forks: 3 calls that fork; the child returns too. jumps: 5 calls that end in a jump to
// another function. gives_way: 5 that end in a jump to the C library. picks: 40 calls with a jump through a table. threads: 4 threads with 5 calls each.
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

// Time within the call that is measured, of the calling thread.
static __thread long long within;

static void doze(int ms) {
    long long begin = now();
    struct timespec rest = {0, ms * 1000000L};
    if (ms)
        nanosleep(&rest, 0);
    within += now() - begin;
}

struct bounds {
    const char *name;
    long calls, returned;
    long long least, most;
};

static struct bounds all[16];

static struct bounds *of(const char *name) {
    for (int i = 0;; i++) {
        if (!all[i].name)
            all[i].name = name;
        if (all[i].name == name)
            return &all[i];
    }
}

// Measures a call of these functions, of which `made` are made and `back` return.
#define MEASURE(NAME, MADE, BACK, CALL)                                                                                \
    do {                                                                                                               \
        struct bounds *bounds = of(#NAME);                                                                             \
        within = 0;                                                                                                    \
        long long begin = now();                                                                                       \
        CALL;                                                                                                          \
        bounds->most += now() - begin;                                                                                 \
        bounds->least += within;                                                                                       \
        bounds->calls += MADE;                                                                                         \
        bounds->returned += BACK;                                                                                      \
    } while (0)

NOINLINE int naps(int ms) {
    doze(ms);
    return ms + 1;
}

NOINLINE int nests(int depth) {
    doze(1);
    // No loop can do this.
    return depth > 1 ? nests(depth - 1) * 3 ^ depth : 1;
}

static jmp_buf outside;

NOINLINE int leaves(int ms, int jump) {
    doze(ms);
    if (jump)
        longjmp(outside, 1);
    return ms;
}

NOINLINE int ends(int ms) {
    doze(ms);
    if (ms)
        pthread_exit(0);
    return ms;
}

static void *thread_that_ends(void *unused) {
    ends(10);
    return unused;
}

NOINLINE int forks(void) {
    int child = fork();
    if (child > 0)
        waitpid(child, 0, 0);
    doze(child ? 5 : 0);
    return child;
}

NOINLINE int jumped(int ms) {
    doze(ms);
    return ms + 2;
}

NOINLINE int jumps(int ms) {
    if (ms < 0)
        return 0;
    return jumped(ms + 1);
}

NOINLINE int gives_way(unsigned us) { return usleep(us); }

NOINLINE int picks(int which) {
    switch (which) {
    case 0: doze(2); return 10;
    case 1: return which * 77;
    case 2: doze(3); return getpid();
    case 3: return getppid();
    case 4: doze(4); return 5 + which;
    case 5: return getuid();
    case 6: return getgid() + 1;
    default: doze(1); return 3;
    }
}

NOINLINE int shares(int ms) {
    doze(ms);
    return ms;
}

static long long thread_least[4], thread_most[4];

static void *thread(void *number) {
    within = 0;
    long long begin = now();
    for (int i = 0; i < 5; i++)
        shares(5);
    thread_most[(long)number] = now() - begin;
    thread_least[(long)number] = within;
    return 0;
}

int main(void) {
    volatile int sum = 0;
    for (int i = 0; i < 220; i++)
        MEASURE(naps, 1, 1, sum += naps(i % 11 ? 0 : 20));
    MEASURE(nests, 80, 80, sum += nests(80));
    for (volatile int i = 0; i < 10; i++)
        if (!setjmp(outside))
            sum += leaves(2, 1);
    of("leaves")->calls += 10;
    for (int i = 0; i < 5; i++)
        MEASURE(leaves, 1, 1, sum += leaves(3, 0));
    pthread_t id;
    pthread_create(&id, 0, thread_that_ends, 0);
    pthread_join(id, 0);
    of("ends")->calls++;
    for (int i = 0; i < 3; i++)
        MEASURE(forks, 1, 1, if (!forks()) _exit(0));
    for (int i = 0; i < 5; i++)
        MEASURE(jumps, 1, 1, sum += jumps(4));
    for (int i = 0; i < 5; i++)
        MEASURE(gives_way, 1, 1, sum += gives_way(500));
    for (int i = 0; i < 40; i++)
        MEASURE(picks, 1, 1, sum += picks(i % 8));
    pthread_t ids[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&ids[i], 0, thread, (void *)i);
    struct bounds *shared = of("shares");
    for (int i = 0; i < 4; i++) {
        pthread_join(ids[i], 0);
        shared->calls += 5;
        shared->returned += 5;
        shared->least += thread_least[i];
        shared->most += thread_most[i];
    }
    printf("{");
    for (int i = 0; all[i].name; i++)
        printf("%s\"%s\": [%ld, %ld, %lld, %lld]", i ? ", " : "", all[i].name, all[i].calls, all[i].returned,
               all[i].least, all[i].most);
    printf("}\n");
    return sum == 0;
}
