/* shapes
 *
 * A function for each shape of frame that compilers make: none at all, a small and a large one, one whose size is only known at run
 * time, one that takes its arguments from the stack, one that realigns it, and calls through the PLT. Not meant to be run for long: it is
 * its tables that matter. With -DBARE it needs no C library. */
#include <stdarg.h>

#define FRAME __attribute__((noinline, noclone))

#ifdef BARE
extern int outside(const char *text) __attribute__((weak));
#define OUTSIDE outside
#else
#include <stdio.h>
#define OUTSIDE puts
#endif

FRAME int leaf(int value) { return value * 3 + 1; }

FRAME int caller(int value) { return leaf(value) + leaf(value + 1); }

FRAME int sum(int count, ...) {
    va_list list;
    int all = 0;
    va_start(list, count);
    while (count-- > 0)
        all += va_arg(list, int);
    va_end(list);
    return all;
}

FRAME void use(volatile char *place, int count) {
    for (int index = 0; index < count; index++)
        place[index] = (char)leaf(index);
}

FRAME int sized_at_run_time(int count) {
    volatile char *place = __builtin_alloca(count * 16);
    use(place, count);
    return place[0] + sum(3, 1, 2, count);
}

FRAME int large(int count) {
    volatile char place[20000];
    use(place, count);
    return place[count / 2];
}

FRAME int realigned(int count) {
    volatile char place[256] __attribute__((aligned(128)));
    use(place, count);
    return place[0] + caller(count);
}

FRAME int many_registers(int a, int b, int c, int d, int e, int f) {
    int x = leaf(a), y = leaf(b), z = leaf(c), u = leaf(d), v = leaf(e), w = leaf(f);
    return caller(x + y) * caller(z + u) + caller(v + w) + x * y * z * u * v * w;
}

FRAME int early_return(int value) {
    if (value < 3)
        return value;
    return caller(value) + OUTSIDE("shapes");
}

int main(int count, char **arguments) {
    (void)arguments;
    return (sized_at_run_time(count) + large(count) + realigned(count) + many_registers(count, 1, 2, 3, 4, 5) +
            early_return(count + 2)) == 12345;
}
