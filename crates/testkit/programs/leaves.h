// Functions that leave several frames at once, by exceptions, which destructors see, or by longjmp.
#include <csetjmp>

#define FRAME extern "C" __attribute__((noipa))

static volatile long sink;
static jmp_buf there;

struct Guard {
    ~Guard() { sink = sink + 1; }
};

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
