/* work MILLIONS
 *
 * A fixed amount of work on a stack of thirty to fifty frames, to be timed with and without a recorder. Prints its own times. */
#include "common.h"
#include <sys/resource.h>

static FRAME uint64_t tree(unsigned level, uint64_t x) {
    if (level == 0) return x * 6364136223846793005u + 1442695040888963407u;
    uint64_t left = tree(level - 1, x ^ level);
    return tree(level - 1, left) + level;
}

static FRAME uint64_t base(unsigned level, uint64_t millions) {
    volatile uint64_t kept[12];
    kept[level % 12] = level;
    if (level > 0) return base(level - 1, millions) + kept[level % 12];
    uint64_t x = 1;
    for (uint64_t i = 0; i < millions; i++) x = tree(19, x);
    return x;
}

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

int main(int argc, char **argv) {
    double start = now();
    uint64_t result = base(30, (uint64_t)argument(argc, argv, 1, 1000));
    struct rusage usage;
    double wall = now() - start;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"wall\": %.6f, \"user\": %.6f, \"system\": %.6f, \"result\": %llu}\n", wall, seconds(usage.ru_utime), seconds(usage.ru_stime),
           (unsigned long long)result);
    return 0;
}
