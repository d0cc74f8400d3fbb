// leaves exceptions|jumps
//
// Leaves several frames at once, again and again, while a timer interrupts it: each handler walks, and judges the frames by the functions that call each other. Prints how many
// stacks there were, how many reached main, and ends with 1 after a wrong one.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/time.h>

#include "../../../testkit/programs/leaves.h"
#include "backtrail.h"

static constexpr int MOST = 64, SAMPLES = 200;
static volatile sig_atomic_t samples, whole, wrong;

FRAME void repeat(bool jumps) {
    for (int i = 0; samples < SAMPLES; i = (i + 1) % 1000) sink = sink + (jumps ? setter(i) : catcher(i, 1));
}

static const char *const throwing[] = {"thrower", "inner", "outer", "catcher", "repeat"};
static const char *const jumping[] = {"jumper", "over", "setter", "repeat", "main"};
static const char *const *chain;

static void on_timer(int, siginfo_t *, void *context) {
    void *frames[MOST];
    int count = backtrail_backtrace_from_ucontext(context, frames, MOST);
    int last = -1, last_at = -1;
    bool is_right = true, has_main = false, raises = false;
    for (int i = 0; i < count; i++) {
        Dl_info info;
        if (!dladdr(static_cast<char *>(frames[i]) - (i > 0), &info) || !info.dli_sname) continue;
        has_main |= strcmp(info.dli_sname, "main") == 0;
        raises |= strcmp(info.dli_sname, "__cxa_throw") == 0 || strcmp(info.dli_sname, "_Unwind_RaiseException") == 0;
        for (int link = 0; link < 5; link++)
            if (strcmp(info.dli_sname, chain[link]) == 0) {
                // The first one may be any of them, but for what throws.
                is_right &= last < 0 ? !raises || link == 0 : link == last + 1 && i == last_at + 1;
                last = link;
                last_at = i;
            }
    }
    samples = samples + 1;
    whole = whole + (is_right && has_main);
    wrong = wrong + !is_right;
    if (!is_right) backtrail_backtrace_symbols_fd(frames, count, 2);
}

int main(int, char **arguments) {
    if (backtrail_init(nullptr) != 0) return 2;
    bool jumps = strcmp(arguments[1], "jumps") == 0;
    chain = jumps ? jumping : throwing;
    struct sigaction action = {};
    action.sa_sigaction = on_timer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
    itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_PROF, &often, nullptr);
    repeat(jumps);
    often = {};
    setitimer(ITIMER_PROF, &often, nullptr);
    printf("%d stacks, %d whole\n", static_cast<int>(samples), static_cast<int>(whole));
    return wrong != 0;
}
