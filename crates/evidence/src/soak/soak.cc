// soak SAMPLES RATE SECONDS PLUGIN
//
// Threads that allocate, throw, sort, print, load and unload a library, fork, and make more threads, while a timer of each interrupts it RATE times a second, and those with
// an alternate stack a twentieth as often. The
// handler takes both kinds of backtraces and compares them with what is known of the stack:
//
//   * it ends with the frames that every thread of its kind ends with;
//   * it has as many frames of functions in the section `marked` as the thread has counted, or one more, where the count is behind;
//   * what the context gives is what lies behind the handler.
//
// A stack that ends before is reported by the address at which it does; whoever runs this program holds those against the tables. Two kinds are
// counted apart: in a library that was loaded and whose table was not made yet, and while libgcc overwrites the return address and the registers that its own
// frame has saved with those of the handler that it is about to resume in. Exits with 1 at the first stack that is wrong. Prints lines
// "short KIND PATH OFFSET COUNT", and one that begins with "samples".
#include <backtrail.h>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" void guard_enter(void);
extern "C" void guard_leave(void);
extern "C" char __start_marked[], __stop_marked[];

#define MARKED __attribute__((noipa, section("marked")))

static constexpr int MOST = 256;
static constexpr int PLACES = 4096;

struct Place {
    std::atomic<uintptr_t> address;
    std::atomic<long> count;
};
/* What a thread of one kind ends with, seen once at its start by glibc's unwinder. */
struct Base {
    void *frames[8];
    int count;
};

static std::atomic<long> samples, complete, ended_early, unmade, installing, through_plugin, thread_count, children, loads, throws_;
static std::atomic<bool> stopping;
static Place places[PLACES];
static long wanted, rate;
static const char *plugin_path;

/* Where the library lies while it is loaded, and whether its table is made; all of it is the same thread's. */
static std::atomic<uintptr_t> plugin;
static std::atomic<bool> plugin_made;
static constexpr uintptr_t PLUGIN_SIZE = 0x5000;
/* Where it has been, for what was seen there while nobody could say so. */
static std::atomic<uintptr_t> plugin_places[256];
/* Functions of libgcc that resume in handlers. */
struct Range {
    uintptr_t start, end;
};
static Range resuming[4];

static __thread volatile int level __attribute__((tls_model("initial-exec")));
static __thread Base base __attribute__((tls_model("initial-exec")));
static __thread volatile int armed __attribute__((tls_model("initial-exec")));
/* In dlopen, which runs the library's constructors before anybody knows where it lies. */
static __thread volatile int opening __attribute__((tls_model("initial-exec")));
/* Code that was mapped at the start. */
static Range first[256];
static int first_count;

static void say(const char *text) {
    if (write(2, text, strlen(text)) < 0) _exit(3);
}

[[noreturn]] static void wrong(const char *what, void **frames, int count, void **others, int other_count) {
    char line[100];
    snprintf(line, sizeof line, "%s: level %d, pid %d\n", what, level, (int)getpid());
    say(line);
    backtrail_backtrace_symbols_fd(frames, count, 2);
    say("and\n");
    backtrail_backtrace_symbols_fd(others, other_count, 2);
    _exit(1);
}

static bool is_in_plugin(void *frame, bool is_call) {
    uintptr_t at = (uintptr_t)frame - is_call, start = plugin;
    return start && at >= start && at < start + PLUGIN_SIZE;
}

static int note_code(struct dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
        if (first_count == sizeof first / sizeof *first) return 1;
        uintptr_t start = info->dlpi_addr + part.p_vaddr;
        first[first_count++] = {start, start + part.p_memsz};
    }
    return 0;
}

static bool was_there_first(void *frame, bool is_call) {
    for (int i = 0; i < first_count; i++)
        if ((uintptr_t)frame - is_call - first[i].start < first[i].end - first[i].start) return true;
    return false;
}

static bool resumes(void **frames, int count) {
    for (int i = 0; i < count; i++)
        for (const Range &range : resuming)
            if ((uintptr_t)frames[i] - (i > 0) - range.start < range.end - range.start) return true;
    return false;
}

static bool ends_within_base(void **frames, int count) {
    for (int shared = 1; shared < base.count && shared <= count; shared++)
        if (memcmp(frames + count - shared, base.frames, sizeof *frames * (size_t)shared) == 0) return true;
    return false;
}

static void note(uintptr_t address) {
    for (unsigned at = (unsigned)(address * 2654435761u) % PLACES, tries = 0; tries < PLACES; tries++, at = (at + 1) % PLACES) {
        uintptr_t none = 0;
        if (places[at].address.load() == address || places[at].address.compare_exchange_strong(none, address) || none == address) {
            places[at].count++;
            return;
        }
    }
}

