/* A program that calls backtrace(3) and does not know Backtrail: prints the offsets of its
 * frames in their modules. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>

#define FRAME __attribute__((noinline, noclone))

static FRAME int descend(int depth) {
    volatile char space[32];
    space[0] = 0;
    if (depth > 0) return descend(depth - 1) + space[0];
    void *frames[100];
    int count = backtrace(frames, 100);
    for (int i = 0; i < count; i++) {
        Dl_info module;
        if (!dladdr(frames[i], &module)) return 1;
        printf("%s %#lx\n", module.dli_fname, (unsigned long)((char *)frames[i] - (char *)module.dli_fbase));
    }
    return space[0];
}

static FRAME int compare(const void *a, const void *b) {
    static int times;
    return times++ ? *(const int *)a - *(const int *)b : descend(40);
}

int main(void) {
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof numbers[0], compare);
    return 0;
}
