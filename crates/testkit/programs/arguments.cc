// Functions with arguments as C++ has them. Each writes a line for each argument that it was called with, "function name=value"; the innermost
// says "ready" and waits.
#include <cstdio>
#include <string>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
volatile long sink;

namespace shop {

enum class Colour { red, green = 5 };

// What has a destructor is passed by the address of a copy.
struct Owner {
    std::string name;
    long count;
    ~Owner() { sink = count; }
    NOINLINE long stop(int depth, const char *why, Colour colour) const;
};

NOINLINE long Owner::stop(int depth, const char *why, Colour colour) const
{
    printf("shop::Owner::stop(int, char const*, shop::Colour) const this=%p\n", (const void *)this);
    printf("shop::Owner::stop(int, char const*, shop::Colour) const depth=%d\n", depth);
    printf("shop::Owner::stop(int, char const*, shop::Colour) const why=%p \"%s\"\n", (const void *)why, why);
    printf("shop::Owner::stop(int, char const*, shop::Colour) const colour=green\nready\n");
    fflush(stdout);
    for (;;)
        pause();
    return count + depth + (long)colour;
}

NOINLINE long pass(long big, bool yes, double ratio, Owner &owner, unsigned char small)
{
    printf("shop::pass(long, bool, double, shop::Owner&, unsigned char) big=%ld\n", big);
    printf("shop::pass(long, bool, double, shop::Owner&, unsigned char) yes=true\n");
    printf("shop::pass(long, bool, double, shop::Owner&, unsigned char) owner=%p\n", (void *)&owner);
    printf("shop::pass(long, bool, double, shop::Owner&, unsigned char) small=%d '%c'\n", small, small);
    long result = owner.stop((int)big + yes, "because", Colour::green);
    sink = result + small;
    return result + big + owner.count + (long)ratio;
}

struct Point {
    int x, y;
};

struct Place : Point {
    static int count;
    const char *name;
    double far[2];
};

int Place::count = 3;

// By value: in registers, and in memory.
NOINLINE long placed(Point point, Place place, Owner &owner, long behind)
{
    printf("shop::placed(shop::Point, shop::Place, shop::Owner&, long) point={x = %d, y = %d}\n", point.x, point.y);
    printf("shop::placed(shop::Point, shop::Place, shop::Owner&, long) place={Point = {x = %d, y = %d}, name = %p \"%s\", far = {%g, %g}}\n", place.x,
           place.y, (const void *)place.name, place.name, place.far[0], place.far[1]);
    printf("shop::placed(shop::Point, shop::Place, shop::Owner&, long) behind=%ld\n", behind);
    long result = pass(behind, true, 2.5, owner, 'q');
    sink = point.x + place.y;
    return result + point.y + behind + (long)place.far[1] + place.name[0];
}

// What is behind an argument that is passed by a copy's address.
NOINLINE long by_value(Owner owner, long behind, long *where)
{
    printf("shop::by_value(shop::Owner, long, long*) behind=%ld\n", behind);
    printf("shop::by_value(shop::Owner, long, long*) where=%p\n", (void *)where);
    long result = placed({4, 5}, {{6, 7}, "there", {0.5, -2}}, owner, behind + 1);
    *where = result;
    return result + behind;
}

} // namespace shop

int main(int argc, char **)
{
    long where = 0;
    return shop::by_value(shop::Owner{"a name that is not short at all", 9}, argc + 40, &where) + where > 0;
}
