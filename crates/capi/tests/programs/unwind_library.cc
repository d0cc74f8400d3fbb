// A library that throws what its caller catches.
#include <stdexcept>
#include <string>

struct Cleanup {
    ~Cleanup() {}
};

extern "C" __attribute__((noinline)) void throws_here(int (*frames)()) {
    Cleanup cleanup;
    int found = frames();
    throw std::runtime_error("library " + std::to_string(found));
}
