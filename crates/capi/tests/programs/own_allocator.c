/* An allocator that is not ready before main(), as that of GCL. With an argument: dies of a call of
   address 0, with default actions and without descriptors, as node and daemons do. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
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
