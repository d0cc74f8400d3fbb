/* An allocator that is not ready before main(), as that of GCL. With an argument: dies of a call of
   address 0, with default actions and without descriptors, as node and daemons do, or where all
   signals are blocked. */
#include <pthread.h>
#include <signal.h>
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