static void on_timer(int, siginfo_t *, void *context) {
    if (!armed || stopping) return;
    int saved = errno;
    errno = 4711;
    guard_enter();
    void *behind[MOST], *from[MOST];
    int behind_count = backtrail_backtrace(behind, MOST);
    int from_count = backtrail_backtrace_from_ucontext(context, from, MOST);
    guard_leave();
    if (errno != 4711) wrong("errno", from, from_count, behind, behind_count);
    errno = saved;
    samples++;
    // The handler and the trampoline.
    if (from_count < 1 || behind_count != from_count + 2 || memcmp(behind + 2, from, sizeof *from * (size_t)from_count) != 0)
        wrong("not what lies behind the handler", from, from_count, behind, behind_count);
    bool is_complete = from_count >= base.count && memcmp(from + from_count - base.count, base.frames, sizeof *from * (size_t)base.count) == 0;
    if (!is_complete) {
        void *last = from[from_count - 1];
        if (opening && !was_there_first(last, from_count > 1)) {
            unmade++;
            return;
        }
        if (is_in_plugin(last, from_count > 1)) {
            if (plugin_made) wrong("ends in a library whose table is made", from, from_count, base.frames, base.count);
            unmade++;
            return;
        }
        // While libgcc loads the handler's registers, a frame that needs one of them is the last.
        if (resumes(from, from_count) && ends_within_base(from, from_count)) {
            installing++;
            return;
        }
        // The outermost frames are these or none of them.
        for (int i = 0; i < from_count; i++)
            for (int j = 0; j < base.count; j++)
                if (from[i] == base.frames[j]) wrong("other outer frames", from, from_count, base.frames, base.count);
        if (resumes(from, from_count)) {
            installing++;
            return;
        }
        ended_early++;
        note((uintptr_t)last * 2 + (from_count > 1));
        return;
    }
    int marked = 0;
    for (int i = 0; i < from_count; i++) {
        char *at = (char *)from[i] - (i > 0);
        marked += at >= __start_marked && at < __stop_marked;
    }
    if (marked != level && marked != level + 1) wrong("marked frames", from, from_count, base.frames, base.count);
    for (int i = 0; i < from_count; i++)
        if (is_in_plugin(from[i], i > 0)) {
            through_plugin++;
            break;
        }
    complete++;
}

/* The thread's own timer. */
struct Timer {
    timer_t timer;
    stack_t alternate;
    explicit Timer(bool on_alternate, bool is_slow) {
        memset(&alternate, 0, sizeof alternate);
        if (on_alternate) {
            alternate.ss_size = 1 << 16;
            alternate.ss_sp = mmap(NULL, alternate.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            sigaltstack(&alternate, NULL);
        }
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGPROF;
        event._sigev_un._tid = (int)syscall(SYS_gettid);
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) _exit(4);
        // From an alternate stack, most of the thread's own is read through the kernel: at full rate there was time for nothing else.
        long period = is_slow ? 20000000000 / rate : 1000000000 / rate;
        struct itimerspec each = {{period / 1000000000, period % 1000000000}, {0, period % 1000000000 ? period % 1000000000 : 1}};
        armed = 1;
        timer_settime(timer, 0, &each, NULL);
    }
    ~Timer() {
        armed = 0;
        timer_delete(timer);
        if (alternate.ss_sp) {
            stack_t none;
            memset(&none, 0, sizeof none);
            none.ss_flags = SS_DISABLE;
            sigaltstack(&none, NULL);
            munmap(alternate.ss_sp, alternate.ss_size);
        }
    }
};

/* A marked frame that counts itself. */
struct Level {
    Level() { level = level + 1; }
    ~Level() { level = level - 1; }
};

static volatile long sink;

MARKED static long descend(int depth, int thrown) {
    Level counted;
    std::string text = std::to_string(depth) + " and some more that does not fit in place";
    if (depth == 0) {
        if (thrown) {
            throws_++;
            throw std::runtime_error(text);
        }
        std::vector<double> numbers;
        for (int i = 0; i < 20; i++) numbers.push_back(strtod(text.c_str(), NULL) + i);
        char line[64];
        snprintf(line, sizeof line, "%f %s", numbers.back(), "text");
        return (long)strlen(line);
    }
    return descend(depth - 1, thrown) + (long)text.size();
}

MARKED static long catching(int depth) {
    Level counted;
    try {
        return descend(depth, 1);
    } catch (const std::exception &error) {
        return (long)strlen(error.what());
    }
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

MARKED static long sorting(void) {
    Level counted;
    int numbers[60];
    for (int i = 0; i < 60; i++) numbers[i] = i * 37 % 61;
    qsort(numbers, 60, sizeof numbers[0], compare);
    return numbers[30];
}

typedef uint64_t (*callback)(uint64_t);
typedef uint64_t (*enter)(callback, uint64_t);

static uint64_t called_back(uint64_t rounds) { return rounds + (uint64_t)descend(3, 0); }

MARKED static void loading(void) {
    Level counted;
    opening = 1;
    void *library = dlopen(plugin_path, RTLD_NOW);
    opening = 0;
    if (!library) _exit(5);
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) _exit(5);
    for (std::atomic<uintptr_t> &place : plugin_places) {
        uintptr_t none = 0;
        if (place == map->l_addr || place.compare_exchange_strong(none, map->l_addr)) break;
    }
    plugin = map->l_addr;
    void *symbol = dlsym(library, "plugin_enter");
    enter entry;
    memcpy(&entry, &symbol, sizeof entry);
    if (backtrail_init(NULL) != 0) _exit(6);
    plugin_made = true;
    for (int i = 0; i < 5; i++) sink = sink + (long)entry(called_back, 1);
    plugin_made = false;
    dlclose(library);
    plugin = 0;
    loads++;
}

