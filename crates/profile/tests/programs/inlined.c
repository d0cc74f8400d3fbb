#include <stdio.h>
#include <stdlib.h>

static inline __attribute__((always_inline)) unsigned mix(unsigned h, unsigned v)
{
    h ^= v;
    h *= 0x9e3779b1u;
    return h ^ (h >> 15);
}

static inline __attribute__((always_inline)) unsigned hash(const unsigned *values, int count)
{
    unsigned h = 17;
    for (int i = 0; i < count; i++)
        h = mix(h, values[i]);
    return h;
}

__attribute__((noinline)) unsigned table(unsigned seed)
{
    unsigned values[64];
    for (int i = 0; i < 64; i++)
        values[i] = mix(seed, (unsigned)i);
    return hash(values, 64);
}

__attribute__((noinline)) static unsigned fib(unsigned n)
{
    if (n > 1000)
        abort();
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(int argc, char **argv)
{
    unsigned sum = 0;
    for (int i = 0; i < argc * 10; i++)
        sum += table((unsigned)i) + fib((unsigned)i % 20);
    printf("%s %u\n", argv[0], sum);
    return 0;
}
