// What both files of the C++ program have copies of: the linker keeps one of each.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

template <class T> __attribute__((noinline)) T sum(const std::vector<T> &values)
{
    T all{};
    for (const T &value : values)
        all += value;
    if (values.size() > 5)
        throw std::length_error("too many");
    return all;
}

struct Shape {
    virtual ~Shape() {}
    virtual double area() const { return 0; }
};

struct Square : Shape {
    double side;
    explicit Square(double side) : side(side) {}
    double area() const override { return side * side; }
};

inline __attribute__((noinline)) std::string label(int number)
{
    static int count;
    return "#" + std::to_string(number) + "." + std::to_string(count++);
}

std::unique_ptr<Shape> make(int side);
int risky(int depth);
