// A file that a compiler is busy with for a second.
#include <functional>
#include <iostream>
#include <map>
#include <string>

template <int N> struct table {
    std::map<std::string, std::function<int(int)>> entries;
    int find(const std::string &name) { return entries.at(name)(N) + table<N - 1>().find(name); }
};

template <> struct table<0> {
    int find(const std::string &name) { return static_cast<int>(name.size()); }
};

int main(int argc, char **argv)
{
    std::cout << table<12>().find(argv[argc - 1]) << "\n";
}
