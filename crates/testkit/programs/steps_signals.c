/* steps_signals [ROUNDS [MICROSECONDS]]
 *
 * Signals that come from the program itself, from a fault, and from a timer, on the thread's own and on alternate stacks, one within the other; handlers
 * that return, and one that jumps out. Meant to be stepped: the timer's
 * period has to be longer than its handler takes then. */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int sink, depth;
static char *guarded;
static sigjmp_buf out;

static FRAME int below(int levels) { return levels ? below(levels - 1) + 1 : sink; }

static void on_nested(int number) {
    sink += below(3);
    if (number == SIGUSR1 && depth < 2) {
        depth++;
        raise(SIGUSR1);
        raise(SIGUSR2);
        depth--;
    }
}
static void on_timer(int number) { sink += below(number % 7); }
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    sink += below(2);
    mprotect(guarded, 4096, PROT_READ);
}
static void on_way_out(int number) { siglongjmp(out, number); }

static FRAME void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, NULL);
}

/* Without a frame: what is interrupted may be anywhere in it. */
static FRAME uint64_t leaf(uint64_t x) {
    for (int i = 0; i < 40; i++) x = x * 31 + (x >> 7);
    return x;
}
static FRAME uint64_t busy(int levels, uint64_t x) {
    __attribute__((aligned(32))) volatile uint64_t space[4];
    space[levels % 4] = leaf(x);
    return levels ? busy(levels - 1, x + 1) + space[levels % 4] : x;
}
static FRAME int fault(int levels) { return levels ? fault(levels - 1) + 1 : guarded[0]; }

static FRAME int jumped_out(void) { return sigsetjmp(out, 1) ? 1 : raise(SIGUSR1); }

int main(int argc, char **argv) {
    int rounds = (int)argument(argc, argv, 1, 1), period = (int)argument(argc, argv, 2, 3000);
    stack_t alternate;
    memset(&alternate, 0, sizeof alternate);
    alternate.ss_size = 1 << 16;
    alternate.ss_sp = malloc(alternate.ss_size);
    sigaltstack(&alternate, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guarded == MAP_FAILED) return 2;
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        int on = round % 2 ? SA_ONSTACK : 0;
        handle(SIGUSR1, on_nested, SA_NODEFER | on);
        handle(SIGUSR2, on_nested, on ^ SA_ONSTACK);
        raise(SIGUSR1);
        raise(SIGUSR2);
        mprotect(guarded, 4096, PROT_NONE);
        sum += (uint64_t)fault(5);
        handle(SIGALRM, on_timer, SA_RESTART | on);
        struct itimerval each = {{0, period}, {0, period}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &each, NULL);
        for (int i = 0; i < 10; i++) sum += busy(10, (uint64_t)i);
        usleep(1000);
        setitimer(ITIMER_REAL, &never, NULL);
        handle(SIGUSR1, on_way_out, on);
        sum += (uint64_t)jumped_out();
    }
    printf("{\"result\": %d}\n", sum != 0);
    return 0;
}
