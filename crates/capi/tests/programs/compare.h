/* Compares both backtraces of one stack. */
#ifndef COMPARE_H
#define COMPARE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <backtrail.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 400
#define FRAME __attribute__((noinline, noclone))

/* Whether the rest of our stack is right where glibc's ends before it. */
#ifndef IS_RIGHT_BEYOND
#define IS_RIGHT_BEYOND(glibc, glibc_count, ours, count) 0
#endif

static volatile int compared, deepest;

static inline void tell(const char *what, void **a, int a_count, void **b, int b_count) {
    fprintf(stderr, "%s: glibc has %d, backtrail %d\n", what, a_count, b_count);
    backtrace_symbols_fd(a, a_count, 2);
    fprintf(stderr, "backtrail:\n");
    backtrail_backtrace_symbols_fd(b, b_count, 2);
    _exit(1);
}

/* The first address is in each call itself, and `most` may truncate both. */
static inline __attribute__((always_inline)) int same_up_to(const char *what, int most) {
    void *glibc[MOST], *ours[MOST];
    int glibc_count = backtrace(glibc, most);
    int count = backtrail_backtrace(ours, most);
    int same = count >= glibc_count && glibc_count > 1;
    for (int i = 1; same && i < glibc_count; i++) same = glibc[i] == ours[i];
    if (same && count > glibc_count) same = IS_RIGHT_BEYOND(glibc, glibc_count, ours, count);
    if (same && ((char *)ours[0] < (char *)glibc[0] || (char *)ours[0] > (char *)glibc[0] + 200)) same = 0;
    if (!same) tell(what, glibc, glibc_count, ours, count);
    compared++;
    if (count > deepest) deepest = count;
    __asm__ volatile("" ::: "memory");
    return count;
}

static inline __attribute__((always_inline)) int same(const char *what) { return same_up_to(what, MOST); }

#endif
