// Threads that live a millisecond each, eight at a time, for the given number of seconds.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
__attribute__((noinline)) static double inner(double end) {
  double sum = 0;
  while (now() < end) sum += sum * 0.5 + 1;
  return sum;
}
static void *run(void *argument) {
  volatile double sum = inner(now() + 1e-3);
  (void)sum;
  return argument;
}
int main(int argc, char **argv) {
  double end = now() + (argc > 1 ? atoi(argv[1]) : 5);
  long count = 0;
  while (now() < end) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) count += pthread_create(&threads[i], NULL, run, NULL) == 0;
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  }
  printf("%ld\n", count);
}
