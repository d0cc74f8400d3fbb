/* A program for the examples in the help: `server [MILLISECONDS]` handles requests for that long,
   or, at a few a second, until it is killed. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct request {
    const char *path;
    unsigned size;
};

__attribute__((noinline)) unsigned parse(const struct request *request)
{
    unsigned hash = request->size;
    for (const char *at = request->path; *at; at++)
        hash = hash * 31 + (unsigned char)*at;
    return hash;
}

__attribute__((noinline)) unsigned handle(unsigned count)
{
    struct request request = {"/index.html", count};
    unsigned sum = 0;
    for (unsigned i = 0; i < 20000; i++)
        sum += parse(&request);
    return sum;
}

int main(int argc, char **argv)
{
    long left = argc > 1 ? atol(argv[1]) : 3600000;
    unsigned sum = 0;
    const struct timespec pause = {0, argc > 1 ? 500000 : 20000000};
    while (clock() / (CLOCKS_PER_SEC / 1000) < left) {
        sum += handle(sum);
        nanosleep(&pause, NULL);
    }
    printf("%u\n", sum);
    return 0;
}
