// steps_throws [ROUNDS]
//
// Throws through many frames, catches, throws again, and runs destructors meanwhile; and what C++'s library is made of. Meant to be stepped.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define FRAME __attribute__((noipa))

static volatile long sink;

struct Guard {
    std::string name;
    explicit Guard(int n) : name(std::to_string(n)) {}
    ~Guard() { sink = sink + static_cast<long>(name.size()); }
};

struct Base {
    virtual ~Base() = default;
    virtual long get(long x) const = 0;
};
struct Twice : Base {
    long get(long x) const override { return x * 2; }
};
struct Deep : Base {
    FRAME long get(long x) const override {
        Guard guard(static_cast<int>(x));
        if (x == 0) throw std::runtime_error("from a virtual function, with a text of some length");
        return get(x - 1) + 1;
    }
};

static FRAME int thrower(int depth) {
    Guard guard(depth);
    if (depth == 0) throw depth;
    return thrower(depth - 1) + static_cast<int>(guard.name.size());
}

static FRAME int again(int depth) {
    try {
        return thrower(depth);
    } catch (int) {
        Guard guard(depth);
        throw;
    }
}

static FRAME int not_through(int depth) noexcept {
    try {
        return again(depth);
    } catch (const std::exception &) {
        return -1;
    } catch (int number) {
        return number;
    }
}

static FRAME int all(int round) {
    int sum = not_through(round % 8);
    try {
        Deep deep;
        sum += static_cast<int>(deep.get(3 + round % 4));
    } catch (const std::exception &error) {
        sum += static_cast<int>(std::string(error.what()).size());
    }
    try {
        sum += static_cast<int>(std::string("short").at(10));
    } catch (const std::out_of_range &) {
        sum++;
    }
    return sum;
}

static FRAME void library(int round) {
    std::map<std::string, std::vector<int>> words;
    for (int i = 0; i < 40; i++) words["w" + std::to_string(i * 7 % 13 + round)].push_back(i);
    for (auto &[word, numbers] : words) {
        std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return a > b; });
        sink = sink + numbers.front() + static_cast<long>(word.size());
    }
    std::ostringstream out;
    out << round << ' ' << 1.5 * round << ' ' << "text";
    sink = sink + static_cast<long>(out.str().size());
    std::function<int(int)> recursive = [&](int n) { return n == 0 ? 0 : recursive(n - 1) + 1; };
    sink = sink + recursive(20);
    Twice twice;
    const Base &base = twice;
    sink = sink + base.get(round);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++) {
        sink = sink + all(round);
        library(round);
    }
    std::thread other([] { sink = sink + all(5); });
    other.join();
    std::printf("{\"result\": %d}\n", sink != 0);
}
