/* Sixteen functions that do next to nothing: to call them costs mostly the stub that leads to them. */
#include <stdint.h>
#define STEP(n) \
    uint64_t step_##n(uint64_t x); \
    uint64_t step_##n(uint64_t x) { return x * 3 + n; }
STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
STEP(8) STEP(9) STEP(10) STEP(11) STEP(12) STEP(13) STEP(14) STEP(15)
