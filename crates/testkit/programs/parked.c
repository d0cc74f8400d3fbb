// Threads that stand in functions that are known.
//
//     parked THREADS [vfork|crash|null]
//
// THREADS threads beside the first: each waits, by its number modulo 5, for a condition, in read(2), in a signal handler,
// deep in a recursion, or in sleep. Writes "ready" when all wait. With "vfork", one more thread stands in the kernel without
// being interruptible, for three seconds. With "crash" a thread then reads from a bad address, with "null" it calls
// address 0.
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int waiting, pipe_ends[2];
static volatile int zero;
static int (*volatile nothing)(void);

static void count_in(void) { __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST); }

FRAME int wait_for_condition(void) {
    count_in();
    pthread_mutex_lock(&lock);
    while (!zero) pthread_cond_wait(&never, &lock);
    return zero;
}

FRAME int wait_in_read(void) {
    char byte;
    count_in();
    return (int)read(pipe_ends[0], &byte, 1) + zero;
}

static void handler(int signal) {
    count_in();
    while (!zero) pause();
    (void)signal;
}

FRAME int wait_in_handler(void) {
    pthread_kill(pthread_self(), SIGUSR1);
    return zero;
}

FRAME int wait_in_recursion(int depth) {
    if (depth == 0) {
        count_in();
        while (!zero) sleep(1000);
        return zero;
    }
    return wait_in_recursion(depth - 1) + depth + zero;
}

FRAME int wait_in_sleep(void) {
    count_in();
    while (!zero) sleep(1000);
    return zero;
}

FRAME int middle(long kind) {
    switch (kind % 5) {
    case 0: return wait_for_condition() + zero;
    case 1: return wait_in_read() + zero;
    case 2: return wait_in_handler() + zero;
    case 3: return wait_in_recursion(60) + zero;
    default: return wait_in_sleep() + zero;
    }
}

FRAME int outer(long kind) { return middle(kind) + zero; }

static void *begin(void *kind) { return (void *)(long)(outer((long)kind) + zero); }

FRAME int wait_for_child(void) {
    count_in();
    pid_t child = vfork();
    if (child == 0) {
        sleep(3);
        _exit(0);
    }
    return waitpid(child, NULL, 0) + zero;
}

static void *begin_vfork(void *unused) {
    (void)unused;
    wait_for_child();
    while (!zero) pause();
    return NULL;
}

FRAME int bad_read(int *place) { return *place + zero; }
FRAME int bad_call(void) { return nothing() + zero; }

FRAME int crash(const char *how) {
    if (strcmp(how, "null") == 0) return bad_call() + zero;
    return bad_read((int *)8) + zero;
}

int main(int argc, char **argv) {
    long threads = argc > 1 ? atol(argv[1]) : 5;
    const char *mode = argc > 2 ? argv[2] : "";
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    if (pipe(pipe_ends) != 0) return 1;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    pthread_t thread;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&thread, &small, begin, (void *)i) != 0) return 1;
    if (strcmp(mode, "vfork") == 0) {
        threads++;
        if (pthread_create(&thread, &small, begin_vfork, NULL) != 0) return 1;
    }
    while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) < threads) usleep(1000);
    // What counted itself in is about to wait.
    usleep(50000);
    printf("ready\n");
    fflush(stdout);
    if (strcmp(mode, "crash") == 0 || strcmp(mode, "null") == 0) return crash(mode);
    return wait_in_read() + zero;
}
