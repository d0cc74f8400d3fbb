// nested SECONDS
//
// Calls functions within functions through pointers, all the time. GCC writes code for that onto the
// stack, which has to be executable.
#include <stdlib.h>
#include <time.h>

#define FRAME __attribute__((noipa))

static volatile long sink;

FRAME long apply(long (*function)(long), long n)
{
    return function(n) + 1;
}

FRAME long encloses(long n)
{
    long total = n;
    long inside(long more)
    {
        total += more;
        return more > 0 ? apply(inside, more - 1) : total;
    }
    return apply(inside, 5) + total;
}

int main(int count, char **arguments)
{
    clock_t end = clock() + (count > 1 ? atoi(arguments[1]) : 1) * CLOCKS_PER_SEC;
    while (clock() < end)
        for (int i = 0; i < 1000; i++)
            sink = sink + encloses(i);
    return 0;
}
