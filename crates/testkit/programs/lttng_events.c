/*
 * Events for LTTng-UST.
 *
 * lttng_events COUNT        COUNT events: empty ones, numbers, texts, stacks
 * lttng_events COUNT time   nanoseconds of processor time for an empty event and for a stack of 16 frames, five lines of both
 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAMES 16

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void measure(long count, const uint64_t *ips)
{
    for (int round = 0; round < 5; round++) {
        double start = now();
        for (long i = 0; i < count; i++)
            lttng_ust_tracepoint(kit, empty);
        double empty = (now() - start) / count;
        start = now();
        for (long i = 0; i < count; i++)
            lttng_ust_tracepoint(kit, stack, ips, FRAMES);
        printf("%.2f %.2f\n", empty, (now() - start) / count);
    }
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 1000;
    uint64_t ips[FRAMES];
    for (int i = 0; i < FRAMES; i++)
        ips[i] = 0x7f0000001000 + i * 77;
    if (argc > 2 && strcmp(argv[2], "time") == 0) {
        measure(count, ips);
        return 0;
    }
    char text[64];
    for (long i = 0; i < count; i++) {
        switch (i % 4) {
        case 0:
            lttng_ust_tracepoint(kit, empty);
            break;
        case 1:
            lttng_ust_tracepoint(kit, numbers, (int)i, (uint64_t)i * 77777);
            break;
        case 2:
            snprintf(text, sizeof text, "text \"number\" %ld", i % 1000);
            lttng_ust_tracepoint(kit, text, (int)i, text, strlen(text));
            break;
        default:
            lttng_ust_tracepoint(kit, stack, ips, i % 16 == 3 ? FRAMES : 3);
        }
    }
}
