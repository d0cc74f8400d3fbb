// Something for a C++ compiler to do: the standard library's templates.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Fib { static constexpr unsigned long value = Fib<N - 1>::value + Fib<N - 2>::value; };
template <> struct Fib<0> { static constexpr unsigned long value = 0; };
template <> struct Fib<1> { static constexpr unsigned long value = 1; };
using Value = std::variant<int, double, std::string, std::vector<int>>;
int main(int argc, char **argv) {
  std::map<std::string, std::unordered_map<int, std::vector<std::shared_ptr<Value>>>> all;
  for (int i = 0; i < 100; i++)
    all[std::to_string(i)][i % 7].push_back(std::make_shared<Value>(i % 2 ? Value(i) : Value(std::to_string(i))));
  std::regex word("(\\w+) (\\w+)");
  std::ostringstream out;
  for (auto &each : all)
    for (auto &[number, list] : each.second)
      std::for_each(list.begin(), list.end(), [&](auto &one) { std::visit([&](auto &v) { out << sizeof v << each.first; }, *one); });
  std::function<int(int)> f = [&](int n) { return n < 2 ? n : f(n - 1) + f(n - 2); };
  std::cout << Fib<200>::value << std::regex_replace(out.str(), word, "$2 $1") << f(10) << argc << argv[0];
}
