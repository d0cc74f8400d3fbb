#include "shared.hpp"

std::unique_ptr<Shape> make(int side)
{
    return std::make_unique<Square>(side);
}

struct Guard {
    std::string name;
    ~Guard() { name.clear(); }
};

int risky(int depth)
{
    Guard guard{label(depth)};
    if (depth == 2)
        throw std::runtime_error(guard.name);
    return sum(std::vector<int>(4 + 2 * depth, depth)) + (int)sum(std::vector<double>(2, 1.5));
}

// Nobody calls it: linkers that collect garbage drop it, and its rows.
__attribute__((noinline)) int nobody(int depth)
{
    return risky(depth) + sum(std::vector<long>(3, depth));
}
