// leaves SECONDS exceptions|jumps|contexts
//
// Leaves several frames at once, all the time: by exceptions, by longjmp, or by setcontext.
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <ucontext.h>

#include "leaves.h"

static ucontext_t context;

FRAME void leaver(int a) {
    sink = sink + a;
    setcontext(&context);
    sink = sink + 1;
}

FRAME void across(int a, int b) {
    leaver(a);
    sink = sink + b;
}

FRAME long keeper(int a) {
    volatile int times = 0;
    getcontext(&context);
    if (times++ == 0) across(a, a + 1);
    return times;
}

int main(int, char **arguments) {
    clock_t end = clock() + atoi(arguments[1]) * CLOCKS_PER_SEC;
    bool jumps = strcmp(arguments[2], "jumps") == 0, resumes = strcmp(arguments[2], "contexts") == 0;
    while (clock() < end)
        for (int i = 0; i < 1000; i++)
            sink = sink + (jumps ? setter(i) : resumes ? keeper(i) : catcher(i, 1));
}
