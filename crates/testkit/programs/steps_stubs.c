/* steps_stubs [ROUNDS]
 *
 * Calls a shared library through stubs of the procedure linkage table, each for the first time and again. To be linked with -z lazy or -z now. */
#include "common.h"
#define DECLARE(n) uint64_t step_##n(uint64_t x);
#define CALL(n) x = step_##n(x);
#define ALL(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
ALL(DECLARE)

static FRAME uint64_t call_stubs(uint64_t x) {
    ALL(CALL)
    return x + 1;
}

int main(int argc, char **argv) {
    uint64_t x = 1;
    for (int i = (int)argument(argc, argv, 1, 1); i > 0; i--) x = call_stubs(x);
    printf("{\"result\": %llu}\n", (unsigned long long)x);
    return 0;
}
