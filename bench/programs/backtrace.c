/* backtrace walk ROUNDS | modules ROUNDS COUNT LIBRARY... | threads ROUNDS COUNT | functions ROUNDS LIBRARY
 *
 * What a backtrace costs, each way in turn in one process. Prints lines WALKER CASE SIZE FRAMES NANOSECONDS: the median of the rounds for one
 * backtrace of so many frames, which is what the walker found.
 *   walk       stacks of about 20, 50 and 200 frames; the cases are
 *     same     the same stack again
 *     leaf     the innermost frames change, their callers stay
 *     other    another stack each time: every call is one of eight, at random; the same without frame pointers
 *     cold     the same stack, but nothing of it nor of the walker is in the CPU's caches
 *   modules    other and cold, after so many copies of a library were loaded
 *   threads    other, in so many threads at once, in each thread's own time
 *   functions  other, through the functions of a library, whose number it tells
 * With -DCOUNTED=NUMBER, for an emulator: instructions instead of nanoseconds, of all cases but cold. */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <backtrail.h>
#include <dlfcn.h>
#include <libunwind.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unwind.h>

#define FRAME __attribute__((noinline, noclone))
#define MOST 512

int framehop_begin(void);
int framehop_backtrace(void **buffer, int size);

static __thread uintptr_t stack_end;

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

static FRAME int by_unw_step(void **into, int size) {
    unw_context_t context;
    unw_cursor_t cursor;
    unw_word_t pc;
    int count = 0;
    unw_getcontext(&context);
    unw_init_local(&cursor, &context);
    while (count < size && unw_step(&cursor) > 0) {
        unw_get_reg(&cursor, UNW_REG_IP, &pc);
        into[count++] = (void *)pc;
    }
    return count;
}

struct into {
    void **into;
    int size, count;
};

static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *argument) {
    struct into *into = argument;
    if (into->count >= into->size) return _URC_END_OF_STACK;
    into->into[into->count++] = (void *)_Unwind_GetIP(context);
    return _URC_NO_REASON;
}

/* libunwind has functions of the same names. */
static _Unwind_Reason_Code (*unwind_backtrace)(_Unwind_Trace_Fn, void *);
static int (*backtrace_of_libc)(void **, int);

static FRAME int by_libc(void **into, int size) {
    return backtrace_of_libc(into, size);
}

static FRAME int by_libgcc(void **into, int size) {
    struct into all = {into, size, 0};
    unwind_backtrace(one, &all);
    return all.count;
}

typedef int (*walker)(void **, int);
static const walker walkers[] = {by_frame_pointers, backtrail_backtrace, unw_backtrace, framehop_backtrace,
                                 by_libc,           by_libgcc,           by_unw_step};
static const char *const names[] = {"frame-pointers", "backtrail", "unw_backtrace", "framehop", "glibc", "libgcc", "unw_step"};
#define WALKERS 7

static inline uint64_t ticks(void) {
#ifdef COUNTED
    /* Of no system; the emulator's plugin (count_instructions.c) writes how many instructions have run. */
    volatile uint64_t now;
    register uint64_t number __asm__("x8") = COUNTED;
    register volatile uint64_t *to __asm__("x0") = &now;
    __asm__ volatile("svc #0" : "+r"(to) : "r"(number) : "memory");
    return now;
#elif defined __x86_64__
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
static __thread void *buffer[MOST];
static __thread walker now;
static __thread uint64_t spent, walks;
static __thread int depth_found;

/* Larger than all caches. */
#define FLUSHED (64u << 20)
static volatile char *flushed;

static void flush(void) {
    for (size_t i = 0; i < FLUSHED; i += 64) flushed[i]++;
}

enum { SAME, LEAF, OTHER, LEAN, COLD, CASES };
static const char *const cases[] = {"same", "leaf", "other", "other-lean", "cold"};
static __thread int of_case;

static inline __attribute__((always_inline)) void measure(int times) {
    for (int i = 0; i < times; i++) {
        if (of_case == COLD) flush();
        uint64_t start = ticks();
        depth_found = now(buffer, MOST);
        uint64_t took = ticks() - start;
        spent += took > empty ? took - empty : 0;
        walks++;
    }
}

static __thread uint64_t state = 1;
static inline unsigned random_below(unsigned end) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % end;
}

/* Functions of a library; each calls back. */
static void (**functions)(void (*)(int), int);
static unsigned function_count;

static int descend(int depth);
static int lean(int depth);

/* Eight functions with frames of different sizes. */
#define STEP(number)                                                                                         \
    static FRAME int step##number(int depth) {                                                               \
        volatile char space[16 + 24 * number];                                                               \
        space[depth % 16] = (char)depth;                                                                     \
        return descend(depth - 1) + space[depth % 16];                                                       \
    }                                                                                                        \
    static FRAME __attribute__((optimize("omit-frame-pointer"))) int lean##number(int depth) {               \
        volatile char space[16 + 24 * number];                                                               \
        space[depth % 16] = (char)depth;                                                                     \
        return lean(depth - 1) + space[depth % 16];                                                          \
    }
STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
typedef int (*step)(int);
static const step steps[] = {step0, step1, step2, step3, step4, step5, step6, step7};
static const step leans[] = {lean0, lean1, lean2, lean3, lean4, lean5, lean6, lean7};

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
        measure(of_case == SAME ? 100 : of_case == COLD ? 5 : 1);
        return 1;
    }
    if (of_case == LEAN) return lean(depth);
    unsigned which = of_case == OTHER ? random_below(8) : (unsigned)depth % 8;
    return steps[which](depth) + 1;
}

static FRAME __attribute__((optimize("omit-frame-pointer"))) int lean(int depth) {
    if (depth <= 0) {
        measure(1);
        return 1;
    }
    return leans[random_below(8)](depth) + 1;
}

