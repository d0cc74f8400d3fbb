/* An allocator that is not ready before main(), as that of GCL. With an argument: dies of a call of
   address 0, with default actions and without descriptors, as node and daemons do, where all
   signals are blocked, or after a handler that the kernel calls only once. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <execinfo.h>
#include <malloc.h>

static int is_ready;

void *realloc(void *block, size_t size)
{
    if (!is_ready)
        abort();
    void *larger = malloc(size);
    if (larger && block) {
        size_t old = malloc_usable_size(block);
        memcpy(larger, block, old < size ? old : size);
        free(block);
    }
    return larger;
}

/* glibc frees the message of a failed look-up before the next one. */
void free(void *block)
{
    extern void __libc_free(void *);
    if (block && !is_ready)
        abort();
    __libc_free(block);
}

static void close_all(void)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
}

static void last_handler(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

__attribute__((noinline)) static void die(void)
{
    void (*volatile nothing)(void) = 0;
    nothing();
}

static void handler(int number)
{
    if (number)
        die();
}

static int runs;

static void only_once(int number)
{
    if (number != SIGSEGV || ++runs > 1)
        _exit(3);
}

static void with_context(int number, siginfo_t *info, void *context)
{
    if (!context || info->si_signo != number)
        _exit(4);
    only_once(number);
}

/* What a program finds must be what it has set. */
static void check(uintptr_t expected, unsigned flags)
{
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) != 0 || (uintptr_t)now.sa_handler != expected ||
        ((unsigned)now.sa_flags & (SA_RESETHAND | SA_SIGINFO | SA_NODEFER)) != flags)
        _exit(5);
}

static void *thread(void *set)
{
    pthread_sigmask(SIG_BLOCK, set, NULL);
    die();
    return NULL;
}

int main(int count, char **arguments)
{
    void *frames[16];
    is_ready = 1;
    if (count < 2) {
        printf("%d\n", backtrace(frames, 16) > 2);
        return 0;
    }
    if (strcmp(arguments[1], "default") == 0)
        signal(SIGSEGV, SIG_DFL);
    if (strcmp(arguments[1], "set") == 0)
        sigset(SIGSEGV, SIG_DFL);
    if (strcmp(arguments[1], "action") == 0)
        sigaction(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    if (strcmp(arguments[1], "handler") == 0)
        signal(SIGSEGV, last_handler);
    if (strcmp(arguments[1], "once") == 0) {
        struct sigaction once = {.sa_sigaction = with_context, .sa_flags = SA_RESETHAND | SA_SIGINFO};
        sigaction(SIGSEGV, &once, NULL);
        check((uintptr_t)with_context, SA_RESETHAND | SA_SIGINFO);
        /* Another handler between them is called every time. */
        if ((uintptr_t)signal(SIGSEGV, last_handler) != (uintptr_t)with_context)
            _exit(6);
        sigaction(SIGSEGV, &once, NULL);
    }
    if (strcmp(arguments[1], "once-sysv") == 0) {
        __sysv_signal(SIGSEGV, only_once);
        check((uintptr_t)only_once, SA_RESETHAND | SA_NODEFER);
    }
    sigset_t all;
    sigfillset(&all);
    if (strcmp(arguments[1], "blocked") == 0)
        sigprocmask(SIG_SETMASK, &all, NULL);
    if (strcmp(arguments[1], "thread") == 0) {
        pthread_t other;
        pthread_create(&other, NULL, thread, &all);
        pthread_join(other, NULL);
    }
    if (strcmp(arguments[1], "masked") == 0) {
        sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler, .sa_mask = all}, NULL);
        raise(SIGUSR1);
    }
    if (strcmp(arguments[1], "inherited") == 0) {
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
        execl("/proc/self/exe", arguments[0], "plain", (char *)NULL);
    }
    if (strcmp(arguments[1], "closed") == 0)
        close_all();
    if (strcmp(arguments[1], "reused") == 0) {
        close_all();
        /* A file of the program's own gets the number that the report's had. */
        FILE *own = fopen(arguments[2], "w");
        for (int fd = 50; fd < 200; fd++)
            if (own)
                dup2(fileno(own), fd);
    }
    die();
    return 1;
}
