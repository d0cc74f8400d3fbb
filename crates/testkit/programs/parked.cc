// Threads that wait in frames that save registers in every way.
//
//     parked_cpp
//
// Each thread has come through a function with many live values, a stack that was realigned (its own CFA is in a saved register), a block of
// a size that is known at run time only, a virtual call, a closure, and a catch block, and waits for a condition. Writes
// "ready" when all wait.
#include "common.h"
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

static std::mutex lock;
static std::condition_variable never, counted;
static int waiting;
static volatile long zero;

struct Way {
    virtual ~Way() {}
    virtual long go(long a) = 0;
};

FRAME long wait_here(long a) {
    std::unique_lock<std::mutex> held(lock);
    waiting++;
    counted.notify_all();
    while (!zero) never.wait(held);
    return a + zero;
}

FRAME long many_values(long a, long b, long c, long d, long e, long f) {
    long g = a * b, h = c * d, i = e * f, j = a ^ f;
    long got = wait_here(a + b);
    return got + g * 3 + h * 5 + i * 7 + j * 11 + a + b + c + d + e + f;
}

FRAME long realigned(long a) {
    alignas(64) volatile char block[256];
    for (int i = 0; i < 256; i++) block[i] = (char)(a + i);
    long got = many_values(a, a + 1, a + 2, a + 3, a + 4, a + 5);
    return got + block[a & 255];
}

FRAME long by_size(long a) {
    volatile char *block = (volatile char *)__builtin_alloca(a * 16 + 32);
    block[0] = 1;
    alignas(32) volatile char more[64];
    more[0] = 2;
    return realigned(a) + block[0] + more[0];
}

struct Virtual : Way {
    long base;
    explicit Virtual(long base) : base(base) {}
    FRAME long go(long a) override { return by_size(a + base) * base; }
};

FRAME long in_catch(Way &way, long a) {
    try {
        if (!zero) throw std::runtime_error("a");
        return 0;
    } catch (const std::exception &error) {
        return way.go(a) + error.what()[0];
    }
}

FRAME long by_closure(const std::function<long(long)> &call, long a) { return call(a) + a; }

static void begin(long number) {
    Virtual way(number * 3);
    std::function<long(long)> call = [&way, number](long a) { return in_catch(way, a + number) + number; };
    by_closure(call, number + 40);
}

int main() {
    std::vector<std::thread> threads;
    for (long i = 1; i <= 4; i++) threads.emplace_back(begin, i);
    {
        std::unique_lock<std::mutex> held(lock);
        counted.wait(held, [] { return waiting == 4; });
    }
    struct timespec moment = {0, 50000000};
    nanosleep(&moment, nullptr);
    printf("ready\n");
    fflush(stdout);
    for (std::thread &thread : threads) thread.join();
}
