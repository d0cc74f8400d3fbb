/* plt [SECONDS]
 *
 * Spends its time calling a shared library through stubs of the procedure linkage table. To be linked with -z lazy or -z now. */
#include "common.h"
#define DECLARE(n) uint64_t step_##n(uint64_t x);
#define CALL(n) x = step_##n(x);
#define ALL(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
ALL(DECLARE)

static FRAME uint64_t call_stubs(uint64_t x) {
    for (int i = 0; i < 10000; i++) { ALL(CALL) }
    return x + 1;
}

int main(int argc, char **argv) {
    double end = now() + argument(argc, argv, 1, 3);
    uint64_t x = 1;
    while (now() < end) x = call_stubs(x);
    printf("{\"result\": %llu}\n", (unsigned long long)x);
    return 0;
}
