/* ticks CALLS MICROSECONDS
 *
 * Calls `tick` CALLS times, with this pause after each call: exactly so many samples of its entry, however the time between them is
 * divided. */
#include "common.h"
#include <unistd.h>

static volatile uint64_t ticked;

FRAME void tick(uint64_t number) { ticked = number; }

int main(int argc, char **argv) {
    uint64_t calls = (uint64_t)argument(argc, argv, 1, 1000);
    unsigned pause = (unsigned)argument(argc, argv, 2, 500);
    for (uint64_t number = 1; number <= calls; number++) {
        tick(number);
        usleep(pause);
    }
    return ticked == calls ? 0 : 1;
}
