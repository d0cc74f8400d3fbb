// Prints its stack, from inside a sort and a lambda, with Boost.Stacktrace.
#include <boost/stacktrace.hpp>
#include <iostream>
#include "sorter.h"

__attribute__((noinline)) bool compare(int one, int other) {
  static int calls = 0;
  if (++calls == 3) std::cout << boost::stacktrace::stacktrace() << std::endl;
  return one < other;
}

int main(int argc, char **) {
  std::vector<int> numbers = {argc, 5, 3, 9, 1, 7};
  Sorter sorter;
  sorter.sort(numbers);
  return numbers[0] > 5;
}