static void through(int depth) {
    if (depth <= 0)
        measure(1);
    else
        functions[random_below(function_count)](through, depth - 1);
    __asm__ volatile("");
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures a case; nanoseconds of a backtrace. */
static double once(walker by, int which, int level) {
    now = by;
    of_case = which;
    int random = which == OTHER || which == LEAN;
    /* Not from the state of caches that the walker before has left. */
    for (int warm = 0; warm < 2; warm++) {
        spent = walks = 0;
        if (which == COLD && !warm) continue;
        for (int i = 0; i < (random ? 200 : which == COLD ? 1 : 3); i++) {
            if (functions)
                through(level);
            else
                descend(which == LEAF ? level - 3 : level);
        }
    }
    return (double)spent / (double)walks / ticks_in_ns;
}

/* All walkers in turn, in each round. */
static void all(const char *name, int which, int level, int rounds) {
    double *of_round = calloc((size_t)rounds * WALKERS, sizeof *of_round);
    int depth[WALKERS] = {0};
    for (int round = 0; round < rounds; round++)
        for (int w = 0; w < WALKERS; w++) {
            /* There is no chain of frame pointers. */
            if (w == 0 && (which == LEAN || functions)) continue;
            of_round[w * rounds + round] = once(walkers[w], which, level);
            depth[w] = depth_found;
        }
    for (int w = 0; w < WALKERS; w++) {
        if (!depth[w]) continue;
        qsort(of_round + w * rounds, (size_t)rounds, sizeof *of_round, less);
        printf("%s %s %d %d %.2f\n", names[w], name, level, depth[w], of_round[w * rounds + rounds / 2]);
    }
    free(of_round);
    fflush(stdout);
}

/* Two frames a level; what is around them is the same for all. */
static const int levels[] = {8, 23, 98};

static int sum_walked;
static pthread_barrier_t together;
static int thread_rounds;
static walker by_all;

static void *thread(void *result) {
    stack_end = (uintptr_t)__builtin_frame_address(0) + 4096;
    state = (uintptr_t)result | 1;
    now = by_all;
    of_case = OTHER;
    descend(levels[1]);
    pthread_barrier_wait(&together);
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    int count = 200 * thread_rounds;
    for (int i = 0; i < count; i++) descend(levels[1]);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    /* A walk and the way to it. */
    *(double *)result = ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / count;
    __atomic_fetch_add(&sum_walked, depth_found, __ATOMIC_RELAXED);
    return NULL;
}

static int nothing(void **into, int size) {
    (void)into;
    (void)size;
    return 0;
}

static double in_threads(walker by, int count) {
    pthread_t *of = calloc((size_t)count, sizeof *of);
    double *results = calloc((size_t)count, sizeof *results), sum = 0;
    by_all = by;
    sum_walked = 0;
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) pthread_create(&of[i], NULL, thread, &results[i]);
    for (int i = 0; i < count; i++) pthread_join(of[i], NULL);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < count; i++) sum += results[i];
    free(of);
    free(results);
    return sum / count;
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 0;
    stack_end = (uintptr_t)__builtin_frame_address(0) + 4096;
    if (rounds < 1) return 2;
    char name[64] = "";
    void *libc = dlopen("libc.so.6", RTLD_NOW), *libgcc = dlopen("libgcc_s.so.1", RTLD_NOW);
    if (!libc || !libgcc) return 2;
    backtrace_of_libc = (int (*)(void **, int))dlsym(libc, "backtrace");
    unwind_backtrace = (_Unwind_Reason_Code (*)(_Unwind_Trace_Fn, void *))dlsym(libgcc, "_Unwind_Backtrace");
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[1], "threads") && !dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL)) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
    if (backtrail_init(NULL) != 0 || framehop_begin() != 0) return 2;
    flushed = malloc(FLUSHED);
#ifdef COUNTED
    ticks_in_ns = 1;
#else
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    uint64_t start = ticks();
    do clock_gettime(CLOCK_MONOTONIC, &to);
    while (to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9 < 0.05);
    ticks_in_ns = (double)(ticks() - start) / ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec));
#endif
    empty = UINT64_MAX;
    for (int i = 0; i < 10000; i++) {
        uint64_t once = ticks(), again = ticks();
        if (again - once < empty) empty = again - once;
    }
    if (!strcmp(argv[1], "walk")) {
        for (int which = 0; which < CASES; which++) {
#ifdef COUNTED
            /* Caches do not count. */
            if (which == COLD) continue;
#endif
            for (int size = 0; size < 3; size++) all(cases[which], which, levels[size], which == COLD ? (rounds + 2) / 3 : rounds);
        }
    } else if (!strcmp(argv[1], "modules")) {
        snprintf(name, sizeof name, "%d-modules", argc - 3);
        all(name, OTHER, levels[1], rounds);
    } else if (!strcmp(argv[1], "threads") && argc > 3) {
        int count = atoi(argv[3]);
        thread_rounds = rounds;
        double way = in_threads(nothing, count);
        for (int w = 0; w < WALKERS; w++) {
            double took = in_threads(walkers[w], count) - way;
            printf("%s %d-threads %d %d %.2f\n", names[w], count, levels[1], sum_walked / count, took);
        }
    } else if (!strcmp(argv[1], "functions") && argc > 3) {
        functions = dlsym(RTLD_DEFAULT, "backtrace_functions");
        unsigned *count = dlsym(RTLD_DEFAULT, "backtrace_function_count");
        if (!functions || !count) return 2;
        function_count = *count;
        snprintf(name, sizeof name, "%u-functions", function_count);
        all(name, OTHER, levels[1], rounds);
    } else {
        return 2;
    }
    return 0;
}
