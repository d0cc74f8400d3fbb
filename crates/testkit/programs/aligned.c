// aligned SECONDS
//
// Aligns its stack in a function whose callers have frames without frame pointers.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME __attribute__((noipa))

static volatile long sink;

FRAME void uses(char *aligned, char *other, long n)
{
    for (long i = 0; i < 20; i++)
        aligned[i] = other[n & 7] + (char) i;
}

FRAME long aligns(long n, long a, long b, long c, long d, long e, long f)
{
    char aligned[64] __attribute__((aligned(64)));
    char *other = __builtin_alloca(16 + (n & 31));
    memset(other, (int) n, 16);
    uses(aligned, other, n);
    return aligned[3] + a + b + c + d + e + f;
}

FRAME long middle(long n)
{
    char room[40];
    memset(room, (int) n, sizeof room);
    long found = aligns(n, room[0], 2, 3, 4, 5, 6);
    return found + room[n % 40];
}

FRAME long outer(long n)
{
    return middle(n) + n;
}

int main(int count, char **arguments)
{
    clock_t end = clock() + (count > 1 ? atoi(arguments[1]) : 1) * CLOCKS_PER_SEC;
    while (clock() < end)
        for (int i = 0; i < 1000; i++)
            sink = sink + outer(i);
    return 0;
}
