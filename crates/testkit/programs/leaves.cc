// leaves SECONDS exceptions|jumps|contexts
//
// Leaves several frames at once, all the time: by exceptions, which destructors see, by longjmp, or
// by setcontext.
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <ucontext.h>

#define FRAME __attribute__((noipa))

static volatile long sink;
static jmp_buf there;
static ucontext_t context;

struct Guard {
    ~Guard() { sink = sink + 1; }
};

extern "C" {

FRAME long thrower(long a, long b) {
    if (a + b >= 0) throw a;
    return a;
}

FRAME long inner(long a, long b, long c) {
    Guard guard;
    return thrower(a, b) + c;
}

FRAME long outer(long a, long b, long c, long d) {
    Guard guard;
    return inner(a, b, c) * d;
}

FRAME long catcher(long a, long b) {
    try {
        return outer(a, b, a, b) + a;
    } catch (long number) {
        return number + b;
    }
}

FRAME void jumper(int a) {
    sink = sink + a;
    longjmp(there, a + 1);
}

FRAME void over(int a, int b) {
    jumper(a);
    sink = sink + b;
}

FRAME long setter(int a) {
    int back = setjmp(there);
    if (back == 0) over(a, a + 1);
    return back;
}

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
}

int main(int, char **arguments) {
    time_t end = time(nullptr) + atoi(arguments[1]);
    bool jumps = strcmp(arguments[2], "jumps") == 0, resumes = strcmp(arguments[2], "contexts") == 0;
    while (time(nullptr) < end)
        for (int i = 0; i < 1000; i++)
            sink = sink + (jumps ? setter(i) : resumes ? keeper(i) : catcher(i, 1));
}
