/* shares [SECONDS]
 *
 * Three call chains that end in the same leaf get 50, 30 and 20 % of the processor time:
 *   main alpha middle leaf    main beta leaf    main gamma delta middle leaf
 * The next slice always goes to the chain that is furthest behind its target; slices differ in length, so that no sampling rate falls
 * into step with them. Prints the shares as they were measured on the thread's own clock: these are the truth. */
#include "common.h"

static uint64_t rounds;

static FRAME uint64_t leaf(void) { return spin(rounds) + 1; }
static FRAME uint64_t middle(void) { return leaf() + 2; }
static FRAME uint64_t delta(void) { return middle() + 3; }
static FRAME uint64_t alpha(void) { return middle() + 4; }
static FRAME uint64_t beta(void) { return leaf() + 5; }
static FRAME uint64_t gamma_(void) { return delta() + 6; }

int main(int argc, char **argv) {
    static uint64_t (*const chain[3])(void) = {alpha, beta, gamma_};
    static const double target[3] = {0.5, 0.3, 0.2};
    double seconds = argument(argc, argv, 1, 10), spent[3] = {0, 0, 0};
    uint64_t ms = rounds_per_ms(), random = 88172645463325252u, result = 0;
    double start = cpu_time(), last = start;
    while (last - start < seconds) {
        int next = 0;
        double most = -1e9, so_far = last - start;
        for (int i = 0; i < 3; i++) {
            double behind = target[i] * so_far - spent[i];
            if (behind > most) most = behind, next = i;
        }
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        rounds = ms / 4 + random % (ms * 2);
        result += chain[next]();
        double t = cpu_time();
        spent[next] += t - last;
        last = t;
    }
    double all = spent[0] + spent[1] + spent[2];
    printf("{\"alpha\": %.5f, \"beta\": %.5f, \"gamma_\": %.5f, \"seconds\": %.3f, \"result\": %llu}\n", spent[0] / all,
           spent[1] / all, spent[2] / all, all, (unsigned long long)result);
    return 0;
}
