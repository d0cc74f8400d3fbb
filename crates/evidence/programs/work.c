// Recursion, sorting, formatting, memory and system calls of the C library, for the given number of seconds.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define HIDDEN __attribute__((noinline))
HIDDEN static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
HIDDEN static size_t words(int n) {
  char **all = malloc(n * sizeof *all);
  for (int i = 0; i < n; i++) {
    all[i] = malloc(32);
    snprintf(all[i], 32, "word%d %.3f", i * 7919 % n, sqrt(i));
  }
  qsort(all, n, sizeof *all, compare);
  size_t sum = 0;
  for (int i = 0; i < n; i++) {
    sum += strlen(all[i]) + strtol(all[i] + 4, NULL, 10);
    free(all[i]);
  }
  free(all);
  return sum;
}
HIDDEN static double numbers(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += sin(i) * exp(-i * 1e-3) + pow(i, 0.3);
  return sum;
}
HIDDEN static int system_calls(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) sum += access("/", R_OK) + (int)getppid();
  return sum;
}
int main(int argc, char **argv) {
  time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
  double sum = 0;
  static char a[1 << 20], b[1 << 20];
  while (time(NULL) < end) {
    sum += fib(22) + words(2000) + numbers(20000) + system_calls(300);
    memcpy(a, b, sizeof a);
    memset(b, (int)sum, sizeof b);
    sum += memcmp(a, b, sizeof a) + (memchr(a, 300, sizeof a) != NULL);
  }
  printf("%f\n", sum);
}
