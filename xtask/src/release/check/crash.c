/* Installs crash reports, and crashes. */
#include <backtrail.h>

__attribute__((noinline)) static int read_from(volatile int *place)
{
    return *place + 1;
}

int main(void)
{
    struct backtrail_crash_options options = {.size = sizeof options};
    if (backtrail_crash_install(&options) != 0)
        return 1;
    return read_from((int *)16);
}
