/* Compares the frames of our walks with libgcc's, callback by callback, in many kinds of frames.
   Linked with libgcc's functions by name only: preloading changes whose they are. Exits with 77 if
   it is not preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

#define MOST 4096
#define FRAME __attribute__((noinline, noclone))

#ifdef __aarch64__
enum { FRAME_POINTER = 29, STACK_POINTER = 31, REGISTERS = 32 };
#else
enum { FRAME_POINTER = 6, STACK_POINTER = 7, REGISTERS = 16 };
#endif
#define MOST_INTERRUPTED 8

struct frame {
    uintptr_t ip, cfa, region, lsda, fp;
    int before;
};

struct trace {
    struct frame frames[MOST];
    /* Of frames that a signal has interrupted: libgcc knows all registers there, and for others it
       crashes. */
    uintptr_t registers[MOST_INTERRUPTED][REGISTERS];
    int count, interrupted, limit, result;
    _Unwind_Ptr (*ip_info)(struct _Unwind_Context *, int *);
    _Unwind_Word (*cfa)(struct _Unwind_Context *);
    _Unwind_Ptr (*region)(struct _Unwind_Context *);
    void *(*lsda)(struct _Unwind_Context *);
    _Unwind_Word (*gr)(struct _Unwind_Context *, int);
};

typedef _Unwind_Reason_Code backtrace_function(_Unwind_Trace_Fn, void *);

static struct {
    backtrace_function *backtrace;
    void *(*enclosing)(void *);
    struct trace with;
} theirs;

static _Thread_local struct trace ours, expected;
static int compared, deepest, wrong;

static _Unwind_Reason_Code note(struct _Unwind_Context *context, void *argument) {
    struct trace *trace = argument;
    if (trace->count == trace->limit) return _URC_NORMAL_STOP;
    struct frame *frame = &trace->frames[trace->count++];
    frame->ip = trace->ip_info(context, &frame->before);
    frame->cfa = trace->cfa(context);
    /* The last callback has no function. */
    frame->region = frame->ip ? trace->region(context) : 0;
    frame->lsda = frame->ip ? (uintptr_t)trace->lsda(context) : 0;
    frame->fp = frame->ip ? trace->gr(context, FRAME_POINTER) : 0;
    if (frame->ip && frame->before && trace->interrupted < MOST_INTERRUPTED) {
        uintptr_t *registers = trace->registers[trace->interrupted++];
        for (int i = 0; i < REGISTERS; i++) registers[i] = trace->gr(context, i);
#ifdef __aarch64__
        /* libgcc's is where the kernel saved the registers. */
        frame->cfa = registers[STACK_POINTER];
#endif
    }
    return _URC_NO_REASON;
}

/* libgcc repeats the function before where there is no table, as in the kernel's code. */
static int same_function(const struct frame *ours, const struct frame *theirs_) {
    return ours->region == theirs_->region || (ours->region == 0 && theirs.enclosing((void *)ours->ip) == NULL);
}

static void check(const char *what) {
    compared++;
    if (expected.count > deepest) deepest = expected.count;
    int same = ours.count == expected.count && ours.result == expected.result && ours.interrupted == expected.interrupted;
    same = same && memcmp(ours.registers, expected.registers, sizeof *ours.registers * (size_t)ours.interrupted) == 0;
    for (int i = 0; same && i < ours.count; i++) {
        const struct frame *a = &ours.frames[i], *b = &expected.frames[i];
        /* Both are called from one function, at two places. */
        int same_ip = i == 0 ? a->region == b->region : a->ip == b->ip;
        same = same_ip && a->cfa == b->cfa && a->before == b->before && same_function(a, b) && a->lsda == b->lsda && a->fp == b->fp;
        if (same && a->ip && _Unwind_FindEnclosingFunction((void *)a->ip) != theirs.enclosing((void *)a->ip)) same = 0;
    }
    if (same) return;
    wrong++;
    for (int i = 0; i < ours.interrupted && i < expected.interrupted; i++)
        for (int k = 0; k < REGISTERS; k++)
            if (ours.registers[i][k] != expected.registers[i][k])
                fprintf(stderr, "interrupted frame %d: register %d: %#lx and %#lx\n", i, k, ours.registers[i][k], expected.registers[i][k]);
    fprintf(stderr, "%s: %d frames and %d, results %d and %d\n", what, ours.count, expected.count, ours.result, expected.result);
    for (int i = 0; i < ours.count || i < expected.count; i++) {
        const struct frame *a = &ours.frames[i], *b = &expected.frames[i];
        if (i > 40) break;
        fprintf(stderr, "%3d ip %#lx %#lx cfa %#lx %#lx before %d %d region %#lx %#lx lsda %#lx %#lx fp %#lx %#lx\n", i, a->ip, b->ip, a->cfa, b->cfa,
                a->before, b->before, a->region, b->region, a->lsda, b->lsda, a->fp, b->fp);
    }
}