/* What lies behind a thread's first marked frame. */
MARKED static void look_around(void) {
    void *frames[MOST];
    int count = backtrail_backtrace(frames, MOST);
    // This function and its caller are not the same always.
    // Behind this function and the thread's own.
    int behind = 2;
    base.count = count - behind < 8 ? count - behind : 8;
    if (base.count < 1) wrong("no base", frames, count, frames, 0);
    memcpy(base.frames, frames + count - base.count, sizeof *frames * (size_t)base.count);
}

MARKED static void work(int kind, long rounds) {
    Level counted;
    for (long round = 0; round < rounds && !stopping; round++) {
        sink = sink + descend((int)(round % 40), 0);
        if (round % 4 == 1) sink = sink + catching((int)(round % 12));
        if (round % 4 == 2) sink = sink + sorting();
        if (kind == 1 && round % 64 == 3) loading();
        if (samples >= wanted) stopping = true;
    }
}

static void *short_lived(void *kind) {
    thread_count++;
    look_around();
    Timer timer((intptr_t)kind % 2, (intptr_t)kind % 2);
    work(0, 200);
    return NULL;
}

MARKED static void making_threads(void) {
    Level counted;
    pthread_t two[2];
    for (intptr_t i = 0; i < 2; i++)
        if (pthread_create(&two[i], NULL, short_lived, (void *)i) != 0) _exit(7);
    for (int i = 0; i < 2; i++) pthread_join(two[i], NULL);
}

MARKED static void forking(void) {
    Level counted;
    pid_t child = fork();
    if (child == 0) {
        {
            // Its thread's alternate stack is there still.
            Timer timer(false, true);
            work(0, 100);
        }
        _exit(0);
    }
    int status = 1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (status != 0) {
        say("a child has failed\n");
        _exit(1);
    }
    children++;
}

static void *long_lived(void *number) {
    intptr_t kind = (intptr_t)number;
    thread_count++;
    look_around();
    Timer timer(kind % 2, kind % 2);
    while (!stopping) {
        work((int)kind, 500);
        if (kind == 2) making_threads();
        if (kind == 3) forking();
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5 || backtrail_init(NULL) != 0) return 2;
    wanted = atol(argv[1]);
    rate = atol(argv[2]);
    long seconds = atol(argv[3]);
    plugin_path = argv[4];
    if (dl_iterate_phdr(note_code, NULL) != 0) return 9;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_timer;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigaction(SIGPROF, &action, NULL);
    const char *names[] = {"_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "_Unwind_ForcedUnwind"};
    for (int i = 0; i < 4; i++) {
        Dl_info info;
        const ElfW(Sym) *symbol;
        void *at = dlsym(RTLD_DEFAULT, names[i]);
        if (!at || !dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT)) return 8;
        resuming[i] = {(uintptr_t)at, (uintptr_t)at + symbol->st_size};
    }
    pthread_t all[4];
    for (intptr_t i = 0; i < 4; i++)
        if (pthread_create(&all[i], NULL, long_lived, (void *)i) != 0) return 7;
    for (time_t end = time(NULL) + seconds; time(NULL) < end && !stopping;) usleep(50000);
    stopping = true;
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    for (Place &place : places) {
        uintptr_t address = place.address;
        if (!address) continue;
        Dl_info module;
        void *at = (void *)(address / 2);
        bool known = dladdr(at, &module) != 0;
        for (std::atomic<uintptr_t> &place : plugin_places)
            if (!known && place && address / 2 - place < PLUGIN_SIZE) {
                module.dli_fname = plugin_path;
                module.dli_fbase = (void *)place.load();
                known = true;
            }
        printf("short %s %s %#lx %ld\n", address % 2 ? "call" : "pc", known ? module.dli_fname : "?",
               known ? (unsigned long)((char *)at - (char *)module.dli_fbase) : (unsigned long)(uintptr_t)at, place.count.load());
    }
    printf("samples %ld complete %ld short %ld unmade %ld installing %ld through_plugin %ld threads %ld children %ld loads %ld throws %ld\n", samples.load(),
           complete.load(), ended_early.load(), unmade.load(), installing.load(), through_plugin.load(), thread_count.load(), children.load(), loads.load(), throws_.load());
    return 0;
}
