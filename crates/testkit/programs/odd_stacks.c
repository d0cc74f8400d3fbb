// Stacks that are odd in one way each.
//
//   odd_stacks leader    the first thread ends, two others wait
//   odd_stacks deep      50,000 frames, 12 MB, in code that runs on
//   odd_stacks context   waits in a function of makecontext
//   odd_stacks named     waits in a function whose name has more than 200 characters
//
// Each prints `ready` when it is there.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

static NOINLINE void *waits(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static volatile unsigned long spun;

static NOINLINE int recurse(int depth)
{
    volatile char room[200];
    room[0] = (char) depth;
    if (depth > 0)
        return recurse(depth - 1) + room[0];
    ready();
    for (;;)
        spun++;
}

static void *deep(void *unused)
{
    recurse(50000);
    return unused;
}

static void in_context(void)
{
    ready();
    waits(NULL);
    spun++;
}

static NOINLINE void a_function_whose_name_is_longer_than_any_line_part0_part1_part2_part3_part4_part5_part6_part7_part8_part9_part10_part11_part12_part13_part14_part15_part16_part17_part18_part19_part20_part21_part22_part23_part24_part25_part26_part27_part28_part29_part30_part31_part32_part33_part34_part35_part36_part37_part38_part39(void)
{
    ready();
    waits(NULL);
    spun++;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    pthread_t thread;
    if (strcmp(what, "leader") == 0) {
        pthread_create(&thread, NULL, waits, NULL);
        pthread_create(&thread, NULL, waits, NULL);
        ready();
        pthread_exit(NULL);
    }
    if (strcmp(what, "deep") == 0) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 64 << 20);
        pthread_create(&thread, &attributes, deep, NULL);
        pthread_join(thread, NULL);
    }
    if (strcmp(what, "context") == 0) {
        static char stack[64 << 10];
        static ucontext_t own, other;
        getcontext(&other);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = sizeof stack;
        other.uc_link = &own;
        makecontext(&other, in_context, 0);
        swapcontext(&own, &other);
    }
    if (strcmp(what, "named") == 0)
        a_function_whose_name_is_longer_than_any_line_part0_part1_part2_part3_part4_part5_part6_part7_part8_part9_part10_part11_part12_part13_part14_part15_part16_part17_part18_part19_part20_part21_part22_part23_part24_part25_part26_part27_part28_part29_part30_part31_part32_part33_part34_part35_part36_part37_part38_part39();
    return 2;
}
