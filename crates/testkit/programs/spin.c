/* spin SECONDS [exit STATUS | signal NUMBER]
 *
 * Works in a short chain of calls for SECONDS of the CPU, then ends as its arguments say. An interrupt (Ctrl-C) ends it with status
 * 42, which shows that the program decided. Prints a line when it starts, so that others know that it runs. */
#include "common.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void on_interrupt(int sig) {
    (void)sig;
    _exit(42);
}

static FRAME uint64_t inner_work(uint64_t ms) { return spin(ms) + 1; }
static FRAME uint64_t outer_work(uint64_t ms) { return inner_work(ms) + 2; }

int main(int argc, char **argv) {
    signal(SIGINT, on_interrupt);
    double end = cpu_time() + argument(argc, argv, 1, 3);
    int number = (int)argument(argc, argv, 3, 0);
    uint64_t ms = rounds_per_ms(), result = 0;
    puts("started");
    fflush(stdout);
    while (cpu_time() < end) result += outer_work(ms);
    if (argc > 3 && strcmp(argv[2], "signal") == 0) {
        signal(number, SIG_DFL);
        raise(number);
    }
    return argc > 3 ? number : (int)(result == 0);
}
