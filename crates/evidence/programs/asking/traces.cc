// Prints its stack with cpptrace, from a sort and a lambda, and the addresses that cpptrace finds
// in a signal handler.
#include <csignal>
#include <cstdio>
#include <cpptrace/cpptrace.hpp>
#include "sorter.h"

static cpptrace::frame_ptr addresses[100];
static size_t count;

static void handler(int) { count = cpptrace::safe_generate_raw_trace(addresses, 100); }

static void print(const cpptrace::stacktrace &trace) {
  for (const cpptrace::stacktrace_frame &frame : trace)
    printf("%s:%u %s\n", frame.symbol.c_str(), frame.line.value_or(0), frame.is_inline ? "inline" : "");
}

__attribute__((noinline)) bool compare(int one, int other) {
  static int calls = 0;
  if (++calls == 3) {
    print(cpptrace::generate_trace());
    raise(SIGUSR1);
  }
  return one < other;
}

int main(int argc, char **) {
  signal(SIGUSR1, handler);
  std::vector<int> numbers = {argc, 5, 3, 9, 1, 7};
  Sorter sorter;
  sorter.sort(numbers);
  puts("handler");
  print(cpptrace::raw_trace{{addresses, addresses + count}}.resolve());
  return numbers[0] > 5;
}
