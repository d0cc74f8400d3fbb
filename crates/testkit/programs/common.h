/* What all test programs share: time, and work that no compiler can leave out or merge. */
#ifndef BACKTRAIL_TEST_COMMON_H
#define BACKTRAIL_TEST_COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A function with this attribute is a frame of its own: neither inlined, nor cloned, nor renamed. */
#if defined(__has_attribute)
#if __has_attribute(noipa)
#define FRAME __attribute__((noipa, unused))
#endif
#endif
#ifndef FRAME
#define FRAME __attribute__((noinline, unused))
#endif

static inline double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
/* Wall time. */
static inline double now(void) { return clock_seconds(CLOCK_MONOTONIC); }
/* Processor time of this thread. */
static inline double cpu_time(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

/* `rounds` steps of a generator whose every step needs the one before. */
static FRAME uint64_t spin(uint64_t rounds) {
    volatile uint64_t result;
    uint64_t x = rounds | 1;
    for (uint64_t i = 0; i < rounds; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    result = x;
    return result;
}

/* Rounds of `spin` in a millisecond, roughly. */
static FRAME uint64_t rounds_per_ms(void) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double start = cpu_time();
        spin(200000);
        double took = cpu_time() - start;
        if (took > 0 && took < best) best = took;
    }
    uint64_t rounds = (uint64_t)(200000 / (best * 1000));
    return rounds ? rounds : 1;
}

static inline double argument(int argc, char **argv, int n, double otherwise) {
    return argc > n ? atof(argv[n]) : otherwise;
}
#endif
