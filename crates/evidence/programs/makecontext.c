// Fibres of makecontext that take turns, for the given number of seconds.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>
enum { FIBRES = 8, STACK = 256 * 1024 };
static ucontext_t main_context, fibres[FIBRES];
static volatile long sum;
__attribute__((noinline)) static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((noinline)) static void turn(int fibre) {
  sum += fib(15 + fibre % 4);
  swapcontext(&fibres[fibre], &main_context);
  sum++;
}
static void body(int fibre) {
  for (;;) turn(fibre);
}
int main(int argc, char **argv) {
  time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
  for (int i = 0; i < FIBRES; i++) {
    getcontext(&fibres[i]);
    fibres[i].uc_stack.ss_sp = malloc(STACK);
    fibres[i].uc_stack.ss_size = STACK;
    fibres[i].uc_link = &main_context;
    makecontext(&fibres[i], (void (*)(void))body, 1, i);
  }
  while (time(NULL) < end)
    for (int i = 0; i < FIBRES; i++) swapcontext(&main_context, &fibres[i]);
  printf("%ld\n", sum);
}
