// Spends its time in a few leaves, deep in recursion, virtual calls and a sort: a profile by timer
// has these stacks, and beginnings of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static volatile unsigned long sink;

__attribute__((noinline)) void spin(unsigned long steps) {
  for (unsigned long step = 0; step < steps; step++) sink = sink + step;
}

__attribute__((noinline)) int recursive(int depth, unsigned long steps) {
  int below = 0;
  if (depth) below = recursive(depth - 1, steps);
  else spin(steps);
  // Neither a loop nor a tail call.
  asm volatile("" : "+r"(below));
  return below + 1;
}

struct Work {
  virtual ~Work() = default;
  __attribute__((noinline)) virtual int run(unsigned long steps) {
    spin(steps);
    return 1;
  }
};

// Saves every register and has a frame of a size that is known only at run time.
__attribute__((noinline)) int with_arrays(int size, Work &work, unsigned long steps) {
  volatile char bytes[size];
  bytes[size - 1] = 1;
  return work.run(steps) + bytes[size - 1];
}

__attribute__((noinline)) bool compare(int one, int other, unsigned long steps) {
  spin(steps);
  return one < other;
}

__attribute__((noinline)) int compared(const void *one, const void *other) {
  return compare(*(const int *)one, *(const int *)other, 300000000) ? -1 : 1;
}

int main(int argc, char **argv) {
  unsigned long steps = argc > 1 ? strtoul(argv[1], nullptr, 0) : 1500000000;
  Work work;
  int sum = recursive(12, steps);
  sum += with_arrays(argc * 100, work, steps);
  int numbers[] = {5, argc, 3, 9, 1, 7, 2, 8};
  qsort(numbers, 8, sizeof *numbers, compared);
  printf("%d\n", sum + numbers[0]);
}
