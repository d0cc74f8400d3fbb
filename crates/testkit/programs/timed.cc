// timed_cpp: 10 calls of `passes`, of which an exception leaves 5. Prints how many it caught.
#include <cstdio>
#include <stdexcept>

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE int throws(int number) {
    if (number % 2)
        throw std::runtime_error("odd");
    return number + 1;
}

NOINLINE int passes(int number) { return throws(number) * 3; }

int main() {
    int caught = 0;
    volatile int sum = 0;
    for (int i = 0; i < 10; i++)
        try {
            sum = sum + passes(i);
        } catch (const std::exception &) {
            caught++;
        }
    std::printf("%d\n", caught);
}
