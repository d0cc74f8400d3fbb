// Fibres of boost.context and boost.coroutine2 that take turns, for the given number of seconds.
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>
namespace ctx = boost::context;
static volatile long sum;
__attribute__((noinline)) static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((noinline)) static ctx::fiber body(ctx::fiber &&caller, int number) {
  for (;;) {
    sum += fib(15 + number % 4);
    caller = std::move(caller).resume();
  }
}
int main(int argc, char **argv) {
  time_t end = time(nullptr) + (argc > 1 ? atoi(argv[1]) : 5);
  std::vector<ctx::fiber> fibres;
  for (int i = 0; i < 8; i++)
    fibres.emplace_back([i](ctx::fiber &&caller) { return body(std::move(caller), i); });
  while (time(nullptr) < end)
    for (auto &fibre : fibres) fibre = std::move(fibre).resume();
  printf("%ld\n", sum);
  std::quick_exit(0);
}
