/* frames MODE
 *   plain     recursion of changing depth, callbacks out of the C library, realigned and large frames, every limit
 *   threads   eight threads at once, and threads after threads
 *   signals   handlers on the thread's own and on alternate stacks, nested ones, and a timer that interrupts the C library
 *   fork      children, and children of threads
 * Exits with 1 at the first difference; else prints how many stacks were compared, and the depth of the deepest. */
#define IS_RIGHT_BEYOND is_right_beyond
static int is_right_beyond(void **, int, void **, int);

#include "compare.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static FRAME int descend(int depth, int wide) {
    volatile char space[64];
    space[0] = (char)depth;
    if (depth == 0) return same("descend") + space[0];
    if (wide && depth % 3 == 0) {
        volatile char *more = __builtin_alloca(100 + depth);
        more[0] = 1;
        return descend(depth - 1, wide) + more[0] + space[0];
    }
    return descend(depth - 1, wide) + space[0];
}

static FRAME int aligned(int depth) {
    __attribute__((aligned(64))) volatile char space[64];
    space[depth % 64] = 1;
    if (depth == 0) return same("aligned") + space[0];
    return aligned(depth - 1) + space[0];
}

static FRAME int compare_ints(const void *a, const void *b) {
    same("qsort");
    return *(const int *)a - *(const int *)b;
}

static FRAME int limited(int depth) {
    if (depth > 0) return limited(depth - 1) + 1;
    int sum = 0;
    for (int most = 2; most < 60; most += 3) sum += same_up_to("limited", most);
    return sum + same("unlimited");
}

static FRAME void plain(void) {
    for (int round = 0; round < 3; round++) {
        for (int depth = 0; depth < 300; depth += 7) descend(depth, round % 2);
        for (int depth = 0; depth < 40; depth += 5) aligned(depth);
        int numbers[] = {5, 3, 8, 1, 9, 2, 7};
        qsort(numbers, 7, sizeof numbers[0], compare_ints);
        limited(50);
    }
}

static void *in_thread(void *depth) {
    for (int round = 0; round < 50; round++) descend((int)(long)depth + round % 5, 1);
    return NULL;
}

static FRAME void threads(void) {
    for (int round = 0; round < 20; round++) {
        pthread_t all[8];
        for (long i = 0; i < 8; i++) pthread_create(&all[i], NULL, in_thread, (void *)(i * 9));
        for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
    }
}

/* The stack of the function that is interrupted or calls what is, and how often `busy` has called
 * itself. */
static void *outer[MOST];
static volatile int outer_count, recursions;

void *_Unwind_FindEnclosingFunction(void *return_address);

/* glibc's stack ends at code without a table. On AArch64, stubs that call other libraries and the
 * vDSO have none. Beyond must be the calls of `busy` and what has called all. */
static int is_right_beyond(void **glibc, int glibc_count, void **ours, int count) {
    void *interrupted = glibc[glibc_count - 1];
    /* The outermost addresses, but where the function itself is. */
    int common = outer_count - 1, longest = 1, equal = 1;
    if (_Unwind_FindEnclosingFunction((char *)interrupted + 1) != NULL || common < 2) return 0;
    if (count - glibc_count < common || memcmp(ours + count - common, outer + 1, sizeof *outer * (size_t)common) != 0) return 0;
    for (int i = glibc_count; i < count - common; i++) {
        equal = ours[i] == ours[i - 1] ? equal + 1 : 1;
        if (equal > longest) longest = equal;
    }
    return recursions < 2 || longest == recursions;
}

static volatile int nesting;

/* Backtraces in a handler of the code that it has interrupted, both ways: through the handler
 * and the trampoline, and from the context. */
static inline __attribute__((always_inline)) void look(int number, void *context) {
    int saved = errno;
    void *behind[MOST], *from[MOST];
    errno = 4711;
    int behind_count = backtrail_backtrace(behind, MOST);
    int from_count = backtrail_backtrace_from_ucontext(context, from, MOST);
    if (errno != 4711) _exit(3);
    if (from_count != behind_count - 2 || memcmp(behind + 2, from, sizeof *from * (size_t)from_count) != 0)
        tell("from_ucontext", from, from_count, behind, behind_count);
    same("handler");
    if (number == SIGUSR1 && nesting < 3) {
        nesting++;
        raise(SIGUSR1);
        nesting--;
    }
    errno = saved;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)info;
    look(number, context);
}

static FRAME void handle(int number, int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART | flags;
    sigaction(number, &action, NULL);
}

static volatile int sink;

static FRAME int busy(int depth) {
    if (depth > 0) return busy(depth - 1) + 1;
    char text[200];
    double sum = 0;
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "%d %f %s", i, i / 3.0, "text");
        sum += strtod(text, NULL);
        char *copy = strdup(text);
        sum += (double)strlen(copy);
        free(copy);
    }
    int numbers[64];
    for (int i = 0; i < 64; i++) numbers[i] = i * 37 % 64;
    sink += (int)sum + numbers[sink & 63];
    return 0;
}

static FRAME int fault(int depth, volatile char *guarded) {
    if (depth > 0) return fault(depth - 1, guarded) + 1;
    return guarded[0];
}

static char *guarded_page;
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    look(number, context);
    mprotect(guarded_page, 4096, PROT_READ);
}

static FRAME void signals(void) {
    stack_t alternate;
    outer_count = backtrace(outer, MOST);
    memset(&alternate, 0, sizeof alternate);
    alternate.ss_size = 1 << 17;
    alternate.ss_sp = malloc(alternate.ss_size);
    sigaltstack(&alternate, NULL);
    handle(SIGUSR1, SA_NODEFER);
    handle(SIGUSR2, SA_ONSTACK);
    for (int i = 0; i < 20; i++) {
        raise(SIGUSR1);
        raise(SIGUSR2);
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    guarded_page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fault(10, guarded_page);
    for (int on_alternate = 0; on_alternate < 2; on_alternate++) {
        handle(SIGPROF, on_alternate ? SA_ONSTACK : 0);
        struct itimerval each = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_PROF, &each, NULL);
        clock_t end = clock() + CLOCKS_PER_SEC / 4;
        for (int i = 0; clock() < end; i++) {
            recursions = i % 50;
            busy(recursions);
            recursions = 0;
        }
        setitimer(ITIMER_PROF, &never, NULL);
    }
}

static FRAME void in_child(int depth) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 5; i++) descend(depth + i, 0);
        threads();
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) _exit(1);
    descend(depth, 0);
}

static void *fork_in_thread(void *nothing) {
    in_child(20);
    return nothing;
}

int main(int argc, char **argv) {
#ifndef WITHOUT_INIT
    if (backtrail_init(NULL) != 0) return 2;
#endif
    const char *mode = argc > 1 ? argv[1] : "plain";
    void *warm[2];
    backtrace(warm, 2);
    if (strcmp(mode, "plain") == 0) plain();
    else if (strcmp(mode, "threads") == 0) threads();
    else if (strcmp(mode, "signals") == 0) signals();
    else if (strcmp(mode, "fork") == 0) {
        descend(30, 0);
        in_child(30);
        pthread_t thread;
        pthread_create(&thread, NULL, fork_in_thread, NULL);
        pthread_join(thread, NULL);
    } else return 2;
    printf("%d stacks, %d deep\n", compared, deepest);
    return 0;
}
