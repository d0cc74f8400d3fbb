/* signals [SECONDS]
 *
 * Spends nearly all its time inside signal handlers, a fifth of the time each way:
 *   raised     a handler that works, raised again and again
 *   nested     a handler that raises another signal, three deep
 *   altstack   the same on an alternate stack
 *   fault      a handler for a fault at an ordinary load, which mends the page
 *   timer      a timer that interrupts wherever the program happens to be (prologues, epilogues, the C library)
 * Prints the share of processor time that was spent in handlers. */
#include "common.h"
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static uint64_t ms;
static volatile double in_handlers;
static volatile sig_atomic_t ticks;
static char *volatile guarded;
static long page;

static FRAME void handler_work(double milliseconds) { spin((uint64_t)((double)ms * milliseconds)); }

static void on_plain(int sig) {
    (void)sig;
    double start = cpu_time();
    handler_work(2);
    in_handlers += cpu_time() - start;
}

static void on_nested_inner(int sig) {
    (void)sig;
    handler_work(1);
}

static void on_nested_middle(int sig) {
    (void)sig;
    handler_work(0.5);
    raise(SIGURG);
    handler_work(0.5);
}

static void on_nested_outer(int sig) {
    (void)sig;
    double start = cpu_time();
    raise(SIGUSR2);
    handler_work(1);
    in_handlers += cpu_time() - start;
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info, (void)context;
    double start = cpu_time();
    handler_work(2);
    mprotect(guarded, (size_t)page, PROT_READ | PROT_WRITE);
    in_handlers += cpu_time() - start;
}

/* Not by intervals: where a handler takes longer than one, the next signal would be there whenever it returns, for ever. */
static void tick_after(suseconds_t microseconds) {
    struct itimerval once = {.it_value = {.tv_usec = microseconds}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void on_timer(int sig) {
    (void)sig;
    double start = cpu_time();
    ticks++;
    handler_work(0.9);
    in_handlers += cpu_time() - start;
    tick_after(100);
}

static void install(int sig, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags | SA_RESTART;
    sigaction(sig, &action, NULL);
}

static FRAME void raised(double end) {
    install(SIGUSR1, on_plain, 0);
    while (now() < end) raise(SIGUSR1);
}

static FRAME void nested(double end, int flags) {
    install(SIGUSR1, on_nested_outer, flags);
    install(SIGUSR2, on_nested_middle, flags);
    install(SIGURG, on_nested_inner, flags);
    while (now() < end) raise(SIGUSR1);
}

static FRAME void altstack(double end) {
    static char memory[1 << 18];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    sigaltstack(&stack, NULL);
    nested(end, SA_ONSTACK);
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, NULL);
}

static FRAME char touch(char *at) { return *(volatile char *)at; }

static FRAME void fault(double end) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    guarded = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (now() < end) {
        mprotect(guarded, (size_t)page, PROT_NONE);
        touch(guarded);
    }
    install(SIGSEGV, SIG_DFL, 0);
}

static FRAME uint64_t tree(unsigned level) {
    if (level == 0) return 1;
    char text[64];
    snprintf(text, sizeof text, "%u", level);
    return tree(level - 1) + tree(level - 1) + (uint64_t)strlen(text);
}

static FRAME void timer(double end) {
    install(SIGALRM, on_timer, 0);
    tick_after(100);
    while (now() < end) tree(6);
    install(SIGALRM, SIG_IGN, 0);
}

int main(int argc, char **argv) {
    double slice = argument(argc, argv, 1, 5) / 5, start = now();
    page = sysconf(_SC_PAGESIZE);
    ms = rounds_per_ms();
    raised(start + slice);
    nested(start + 2 * slice, 0);
    altstack(start + 3 * slice);
    fault(start + 4 * slice);
    timer(start + 5 * slice);
    printf("{\"in_handlers\": %.4f, \"ticks\": %d}\n", in_handlers / cpu_time(), (int)ticks);
    return 0;
}
