/* Functions with arguments of all sorts. Each writes a line for each argument that it was called with, "function name=value"; the innermost says
 * "ready" and waits, or aborts where CRASH is in the environment. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum colour { RED, GREEN = 5, BLUE };
struct point { int x, y; };
struct pair { long a; struct point p; };
struct flags { unsigned a : 3; int b : 5; bool c : 1; };

#define NOINLINE __attribute__((noinline, noclone))
volatile long sink;

NOINLINE int stop(int depth, const char *why, const char *gone)
{
    printf("stop gone=%p \"%s\"\n", (const void *)gone, gone);
    printf("stop depth=%d\nstop why=%p \"%s\"\nready\n", depth, (const void *)why, why);
    fflush(stdout);
    if (getenv("CRASH"))
        abort();
    /* Without end, but compilers don't jump to what they know not to return. */
    while (sink != -1)
        pause();
    return depth;
}

/* Leaves by a jump. */
NOINLINE int last(const char *why, int depth, const char *gone)
{
    sink = depth;
    return stop(depth, why, gone - 1);
}

NOINLINE int first(const char *why, int depth);

/* Calls what a register says. */
NOINLINE int through(int (*function)(const char *, int), int depth)
{
    printf("through function=%p\nthrough depth=%d\n", (void *)function, depth);
    return function("because", depth) + depth;
}

NOINLINE int leaf(int depth, enum colour c, bool yes, char letter, const char *text)
{
    printf("leaf depth=%d\nleaf c=%s\nleaf yes=%s\nleaf letter=%d '%c'\n", depth, c == BLUE ? "BLUE" : "?", yes ? "true" : "false",
           letter, letter);
    printf("leaf text=%p \"te\\\"xt\\n\"\n", (const void *)text);
    int result = through(first, depth + 1) + depth;
    sink = c + letter;
    return result + yes;
}

NOINLINE long middle(struct point p, double d, long big, struct pair pair, struct flags f, unsigned u, short s, long seven, long eight)
{
    printf("middle p={x = %d, y = %d}\nmiddle d=%g\nmiddle big=%ld\n", p.x, p.y, d, big);
    printf("middle pair={a = %ld, p = {x = %d, y = %d}}\n", pair.a, pair.p.x, pair.p.y);
    /* f is not told: gcc 12 takes its bits out of the register that it says f is in. */
    printf("middle u=%u\nmiddle s=%d\n", u, s);
    printf("middle seven=%ld\nmiddle eight=%ld\n", seven, eight);
    long result = leaf(p.x, BLUE, big > 5, 'q', "te\"xt\n") + p.y;
    sink = (long)d + u + s;
    return result + big + pair.a + f.b + seven + eight;
}

NOINLINE long keep(const char *name, void *where, long *counter)
{
    printf("keep name=%p \"%s\"\nkeep where=%p\nkeep counter=%p\n", (const void *)name, name, where, (void *)counter);
    struct pair pair = { 7, { 8, 9 } };
    struct flags flags = { 5, -3, 1 };
    long result = middle((struct point){ 3, -4 }, 2.5, *counter, pair, flags, 4000000000u, -77, 70, 80);
    *counter += result;
    sink = name[0];
    return result + (where != 0);
}

/* These reach each other by jumps: what the inner one was called with is not what their caller passed. */
NOINLINE long hops(long sum, long rest);

NOINLINE long jumps(long rest, long sum)
{
    printf("jumps rest=%ld\njumps sum=%ld\n", rest, sum);
    if (rest == 0) {
        long counter = 42 + sum;
        return keep("from jumps", &counter, &counter) + counter;
    }
    return hops(sum + rest, rest - 1);
}

NOINLINE long hops(long sum, long rest)
{
    sink = sum;
    return jumps(rest, sum);
}

/* Jumps to the one that leaves by a jump, from another section: the jump has 32 bits. */
__attribute__((section(".text.first"))) NOINLINE int first(const char *why, int depth)
{
    sink = depth;
    return last(why, depth, why + 3);
}

int main(int argc, char **argv)
{
    (void)argv;
    return jumps(argc + 3, 0) > 0;
}