static FRAME void same_up_to(const char *what, int limit) {
    ours = expected = theirs.with;
    ours.ip_info = _Unwind_GetIPInfo;
    ours.cfa = _Unwind_GetCFA;
    ours.region = _Unwind_GetRegionStart;
    ours.lsda = _Unwind_GetLanguageSpecificData;
    ours.gr = _Unwind_GetGR;
    ours.limit = expected.limit = limit;
    ours.count = expected.count = ours.interrupted = expected.interrupted = 0;
    ours.result = _Unwind_Backtrace(note, &ours);
    expected.result = theirs.backtrace(note, &expected);
    check(what);
}

static FRAME void same(const char *what) {
    same_up_to(what, MOST);
    same_up_to(what, 3);
}

static FRAME int recursion(int depth) {
    if (depth == 0) {
        same("recursion");
        return 0;
    }
    return recursion(depth - 1) + 1;
}

static FRAME int array(int size) {
    volatile char bytes[size];
    bytes[size - 1] = 1;
    same("variable array");
    return bytes[size - 1];
}

static FRAME int aligned(int value) {
    volatile int on_line __attribute__((aligned(256))) = value;
    same("aligned");
    return on_line;
}

static FRAME int aligned_array(int size) {
    volatile int on_line __attribute__((aligned(128))) = size;
    volatile char bytes[size];
    bytes[0] = 1;
    same("aligned array");
    return on_line + bytes[0];
}

static FRAME int large(int value) {
    volatile char bytes[300000];
    bytes[value] = 1;
    same("large");
    return bytes[value];
}

static int by_number(const void *a, const void *b) {
    static int once;
    if (once++ == 0) same("qsort");
    return *(const int *)a - *(const int *)b;
}

static void on_signal(int number) {
    (void)number;
    same("signal");
    if (number == SIGUSR1) raise(SIGUSR2);
}

static volatile int *volatile nowhere;

static void on_fault(int number) {
    (void)number;
    same("fault");
    _exit(wrong ? 1 : 0);
}

static FRAME int outer(int depth);

static void *thread(void *argument) {
    (void)argument;
    same("thread");
    outer(3);
    return NULL;
}

static FRAME int outer(int depth) {
    int numbers[4] = {4, 3, 2, 1};
    recursion(depth);
    array(depth * 16 + 1);
    aligned(depth);
    aligned_array(depth * 8 + 5);
    large(depth);
    qsort(numbers, 4, sizeof *numbers, by_number);
    raise(SIGUSR1);
    return numbers[0];
}

static FRAME void on_other_stack(void) {
    static char bytes[256 << 10];
    stack_t stack = {.ss_sp = bytes, .ss_size = sizeof bytes}, before;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, &before);
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    sigaltstack(&before, NULL);
}

static void in_constructor(void);
__attribute__((constructor)) static void begin(void) { in_constructor(); }

static int prepare(void) {
    if (theirs.backtrace) return 1;
    void *libgcc = dlopen("libgcc_s.so.1", RTLD_NOW);
    if (!libgcc) return 0;
    *(void **)&theirs.backtrace = dlsym(libgcc, "_Unwind_Backtrace");
    *(void **)&theirs.enclosing = dlsym(libgcc, "_Unwind_FindEnclosingFunction");
    *(void **)&theirs.with.ip_info = dlsym(libgcc, "_Unwind_GetIPInfo");
    *(void **)&theirs.with.cfa = dlsym(libgcc, "_Unwind_GetCFA");
    *(void **)&theirs.with.region = dlsym(libgcc, "_Unwind_GetRegionStart");
    *(void **)&theirs.with.lsda = dlsym(libgcc, "_Unwind_GetLanguageSpecificData");
    *(void **)&theirs.with.gr = dlsym(libgcc, "_Unwind_GetGR");
    return theirs.backtrace != NULL;
}

static void in_constructor(void) {
    if (prepare()) same("constructor");
}

int main(int argc, char **argv) {
    if (!prepare()) return 2;
    if ((void *)theirs.backtrace == (void *)_Unwind_Backtrace) return 77;
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    for (int round = 0; round < 3; round++) {
        outer(1);
        outer(130);
        outer(700);
        recursion(3000);
    }
    on_other_stack();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    if (argc > 1) {
        /* A library that is loaded later calls back. */
        void *library = dlopen(argv[1], RTLD_NOW);
        void *symbol = library ? dlsym(library, "plugin_enter") : NULL;
        if (!symbol) return 3;
        uint64_t (*enter)(uint64_t (*)(uint64_t), uint64_t);
        memcpy(&enter, &symbol, sizeof enter);
        for (int round = 0; round < 3; round++) enter((uint64_t (*)(uint64_t))(uintptr_t)outer, 2);
        dlclose(library);
        outer(2);
    }
    printf("%d stacks, %d deep\n", compared, deepest);
    fflush(stdout);
    signal(SIGSEGV, on_fault);
    return *nowhere;
}
