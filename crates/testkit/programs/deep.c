/* deep [DEPTH] [SECONDS] [one|three] [ROUND_MS]
 *
 * Recursion DEPTH levels deep that no compiler can turn into a loop: every level works before and after the call below it. A round goes
 * down to the bottom and up again; half of its time is spent at the bottom, a quarter on each way. `three` goes through three functions
 * in turn whose frames differ in size and in the registers they save.
 * Prints the bytes of stack between the first and the last level, so that a test can see that the levels are real. */
#include "common.h"
#include <string.h>

static uint64_t level_rounds, bottom_rounds;
static char *deepest;

static FRAME uint64_t bottom(void) {
    char here;
    char *volatile at = &here; /* keeps the address from being recognised as that of a dead local */
    deepest = at;
    return spin(bottom_rounds);
}

static FRAME uint64_t descend(unsigned level) {
    volatile uint64_t before = spin(level_rounds);
    uint64_t below = level <= 1 ? bottom() : descend(level - 1);
    return before + below * 3 + spin(level_rounds);
}

static FRAME uint64_t second(unsigned level);
static FRAME uint64_t third(unsigned level);

static FRAME uint64_t first(unsigned level) {
    volatile uint64_t before = spin(level_rounds);
    uint64_t below = level <= 1 ? bottom() : second(level - 1);
    return before + below * 3 + spin(level_rounds);
}

static FRAME uint64_t second(unsigned level) {
    /* Six values that live across three calls: the callee-saved registers are used up. */
    uint64_t a = spin(level_rounds), b = a ^ level, c = a * 3, d = b + 5, e = c ^ d, f = e * 7;
    uint64_t below = level <= 1 ? bottom() : third(level - 1);
    uint64_t after = spin(level_rounds);
    return a + b * below + c * after + d + e * below + f;
}

static FRAME uint64_t third(unsigned level) {
    volatile uint64_t kept[24];
    for (unsigned i = 0; i < 24; i++) kept[i] = level + i;
    kept[level % 24] += spin(level_rounds);
    uint64_t below = level <= 1 ? bottom() : first(level - 1);
    return kept[(level + 7) % 24] + below + spin(level_rounds);
}

int main(int argc, char **argv) {
    unsigned depth = (unsigned)argument(argc, argv, 1, 5000);
    double seconds = argument(argc, argv, 2, 3);
    int three = argc > 3 && strcmp(argv[3], "three") == 0;
    double round_ms = argument(argc, argv, 4, 500);
    if (depth == 0) depth = 1;
    double rounds = (double)rounds_per_ms() * round_ms;
    bottom_rounds = (uint64_t)(rounds / 2);
    level_rounds = (uint64_t)(rounds / 4 / depth);
    char here;
    char *volatile top = &here;
    double end = cpu_time() + seconds;
    uint64_t result = 0;
    do
        result += three ? first(depth) : descend(depth);
    while (cpu_time() < end);
    printf("{\"depth\": %u, \"stack_bytes\": %ld, \"result\": %llu}\n", depth, (long)(top - deepest), (unsigned long long)result);
    return 0;
}
