// Calls into the other file, both ways through templates, inline functions, virtual ones and exceptions.
#include "shared.hpp"
#include <cstdio>

int main(int argc, char **)
{
    std::vector<int> few(4, argc);
    printf("%s %d %s\n", label(1).c_str(), sum(few), label(2).c_str());
    printf("%g\n", make(3)->area());
    for (int depth = 0; depth < 3; depth++) {
        try {
            printf("%d\n", risky(depth));
        } catch (const std::exception &error) {
            printf("caught %s\n", error.what());
        }
    }
    return 0;
}
