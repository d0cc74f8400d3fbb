#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace shop {

template <typename T> struct Stack {
    std::vector<T> items;
    void push(const T &item) { items.push_back(item); }
    T total() const
    {
        T sum{};
        for (const T &item : items)
            sum += item;
        return sum;
    }
};

template <typename T> __attribute__((noinline)) T fill(Stack<T> &stack, int count)
{
    for (int i = 0; i < count; i++)
        stack.push(T(i));
    std::sort(stack.items.begin(), stack.items.end(), [](const T &a, const T &b) { return a > b; });
    return stack.total();
}

struct Base {
    virtual ~Base() {}
    virtual int price(int n) const { return n; }
};

struct Sale : Base {
    int price(int n) const override
    {
        if (n < 0)
            throw std::string("negative");
        return n / 2;
    }
};

} // namespace shop

int main(int argc, char **argv)
{
    shop::Stack<int> ints;
    shop::Stack<double> doubles;
    std::map<std::string, int> counts;
    for (int i = 0; i < argc + 10; i++)
        counts[std::to_string(i % 3)]++;
    shop::Sale sale;
    const shop::Base &base = sale;
    try {
        std::printf("%d %f %d %zu\n", shop::fill(ints, argc * 100), shop::fill(doubles, argc * 50), base.price(argc),
                    counts.size());
    } catch (const std::string &what) {
        std::puts(what.c_str());
    }
    return 0;
}
