/* crashes LIBRARY HOW WHERE
 *
 * Loads libbacktrail.so, asks it for crash reports (unless LIBRARY is -), and dies. HOW: read, write, call, address,
 * overflow, bus, illegal, division, abort, assert, heap, smash, trap, system-call, throw, data (a
 * call of it), alignment (a read that x86-64 is asked to check). WHERE: main, thread, early-thread
 * (one that was started before), fork, coroutine (of makecontext), handler (of a signal, on an
 * alternate stack), no-proc, memory (1 MiB of address space left), descriptors (3), and below filters of system calls: filter-kill (process_vm_readv
 * kills), filter-mmap (no new memory), filter-list (all but a few calls fail), filter-trap (some
 * calls send SIGSYS). Prints the addresses between which the code that dies lies, and the time
 * right before. */
#undef NDEBUG
#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <stdexcept>

#define FATAL __attribute__((noinline, noclone, section("fatal")))

extern "C" char __start_fatal[], __stop_fatal[];

static const char *how, *where;
static char *past_end;
static volatile int zero;

static bool is(const char *name) { return strcmp(how, name) == 0; }
static bool at(const char *name) { return strcmp(where, name) == 0; }

FATAL static int overflow(int depth) {
    volatile char space[256];
    space[depth % 256] = 1;
    return overflow(depth + 1) + space[depth % 256];
}

FATAL __attribute__((optimize("stack-protector-all"))) static void smash(int length) {
    char buffer[16];
    char *begin = buffer;
    __asm__("" : "+r"(begin));
    memset(begin, 0x41, (size_t)length);
    __asm__ volatile("" : : "r"(begin) : "memory");
}

FATAL static int die() {
    volatile int *place = (int *)16;
    if (is("read")) return *place;
    if (is("write")) *(volatile char *)__start_fatal = 1;
    if (is("call")) {
        int (*nothing)(void) = NULL;
        __asm__("" : "+r"(nothing));
        return nothing() + 1;
    }
    if (is("address")) return *(volatile int *)0x4141414141414141;
    if (is("overflow")) return overflow(0) + 1;
    if (is("bus")) return *(volatile char *)past_end;
#ifdef __x86_64__
    if (is("illegal")) __asm__ volatile("ud2");
    if (is("trap")) __asm__ volatile("int3");
#else
    if (is("illegal")) __asm__ volatile(".inst 0");
    if (is("trap")) __asm__ volatile("brk #0");
#endif
    if (is("division")) {
        if (1000 / zero != 0) return 1;
        raise(SIGFPE);
    }
    if (is("abort")) abort();
    if (is("assert")) assert(zero == 1);
    if (is("heap")) {
        char *block = (char *)malloc(64), *hidden = block;
        __asm__("" : "+r"(hidden));
        free(block);
        free(hidden);
    }
    if (is("smash")) smash(64);
    if (is("system-call")) raise(SIGSYS);
    if (is("data")) {
        static char data[16];
        int (*function)(void) = (int (*)(void))(void *)data;
        __asm__("" : "+r"(function));
        return function() + 1;
    }
#ifdef __x86_64__
    if (is("alignment")) {
        /* The check stays on while the handler runs. */
        static long words[2];
        __asm__ volatile("pushfq\n\torl $0x40000, (%rsp)\n\tpopfq");
        return *(volatile int *)((char *)words + 1);
    }
#else
    if (is("alignment")) _exit(77);
#endif
    if (is("throw")) throw std::runtime_error("nobody catches this");
    return 1;
}

/* The last words, and the end. */
FATAL static int end() {
    char line[64];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "now %lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    if (write(1, line, (size_t)length) != length) _exit(3);
    return die() + 1;
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, field))
#define ON(call, what) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), BPF_STMT(BPF_RET | BPF_K, (what))
#define ALLOW SECCOMP_RET_ALLOW
#define DENY (SECCOMP_RET_ERRNO | 1)

