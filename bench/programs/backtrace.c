/* backtrace ROUNDS
 *
 * What a backtrace costs, each way in turn in one process: by the chain of frame pointers (the floor), Backtrail, glibc's backtrace(). Prints lines
 * WALKER CASE DEPTH NANOSECONDS, medians of the rounds, for one backtrace; the depth is what the walkers found, all the same.
 *   same   the same stack again
 *   leaf   the innermost three frames change, their callers stay
 *   other  another stack each time: every call is one of eight, at random */
#define _GNU_SOURCE
#include <backtrail.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME __attribute__((noinline, noclone))
#define MOST 512

static void *buffer[MOST];
static uintptr_t stack_end;

static FRAME int by_frame_pointers(void **into, int size) {
    uintptr_t *frame = __builtin_frame_address(0);
    int count = 0;
    /* Reads no more than it must to end at all. */
    while (count < size && (uintptr_t)frame < stack_end && frame[1]) {
        into[count++] = (void *)frame[1];
        if (frame[0] <= (uintptr_t)frame) break;
        frame = (uintptr_t *)frame[0];
    }
    return count;
}

typedef int (*walker)(void **, int);
static const walker walkers[] = {by_frame_pointers, backtrail_backtrace, backtrace};
static const char *const names[] = {"frame-pointers", "backtrail", "glibc"};
#define WALKERS 3

static inline uint64_t ticks(void) {
#ifdef __x86_64__
    unsigned int unused;
    return __builtin_ia32_rdtscp(&unused);
#else
    uint64_t now;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(now));
    return now;
#endif
}

static double ticks_in_ns;
static uint64_t empty;
static walker now;
static uint64_t spent, walks;
static int depth_found;

static inline __attribute__((always_inline)) void measure(int times) {
    for (int i = 0; i < times; i++) {
        uint64_t start = ticks();
        depth_found = now(buffer, MOST);
        uint64_t took = ticks() - start;
        spent += took > empty ? took - empty : 0;
        walks++;
    }
}

static uint64_t state = 1;
static inline unsigned random_below(unsigned end) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 40) % end;
}

enum { SAME, LEAF, OTHER };
static const char *const cases[] = {"same", "leaf", "other"};
static int of_case;

static int descend(int depth);

/* Eight functions with frames of different sizes. */
#define STEP(number)                                            \
    static FRAME int step##number(int depth) {                  \
        volatile char space[16 + 24 * number];                  \
        space[depth % 16] = (char)depth;                        \
        return descend(depth - 1) + space[depth % 16];          \
    }
STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
typedef int (*step)(int);
static const step steps[] = {step0, step1, step2, step3, step4, step5, step6, step7};

static FRAME int leaves(void) {
    int sum = 0;
    of_case = OTHER;
    for (int i = 0; i < 100; i++) sum += descend(2);
    of_case = LEAF;
    return sum;
}

static FRAME int descend(int depth) {
    if (depth <= 0) {
        if (of_case == LEAF) return leaves() + 1;
        measure(of_case == SAME ? 100 : 1);
        return 1;
    }
    unsigned which = of_case == OTHER ? random_below(8) : (unsigned)depth % 8;
    return steps[which](depth) + 1;
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 21;
    stack_end = (uintptr_t)__builtin_frame_address(0) + 4096;
    if (rounds < 1 || backtrail_init(NULL) != 0) return 2;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    uint64_t start = ticks();
    do clock_gettime(CLOCK_MONOTONIC, &to);
    while (to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9 < 0.05);
    ticks_in_ns = (double)(ticks() - start) / ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec));
    empty = UINT64_MAX;
    for (int i = 0; i < 10000; i++) {
        uint64_t once = ticks(), again = ticks();
        if (again - once < empty) empty = again - once;
    }
    double *of_round = calloc((size_t)rounds * WALKERS, sizeof *of_round);
    /* Two frames a level; what is around them is the same for all. */
    static const int levels[] = {8, 23, 98};
    for (int size = 0; size < 3; size++)
        for (int which = SAME; which <= OTHER; which++) {
            int depth[WALKERS] = {0};
            for (int round = 0; round < rounds; round++)
                for (int w = 0; w < WALKERS; w++) {
                    now = walkers[w];
                    spent = walks = 0;
                    of_case = which;
                    /* Not from the state of caches that the walker before has left. */
                    for (int warm = 0; warm < 2; warm++) {
                        spent = walks = 0;
                        for (int i = 0; i < (which == OTHER ? 200 : 3); i++) descend(which == LEAF ? levels[size] - 3 : levels[size]);
                    }
                    of_round[w * rounds + round] = (double)spent / (double)walks / ticks_in_ns;
                    depth[w] = depth_found;
                }
            for (int w = 0; w < WALKERS; w++) {
                qsort(of_round + w * rounds, (size_t)rounds, sizeof *of_round, less);
                printf("%s %s %d %.2f\n", names[w], cases[which], depth[w], of_round[w * rounds + rounds / 2]);
            }
        }
    return 0;
}
