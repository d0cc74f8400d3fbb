// Exceptions of all kinds: through frames of signals and of callbacks, out of walks, in threads that
// are cancelled, and out of libraries that are closed afterwards. Prints what it has seen, which must
// be the same with and without the library preloaded.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <unwind.h>

#define FRAME __attribute__((noinline))

static int cleanups;
struct Cleanup {
    ~Cleanup() { cleanups++; }
};

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *argument) {
    int before = 0;
    if (_Unwind_GetIPInfo(context, &before)) ++*static_cast<int *>(argument);
    return _URC_NO_REASON;
}

static FRAME int frames() {
    int found = 0;
    _Unwind_Backtrace(count, &found);
    return found;
}

static FRAME int deep(int depth) {
    Cleanup cleanup;
    if (depth == 0) throw std::runtime_error("deep " + std::to_string(frames()));
    return deep(depth - 1) + 1;
}

static _Unwind_Reason_Code throws(struct _Unwind_Context *, void *argument) {
    Cleanup cleanup;
    if (++*static_cast<int *>(argument) == 3) throw 7;
    return _URC_NO_REASON;
}

static FRAME int out_of_walk() {
    Cleanup cleanup;
    int count = 0;
    _Unwind_Backtrace(throws, &count);
    return count;
}

static jmp_buf place;
static _Unwind_Reason_Code jumps(struct _Unwind_Context *, void *) { longjmp(place, 1); }

static _Unwind_Reason_Code nested(struct _Unwind_Context *, void *argument) {
    *static_cast<int *>(argument) += frames();
    return _URC_NO_REASON;
}

static void on_fault(int number) {
    Cleanup cleanup;
    throw std::runtime_error(std::string("signal ") + std::to_string(number) + " " + std::to_string(frames()));
}

static volatile int *nowhere;
static FRAME void fault() {
    Cleanup cleanup;
    *nowhere = 1;
}

static void *cancelled(void *) {
    Cleanup cleanup;
    try {
        for (;;) pause();
    } catch (...) {
        std::printf("cancelled with %d frames\n", frames() > 3);
        throw;
    }
    return nullptr;
}

static void *exits(void *) {
    Cleanup cleanup;
    int found = 0;
    // Thread exit out of a callback.
    _Unwind_Backtrace([](struct _Unwind_Context *, void *) -> _Unwind_Reason_Code { pthread_exit(nullptr); }, &found);
    return nullptr;
}

static int compare(const void *a, const void *b) {
    if (*static_cast<const int *>(a) == 3) throw std::string("from qsort");
    return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

template <typename Act> static void caught(const char *what, Act act) {
    int before = cleanups;
    try {
        act();
        std::printf("%s: returned", what);
    } catch (const std::exception &error) {
        std::printf("%s: %s", what, error.what());
    } catch (const std::string &error) {
        std::printf("%s: %s", what, error.c_str());
    } catch (int number) {
        std::printf("%s: %d", what, number);
    }
    std::printf(", %d cleanups, then %d frames\n", cleanups - before, frames());
}

int main(int argc, char **argv) {
    for (int round = 0; round < 2; round++) {
        caught("deep", [] { deep(50); });
        caught("out of a walk", [] { out_of_walk(); });
        caught("rethrown", [] {
            try {
                deep(3);
            } catch (...) {
                Cleanup cleanup;
                throw;
            }
        });
        caught("nested", [] {
            int total = 0;
            _Unwind_Backtrace(nested, &total);
            throw total > 0 ? 1 : 0;
        });
        caught("longjmp", [] {
            if (setjmp(place) == 0) _Unwind_Backtrace(jumps, nullptr);
        });
        caught("qsort", [] {
            int numbers[] = {4, 3, 2, 1};
            qsort(numbers, 4, sizeof *numbers, compare);
        });
        struct sigaction action = {};
        action.sa_handler = on_fault;
        action.sa_flags = SA_NODEFER;
        sigaction(SIGSEGV, &action, nullptr);
        caught("fault", fault);
        pthread_t thread;
        pthread_create(&thread, nullptr, cancelled, nullptr);
        pthread_cancel(thread);
        pthread_join(thread, nullptr);
        pthread_create(&thread, nullptr, exits, nullptr);
        pthread_join(thread, nullptr);
        std::printf("%d cleanups\n", cleanups);
        for (int again = 0; argc > 1 && again < 3; again++) {
            caught("library", [&] {
                void *library = dlopen(argv[1], RTLD_NOW);
                void *symbol = library ? dlsym(library, "throws_here") : nullptr;
                if (!symbol) std::exit(3);
                void (*enter)(int (*)());
                std::memcpy(&enter, &symbol, sizeof enter);
                struct Close {
                    void *library;
                    ~Close() { dlclose(library); }
                } close{library};
                enter(frames);
            });
        }
        // An exception that is caught by nobody further inside.
        std::exception_ptr kept;
        try {
            deep(5);
        } catch (...) {
            kept = std::current_exception();
        }
        caught("later", [&] { std::rethrow_exception(kept); });
    }
}