static void set_filter(struct sock_filter *code, size_t count) {
    struct sock_fprog program = {(unsigned short)count, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(77);
}

#define FILTER(...)                                        \
    do {                                                   \
        struct sock_filter code[] = {LOAD(nr), __VA_ARGS__}; \
        set_filter(code, sizeof code / sizeof *code);      \
    } while (0)

static void restrict_calls() {
    if (at("filter-kill"))
        FILTER(ON(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS), ON(SYS_ptrace, SECCOMP_RET_KILL_PROCESS),
               BPF_STMT(BPF_RET | BPF_K, ALLOW));
    if (at("filter-mmap"))
        FILTER(ON(SYS_mmap, DENY), ON(SYS_mprotect, DENY), ON(SYS_mremap, DENY), ON(SYS_brk, DENY), BPF_STMT(BPF_RET | BPF_K, ALLOW));
    if (at("filter-list"))
        FILTER(ON(SYS_read, ALLOW), ON(SYS_write, ALLOW), ON(SYS_close, ALLOW), ON(SYS_exit, ALLOW), ON(SYS_exit_group, ALLOW),
               ON(SYS_rt_sigreturn, ALLOW), ON(SYS_rt_sigaction, ALLOW), ON(SYS_rt_sigprocmask, ALLOW), ON(SYS_getpid, ALLOW),
               ON(SYS_gettid, ALLOW), ON(SYS_tgkill, ALLOW), ON(SYS_futex, ALLOW), ON(SYS_munmap, ALLOW), ON(SYS_brk, ALLOW),
               ON(SYS_clock_gettime, ALLOW), BPF_STMT(BPF_RET | BPF_K, DENY));
    if (at("filter-trap"))
        FILTER(ON(SYS_process_vm_readv, SECCOMP_RET_TRAP), ON(SYS_openat, SECCOMP_RET_TRAP), ON(SYS_timer_create, SECCOMP_RET_TRAP),
               ON(SYS_ppoll, SECCOMP_RET_TRAP), BPF_STMT(BPF_RET | BPF_K, ALLOW));
}

static void leave_memory(unsigned long more) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%lu", &pages) != 1) _exit(77);
    fclose(statm);
    struct rlimit limit = {pages * (unsigned long)sysconf(_SC_PAGESIZE) + more, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(77);
}

static int ready[2];
static int (*prepare)(void);

static int nothing(const void *) { return 0; }

static void end_in_context() { _exit(end()); }
static void end_in_handler(int) { _exit(end()); }

/* On a stack of its own above a page that cannot be touched. */
static int end_in_coroutine() {
    static ucontext_t outside, inside;
    const size_t page = 4096, bytes = 64 * page;
    char *memory = (char *)mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0 || getcontext(&inside) != 0) return 3;
    inside.uc_stack.ss_sp = memory + page;
    inside.uc_stack.ss_size = bytes;
    inside.uc_link = &outside;
    makecontext(&inside, end_in_context, 0);
    return swapcontext(&outside, &inside), 4;
}

static int end_on_alternate_stack() {
    stack_t stack = {};
    if (sigaltstack(NULL, &stack) != 0) return 3;
    if (stack.ss_flags & SS_DISABLE) {
        stack.ss_size = 65536, stack.ss_sp = malloc(stack.ss_size), stack.ss_flags = 0;
        if (sigaltstack(&stack, NULL) != 0) return 3;
    }
    struct sigaction action = {};
    action.sa_handler = end_in_handler;
    action.sa_flags = SA_ONSTACK;
    return sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1), 4;
}

static void *end_in_thread(void *waits) {
    char byte;
    if (waits && read(ready[0], &byte, 1) != 1) _exit(3);
    if (prepare && prepare() != 0) _exit(3);
    return (void *)(long)end();
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    how = argv[2], where = argv[3];
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    char name[] = "/tmp/crashesXXXXXX";
    int file = mkstemp(name);
    unlink(name);
    past_end = (char *)mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || past_end == MAP_FAILED) return 77;
    close(file);
    if (at("no-proc")) {
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return 77;
        if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", "/proc", "tmpfs", 0, NULL) != 0) return 77;
    }
    pthread_t thread;
    if (at("early-thread")) {
        if (pipe(ready) != 0 || pthread_create(&thread, NULL, end_in_thread, &thread) != 0) return 3;
        usleep(20000);
    }
    int (*install)(const void *) = nothing;
    if (strcmp(argv[1], "-") != 0) {
        void *library = dlopen(argv[1], RTLD_NOW);
        if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
        install = (int (*)(const void *))dlsym(library, "backtrail_crash_install");
        prepare = (int (*)(void))dlsym(library, "backtrail_crash_thread");
        if (!install || !prepare) return 2;
    }
    if (at("descriptors")) {
        struct rlimit few = {3, 3};
        if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 77;
    }
    int code = install(NULL);
    if (code != 0) return fprintf(stderr, "install: %d\n", code), 2;
    printf("code %p %p\n", (void *)__start_fatal, (void *)__stop_fatal);
    fflush(stdout);
    if (at("fork")) {
        pid_t child = fork();
        if (child == 0) return end();
        int status = 0;
        waitpid(child, &status, 0);
        if (!WIFSIGNALED(status)) return 4;
        /* This process dies like its child, but is not reported, whoever reports. */
        const long by_default[8] = {};
        syscall(SYS_rt_sigaction, WTERMSIG(status), by_default, NULL, 8);
        raise(WTERMSIG(status));
        return 4;
    }
    if (at("thread") && pthread_create(&thread, NULL, end_in_thread, NULL) != 0) return 3;
    if (at("early-thread") && write(ready[1], "", 1) != 1) return 3;
    if (at("thread") || at("early-thread")) return pthread_join(thread, NULL), 4;
    if (at("coroutine")) return end_in_coroutine();
    if (at("handler")) return end_on_alternate_stack();
    if (at("memory")) leave_memory(1 << 20);
    restrict_calls();
    return end();
}
