/* Compares cursors and backtraces with libunwind's own, whose functions are asked for in its
   library; those called by name are whose they are after preloading or linking. */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <libunwind.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 600
#define FRAME __attribute__((noinline, noclone))

static struct {
    int (*backtrace)(void **, int);
    int (*init)(unw_cursor_t *, unw_context_t *, int);
    int (*step)(unw_cursor_t *);
    int (*get)(unw_cursor_t *, unw_regnum_t, unw_word_t *);
    int (*info)(unw_cursor_t *, unw_proc_info_t *);
    int (*name)(unw_cursor_t *, char *, size_t, unw_word_t *);
    int (*is_signal)(unw_cursor_t *);
} theirs;

static int compared, wrong, deepest, names;

static void differ(const char *what, int frame, unw_word_t ours, unw_word_t other) {
    if (wrong++ < 20) fprintf(stderr, "%s: frame %d: %#lx, %#lx\n", what, frame, ours, other);
}

static const unw_regnum_t registers[] = {UNW_REG_IP, UNW_REG_SP, UNW_X86_64_RBX, UNW_X86_64_RBP, UNW_X86_64_R12, UNW_X86_64_R13, UNW_X86_64_R14, UNW_X86_64_R15};

static void compare(const char *what, unw_context_t *context, int flags) {
    unw_cursor_t ours, other;
    unw_init_local2(&ours, context, flags);
    theirs.init(&other, context, flags);
    for (int frame = 0; frame < MOST; frame++) {
        compared++;
        if (frame > deepest) deepest = frame;
        for (unsigned i = 0; i < sizeof registers / sizeof *registers; i++) {
            unw_word_t a = 0, b = 0;
            int known = unw_get_reg(&ours, registers[i], &a);
            int expected = theirs.get(&other, registers[i], &b);
            if (known != expected || a != b) differ(what, frame * 100 + registers[i], a, b);
        }
        unw_proc_info_t info, expected;
        memset(&info, 0, sizeof info);
        memset(&expected, 0, sizeof expected);
        int known = unw_get_proc_info(&ours, &info) == 0;
        if (known != (theirs.info(&other, &expected) == 0)) differ(what, frame, 1, 2);
        if (info.start_ip != expected.start_ip || info.end_ip != expected.end_ip) differ(what, frame, info.start_ip, expected.start_ip);
        if (info.lsda != expected.lsda || info.handler != expected.handler) differ(what, frame, info.handler, expected.handler);
        if ((unw_is_signal_frame(&ours) > 0) != (theirs.is_signal(&other) > 0)) differ(what, frame, 3, 4);
        char a[256] = "", b[256] = "";
        unw_word_t at = 0, expected_at = 0;
        /* libunwind takes the nearest symbol, also where it has ended. */
        if (unw_get_proc_name(&ours, a, sizeof a, &at) == 0) {
            names++;
            theirs.name(&other, b, sizeof b, &expected_at);
            if (at != expected_at) differ(what, frame, at, expected_at);
        }
        int step = unw_step(&ours), expected_step = theirs.step(&other);
        if ((step > 0) != (expected_step > 0)) differ(what, frame, step, expected_step);
        if (step <= 0) break;
    }
}

static FRAME void both(const char *what) {
    unw_context_t context;
    unw_getcontext(&context);
    compare(what, &context, 0);
    void *ours[MOST], *other[MOST];
    int count = unw_backtrace(ours, MOST), expected = theirs.backtrace(other, MOST);
    if (count != expected) differ(what, -1, count, expected);
    for (int i = 1; i < count && i < expected; i++)
        if (ours[i] != other[i]) differ(what, i, (uintptr_t)ours[i], (uintptr_t)other[i]);
    if (unw_backtrace(ours, 4) != 4 || unw_backtrace(ours, 0) != 0) differ(what, -2, 0, 0);
}

static FRAME int recursion(int depth) {
    if (depth == 0) both("recursion");
    return depth == 0 ? 0 : recursion(depth - 1) + 1;
}

static FRAME int aligned(int size) {
    volatile int on_line __attribute__((aligned(128))) = size;
    volatile char bytes[size];
    bytes[0] = 1;
    both("aligned");
    return on_line + bytes[0];
}

static int by_number(const void *a, const void *b) {
    static int once;
    if (once++ == 0) both("qsort");
    return *(const int *)a - *(const int *)b;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    both("signal");
    compare("interrupted", context, UNW_INIT_SIGNAL_FRAME);
}

int main(void) {
    void *library = dlopen("libunwind.so.8", RTLD_NOW);
    if (!library) return 77;
    *(void **)&theirs.backtrace = dlsym(library, "unw_backtrace");
    *(void **)&theirs.init = dlsym(library, "_ULx86_64_init_local2");
    *(void **)&theirs.step = dlsym(library, "_ULx86_64_step");
    *(void **)&theirs.get = dlsym(library, "_ULx86_64_get_reg");
    *(void **)&theirs.info = dlsym(library, "_ULx86_64_get_proc_info");
    *(void **)&theirs.name = dlsym(library, "_ULx86_64_get_proc_name");
    *(void **)&theirs.is_signal = dlsym(library, "_ULx86_64_is_signal_frame");
    if ((void *)theirs.step == (void *)unw_step) return 77;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, NULL);
    unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_PER_THREAD);
    for (int round = 0; round < 2; round++) {
        recursion(30);
        recursion(300);
        aligned(40);
        int numbers[] = {3, 2, 1};
        qsort(numbers, 3, sizeof *numbers, by_number);
        raise(SIGUSR1);
    }
    printf("%d frames, %d deep, %d names\n", compared, deepest, names);
    return wrong ? 1 : 0;
}
