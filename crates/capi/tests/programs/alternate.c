/* alternate
 *   Signals on an alternate stack interrupt recursions, in the first thread and in another one,
 *   in a process that may not copy its own memory: the interrupted frames can only be loaded.
 *   Exits with 1 if one is missing, with 77 if nothing can be forbidden; otherwise prints how
 *   many stacks were complete, and the depth of the deepest. */
#define _GNU_SOURCE
#include <backtrail.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define MOST 400
#define FRAME __attribute__((noinline, noclone))

static volatile int expected, complete, deepest;

static void check(const char *what, int count, int most) {
    if (count < expected || count > most) {
        fprintf(stderr, "%s: %d frames of %d\n", what, count, expected);
        _Exit(1);
    }
    complete++;
    if (count > deepest) deepest = count;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)info;
    void *frames[MOST];
    /* Few frames lie outside main or the thread's start. */
    int from = number == SIGUSR1 ? 0 : backtrail_backtrace_from_ucontext(context, frames, MOST);
    if (number == SIGUSR2) check("from the context", from, expected + 12);
    check("from the handler", backtrail_backtrace(frames, MOST), expected + 14);
}

static FRAME int descend(int depth, int number) {
    volatile char space[100];
    space[0] = (char)depth;
    if (depth == 0) return raise(number) + space[0];
    return descend(depth - 1, number) + space[0];
}

static void *all(void *first_number) {
    stack_t alternate;
    memset(&alternate, 0, sizeof alternate);
    alternate.ss_size = 1 << 16;
    alternate.ss_sp = malloc(alternate.ss_size);
    sigaltstack(&alternate, NULL);
    int number = *(int *)first_number;
    for (int depth = 20; depth < 300; depth += 40) {
        expected = depth;
        descend(depth, number);
        number = number == SIGUSR1 ? SIGUSR2 : SIGUSR1;
    }
    return NULL;
}

/* process_vm_readv fails with EPERM. */
static int forbid(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int main(void) {
    if (backtrail_init(NULL) != 0) return 2;
    if (!forbid()) return 77;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    int numbers[] = {SIGUSR1, SIGUSR2};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, all, &numbers[i]);
        pthread_join(thread, NULL);
    }
    all(&numbers[0]);
    printf("%d stacks, %d deep\n", complete, deepest);
    return 0;
}
