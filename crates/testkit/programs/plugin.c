/* A library to be loaded at run time. PLUGIN names its function, so that two builds of it differ. */
#include "common.h"
#ifndef PLUGIN
#define PLUGIN plugin_work
#endif
#ifndef PADDING
#define PADDING 0
#endif
typedef uint64_t (*callback)(uint64_t);

/* Moves what follows, so that the rows of one build are wrong for the other. */
static FRAME uint64_t padding(uint64_t x) {
    volatile char kept[64 + PADDING];
    kept[x % sizeof kept] = (char)x;
    return x + (uint64_t)kept[x % sizeof kept];
}

static FRAME uint64_t PLUGIN(callback back, uint64_t rounds) {
    volatile uint64_t kept[4 + PADDING / 8];
    kept[0] = padding(rounds);
    kept[1] = spin(rounds / 2);
    kept[2] = back(rounds / 2);
    return kept[0] + kept[1] + kept[2];
}

uint64_t plugin_enter(callback back, uint64_t rounds);
uint64_t plugin_enter(callback back, uint64_t rounds) { return PLUGIN(back, rounds) + 1; }

/* Calls nothing and needs no address of its own: can be run in any mapping of the file. */
uint64_t plugin_alone(uint64_t rounds);
uint64_t plugin_alone(uint64_t rounds) {
    uint64_t x = 1;
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}
