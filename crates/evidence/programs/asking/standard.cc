// Prints its stack, from inside a sort and a lambda, with std::stacktrace.
#include <cstdio>
#include <stacktrace>
#include "sorter.h"

__attribute__((noinline)) bool compare(int one, int other) {
  static int calls = 0;
  if (++calls == 3)
    for (const std::stacktrace_entry &entry : std::stacktrace::current())
      printf("%s %s:%u\n", entry.description().c_str(), entry.source_file().c_str(), entry.source_line());
  return one < other;
}

int main(int argc, char **) {
  std::vector<int> numbers = {argc, 5, 3, 9, 1, 7};
  Sorter sorter;
  sorter.sort(numbers);
  return numbers[0] > 5;
}
