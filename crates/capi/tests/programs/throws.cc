// Backtraces while exceptions are on their way: in constructors, destructors that run while the stack is unwound, handlers, and callbacks of the
// library's algorithms.
#include "compare.h"
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct Guard {
    std::string name;
    explicit Guard(const char *given) : name(given) { same("constructor"); }
    ~Guard() { same("destructor"); }
};

static FRAME int thrower(int depth) {
    Guard guard("thrower");
    if (depth == 0) throw std::runtime_error("thrown");
    return thrower(depth - 1) + static_cast<int>(guard.name.size());
}

static FRAME int catcher(int depth) {
    try {
        return thrower(depth);
    } catch (const std::exception &error) {
        same("catch");
        return static_cast<int>(std::string(error.what()).size());
    }
}

int main() {
    if (backtrail_init(nullptr) != 0) return 2;
    int sum = 0;
    for (int depth = 0; depth < 40; depth++) sum += catcher(depth);
    std::vector<int> numbers{5, 3, 8, 1, 9, 2, 7};
    std::sort(numbers.begin(), numbers.end(), [](int a, int b) { same("sort"); return a < b; });
    std::function<int(int)> recursive = [&](int n) { return n == 0 ? same("function") : recursive(n - 1) + 1; };
    sum += recursive(60);
    std::printf("%d stacks, %d deep\n", compared, deepest);
    return sum == 0;
}
