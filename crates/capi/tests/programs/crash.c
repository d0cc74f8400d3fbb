/* crash HOW [HELPER]
 *
 * Dies in one of many ways, with a report: overflow (of the stack), thread (the same in another
 * thread), heap (corruption that the C library finds), null (a jump to address 0), smash (a
 * buffer's end overwritten), segv, abort, raise (SIGFPE sent to itself), division, lost (a
 * division after the thread pointer is gone), twice (in two
 * threads at once), before (an earlier handler exits with 42), saved (an earlier handler saves it, and
 * three seconds later it exits with 42), chained (a later handler calls ours
 * with the signal's number only, and aborts), parked and parked-abort (while two threads
 * wait), after-vfork (whose child has died, too),
 * both (a thread aborts while another is at fault). With WITH_CORE in the environment, cores are not disabled. */
#define _GNU_SOURCE
#include <backtrail.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAME __attribute__((noinline, noclone))

static volatile int zero;

FRAME int overflow(int depth) {
    volatile char space[256];
    space[depth % 256] = 1;
    return overflow(depth + 1) + space[depth % 256];
}

static void *overflow_in_thread(void *unused) {
    if (backtrail_crash_thread() != 0) exit(3);
    return (void *)(long)(overflow(0) + (unused != NULL));
}

FRAME void corrupt(void) {
    char *block = malloc(64);
    char *hidden = block;
    __asm__("" : "+r"(hidden));
    free(block);
    free(hidden);
}

FRAME int call_null(void) {
    int (*nothing)(void) = NULL;
    __asm__("" : "+r"(nothing));
    return nothing() + 1;
}

FRAME __attribute__((optimize("stack-protector-all"))) void smash(int length) {
    char buffer[16];
    char *begin = buffer;
    __asm__("" : "+r"(begin));
    memset(begin, 0x41, (size_t)length);
    __asm__ volatile("" : : "r"(begin) : "memory");
}

FRAME int touch(volatile int *where) {
    return *where + 1;
}

static void *touch_in_thread(void *where) {
    return (void *)(long)touch(where);
}

static pthread_barrier_t together;

static void *abort_together(void *unused) {
    pthread_barrier_wait(&together);
    abort();
    return unused;
}

static void *touch_together(void *where) {
    pthread_barrier_wait(&together);
    return (void *)(long)touch(where);
}

static void earlier(int signal) {
    (void)signal;
    _exit(42);
}

static sigjmp_buf safe;
static volatile int times_saved;

static void save(int signal) {
    (void)signal;
    times_saved++;
    siglongjmp(safe, 1);
}

FRAME int survive(void) {
    if (sigsetjmp(safe, 1) == 0) return touch((int *)16);
    sleep(3);
    _exit(times_saved == 1 ? 42 : 43);
}

static void (*replaced)(int, long, long);

/* As handlers do that were installed with signal(2): the other arguments are what happens to be in
   the registers. */
FRAME void later(int signal) {
    replaced(signal, 1, 1);
    abort();
}

FRAME int wait_inside(int *end) {
    char byte;
    return (int)read(*end, &byte, 1) + 1;
}

static void *wait_in_thread(void *end) {
    return (void *)(long)(wait_inside(end) + 1);
}

/* Waits until two threads sleep. */
static void park(void) {
    static int ends[2];
    pthread_t threads[2];
    if (pipe(ends) != 0) exit(3);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, wait_in_thread, &ends[0]);
    usleep(200000);
}

FRAME int die(const char *how) {
    if (!strncmp(how, "parked", 6)) park();
    if (!strcmp(how, "parked-abort")) abort();
    if (!strcmp(how, "parked")) return touch((int *)16) + 1;
    if (!strcmp(how, "after-vfork")) {
        int status = 0;
        pid_t child = vfork();
        if (child == 0) _exit(touch((int *)16));
        waitpid(child, &status, 0);
        if (WTERMSIG(status) == SIGSEGV) abort();
    }
    if (!strcmp(how, "both")) {
        pthread_t threads[2];
        pthread_barrier_init(&together, NULL, 2);
        pthread_create(&threads[0], NULL, abort_together, NULL);
        pthread_create(&threads[1], NULL, touch_together, (void *)16);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    }
    if (!strcmp(how, "saved")) return survive() + 1;
    if (!strcmp(how, "overflow")) return overflow(0) + 1;
    if (!strcmp(how, "heap")) return corrupt(), 1;
    if (!strcmp(how, "null")) return call_null() + 1;
    if (!strcmp(how, "smash")) return smash(64), 1;
    if (!strcmp(how, "segv") || !strcmp(how, "before") || !strcmp(how, "chained")) return touch((int *)16) + 1;
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "raise")) return raise(SIGFPE) + 1;
    if (!strcmp(how, "division")) return 1000 / zero + 1;
#ifdef __x86_64__
    if (!strcmp(how, "lost")) {
        const unsigned long set_fs = 0x1002;
        __asm__ volatile("syscall\n\txor %%edx, %%edx\n\tdiv %%edx" : : "a"((long)SYS_arch_prctl), "D"(set_fs), "S"(16L) : "rcx", "r11", "rdx", "memory");
    }
#endif
    pthread_t threads[2];
    int twice = !strcmp(how, "twice");
    for (int i = 0; i <= twice; i++) pthread_create(&threads[i], NULL, twice ? touch_in_thread : overflow_in_thread, twice ? (void *)16 : NULL);
    for (int i = 0; i <= twice; i++) pthread_join(threads[i], NULL);
    return 1;
}

int main(int argc, char **argv) {
    struct backtrail_crash_options options = {.size = sizeof options};
    struct rlimit no_core = {0, 0};
    if (argc < 2) return 2;
    if (argc > 2) options.helper = argv[2];
    if (getenv("WITH_CORE") == NULL) setrlimit(RLIMIT_CORE, &no_core);
    if (!strcmp(argv[1], "before")) signal(SIGSEGV, earlier);
    if (!strcmp(argv[1], "saved")) signal(SIGSEGV, save);
    if (backtrail_crash_install(&options) != 0) return 2;
    if (!strcmp(argv[1], "chained")) {
        void (*before)(int) = signal(SIGSEGV, later);
        memcpy(&replaced, &before, sizeof replaced);
    }
    return die(argv[1]) + 1;
}
