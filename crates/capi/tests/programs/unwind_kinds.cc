// unwind_kinds HOW: an exception of one kind, with walks by libgcc's interface wherever code of the
// program runs meanwhile: in destructors, stop functions and terminate handlers. What it prints, and
// how it ends, must be the same with and without the library preloaded.
#include <coroutine>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <pthread.h>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define FRAME __attribute__((noinline))

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *argument) {
    if (_Unwind_GetIP(context)) ++*static_cast<int *>(argument);
    return _URC_NO_REASON;
}

static FRAME int frames() {
    int found = 0;
    _Unwind_Backtrace(count, &found);
    return found;
}

// How deep an overflowing stack is depends on the environment's size.
static void say(const char *what) {
    int found = frames();
    std::printf("%s, %d frames\n", what, found < 1000 ? found : 1000);
    std::fflush(stdout);
}

struct Cleanup {
    const char *name;
    ~Cleanup() { say(name); }
};

static FRAME int deep(int depth, void (*act)()) {
    Cleanup cleanup{"cleanup"};
    if (depth == 0) {
        act();
        return 0;
    }
    return deep(depth - 1, act) + 1;
}

static FRAME void throws() { throw std::runtime_error("thrown"); }

// Catches whatever comes, and says what it was.
template <typename Act> static FRAME void caught(Act act) {
    try {
        act();
        say("returned");
    } catch (const std::exception &error) {
        say(error.what());
    } catch (int) {
        say("an int");
    } catch (...) {
        say("something else");
    }
}

struct Part {
    int index;
    explicit Part(int index) : index(index) {
        if (index == 3) throws();
    }
    ~Part() { say("part"); }
};

struct Whole {
    Part first{1}, second{2}, third{3};
    Whole() try { say("whole"); } catch (const std::runtime_error &) { throw std::logic_error("from a constructor"); }
};

static void constructors() {
    caught([] { Whole whole; });
    caught([] { delete[] new Part[4]{Part(0), Part(1), Part(2), Part(3)}; });
}

static void nested() {
    caught([] {
        try {
            deep(3, throws);
        } catch (...) {
            try {
                deep(2, [] { throw 5; });
            } catch (int) {
                say("inner");
            }
            std::throw_with_nested(std::logic_error("outer"));
        }
    });
}

static void threads() {
    std::exception_ptr kept;
    std::thread([&] {
        try {
            deep(3, throws);
        } catch (...) {
            kept = std::current_exception();
        }
    }).join();
    for (int again = 0; again < 3; again++) caught([&] { std::rethrow_exception(kept); });
    caught([] { std::async(std::launch::async, [] { deep(2, throws); }).get(); });
}

static void foreign() {
    static struct _Unwind_Exception exception;
    std::memcpy(&exception.exception_class, "TESTTEST", 8);
    exception.exception_cleanup = [](_Unwind_Reason_Code, struct _Unwind_Exception *) { say("deleted"); };
    for (int again = 0; again < 2; again++)
        caught([] { deep(3, [] { _Unwind_RaiseException(&exception); }); });
    caught([] {
        try {
            deep(3, [] { _Unwind_RaiseException(&exception); });
        } catch (...) {
            say("rethrown");
            throw;
        }
    });
}

static void *exits(void *) {
    try {
        deep(4, [] { pthread_exit(nullptr); });
    } catch (...) {
        say("forced");
        throw;
    }
    return nullptr;
}

static void *waits(void *) {
    pthread_cleanup_push([](void *) { say("popped"); }, nullptr);
    deep(4, [] {
        for (;;) pause();
    });
    pthread_cleanup_pop(0);
    return nullptr;
}

// As a handler of a signal that comes at any instruction.
static void *spins(void *) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
    deep(4, [] {
        for (volatile int end = 0; !end;) {
        }
    });
    return nullptr;
}

static void forced() {
    for (auto *enter : {exits, waits, spins}) {
        pthread_t thread;
        pthread_create(&thread, nullptr, enter, nullptr);
        if (enter != exits) {
            usleep(50000);
            pthread_cancel(thread);
        }
        pthread_join(thread, nullptr);
        say("joined");
    }
}

static volatile int zero;

static void on_signal(int) {
    Cleanup cleanup{"handler"};
    throws();
}

static FRAME int overflow(int depth) {
    volatile char bytes[4096];
    bytes[depth % 4096] = 1;
    return overflow(depth + 1) + bytes[depth % 4096];
}

static void signals() {
    static char bytes[256 << 10];
    stack_t stack = {};
    stack.ss_sp = bytes;
    stack.ss_size = sizeof bytes;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_NODEFER | SA_ONSTACK;
    sigaction(SIGFPE, &action, nullptr);
    sigaction(SIGUSR1, &action, nullptr);
    sigaction(SIGSEGV, &action, nullptr);
    for (int again = 0; again < 2; again++) {
        caught([] { deep(2, [] { zero = 1 / zero; }); });
        caught([] { deep(2, [] { raise(SIGUSR1); }); });
        caught([] {
            try {
                overflow(0);
            } catch (...) {
                std::printf("overflow\n");
                throw 1;
            }
        });
    }
}

struct Task {
    struct promise_type {
        std::exception_ptr thrown;
        Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void unhandled_exception() { thrown = std::current_exception(); }
        void return_void() {}
    };
    std::coroutine_handle<promise_type> handle;
};

static Task steps() {
    Cleanup cleanup{"coroutine"};
    co_await std::suspend_always{};
    deep(2, throws);
}

static ucontext_t outside, inside;

static void on_own_stack() {
    caught([] { deep(3, throws); });
    swapcontext(&inside, &outside);
    caught([] { deep(3, [] { swapcontext(&inside, &outside), throws(); }); });
}

static void coroutines() {
    Task task = steps();
    while (!task.handle.done()) task.handle.resume();
    caught([&] { std::rethrow_exception(task.handle.promise().thrown); });
    task.handle.destroy();
    size_t size = 256 << 10;
    getcontext(&inside);
    inside.uc_stack.ss_sp = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inside.uc_stack.ss_size = size;
    inside.uc_link = &outside;
    makecontext(&inside, on_own_stack, 0);
    for (int again = 0; again < 3; again++) {
        caught([] { throws(); });
        swapcontext(&outside, &inside);
    }
}

static void never_throws() noexcept { deep(2, throws); }

struct Worse {
    ~Worse() noexcept(false) { throw 1; }
};

static void ends(const char *how) {
    std::set_terminate([] {
        say("terminate");
        _exit(7);
    });
    if (!std::strcmp(how, "noexcept")) never_throws();
    if (!std::strcmp(how, "uncaught")) deep(2, throws);
    if (!std::strcmp(how, "thread")) std::thread([] { deep(2, throws); }).join();
    if (!std::strcmp(how, "rethrow")) deep(2, [] { throw; });
    if (!std::strcmp(how, "twice")) {
        try {
            Worse worse;
            throws();
        } catch (...) {
        }
    }
}

int main(int, char **argv) {
    struct {
        const char *name;
        void (*act)();
    } kinds[] = {
        {"constructors", constructors}, {"nested", nested},   {"threads", threads},       {"foreign", foreign},
        {"forced", forced},             {"signals", signals}, {"coroutines", coroutines},
    };
    for (auto &kind : kinds)
        if (!std::strcmp(argv[1], kind.name)) return kind.act(), 0;
    ends(argv[1]);
    return 3;
}
