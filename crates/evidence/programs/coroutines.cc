// C++20 coroutines that await each other, for the given number of seconds.
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>
struct Task {
  struct promise_type {
    long value = 0;
    std::coroutine_handle<> waiting;
    Task get_return_object() { return Task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> done) noexcept {
        return done.promise().waiting ? done.promise().waiting : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_value(long v) { value = v; }
    void unhandled_exception() { std::abort(); }
  };
  std::coroutine_handle<promise_type> handle;
  explicit Task(std::coroutine_handle<promise_type> h) : handle(h) {}
  Task(Task &&other) : handle(std::exchange(other.handle, nullptr)) {}
  ~Task() { if (handle) handle.destroy(); }
  bool await_ready() { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiting) {
    handle.promise().waiting = waiting;
    return handle;
  }
  long await_resume() { return handle.promise().value; }
};
__attribute__((noinline)) static long plain(int n) { return n < 2 ? n : plain(n - 1) + plain(n - 2); }
static Task fib(int n) {
  if (n < 2) co_return plain(10) + n;
  co_return co_await fib(n - 1) + co_await fib(n - 2);
}
int main(int argc, char **argv) {
  time_t end = time(nullptr) + (argc > 1 ? atoi(argv[1]) : 5);
  long sum = 0;
  while (time(nullptr) < end) {
    Task task = fib(15);
    task.handle.resume();
    sum += task.handle.promise().value;
  }
  printf("%ld\n", sum);
}
