/* plugins FIRST SECOND COPY [OUTER]
 *
 * Copies two libraries in turn to COPY, loads each from there, walks through it, and unloads it:
 * the second is loaded where the first was, with other frames at the same addresses. While a
 * library is loaded, and after the other has replaced it, both backtraces must be the same;
 * before its tables are made, ours may only end early. With OUTER, all calls go through a third
 * library, which stays loaded; then calls of process_vm_readv are counted, by a filter that
 * turns them into signals: a repeated walk makes none, and one after loading a library that it
 * does not go through makes one.
 * Exits with 1 at the first difference, with 77 if calls cannot be filtered. */
#include "compare.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

typedef uint64_t (*callback)(uint64_t);
typedef uint64_t (*enter)(callback, uint64_t);

static int without_tables, ended_early, same_places;
static enter places[2];

static FRAME uint64_t called_back(uint64_t rounds) {
    if (!without_tables) return (uint64_t)same("plugin") + rounds;
    void *glibc[MOST], *ours[MOST];
    int glibc_count = backtrace(glibc, MOST), count = backtrail_backtrace(ours, MOST);
    for (int i = 1; i < count; i++)
        if (i >= glibc_count || ours[i] != glibc[i]) tell("without tables", glibc, glibc_count, ours, count);
    ended_early += count < glibc_count;
    return rounds + 1;
}

static FRAME void copy(const char *from, const char *to) {
    char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    if (in < 0 || out < 0) _exit(3);
    for (ssize_t count; (count = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, (size_t)count) != count) _exit(3);
    close(in);
    close(out);
}

static enter inner;

static FRAME uint64_t through(uint64_t rounds) { return inner(called_back, 1) + rounds; }

static volatile int copies;

#ifdef __x86_64__
/* Does what the filtered call would have done; the memory copied here always exists. */
static void on_copy(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const struct iovec *to = (void *)registers[REG_RSI], *from = (void *)registers[REG_R10];
    size_t at = 0, all = 0;
    for (greg_t i = 0, place = 0; i < registers[REG_R8]; i++) {
        for (size_t byte = 0; byte < from[i].iov_len; byte++, at++, all++) {
            while (at == to[place].iov_len) place++, at = 0;
            ((char *)to[place].iov_base)[at] = ((char *)from[i].iov_base)[byte];
        }
    }
    registers[REG_RAX] = (greg_t)all;
    copies++;
}

static int count_copies(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_copy;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, NULL);
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#else
static int count_copies(void) { return 0; }
#endif

static FRAME uint64_t counted(uint64_t rounds) {
    for (int again = 0; again < 8; again++) {
        if (again == 4 && dlopen("libm.so.6", RTLD_NOW) == NULL) _exit(3);
        int before = copies, expected = again == 4;
        same("counted");
        if (again > 0 && copies != before + expected) {
            fprintf(stderr, "walk %d of two libraries made %d copies\n", again, copies - before);
            _exit(1);
        }
    }
    return rounds + 1;
}

static FRAME uint64_t through_counted(uint64_t rounds) { return inner(counted, 1) + rounds; }

static enter load(const char *path, void **library) {
    *library = dlopen(path, RTLD_NOW);
    if (!*library) _exit(3);
    void *symbol = dlsym(*library, "plugin_enter");
    if (!symbol) _exit(3);
    enter entry;
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5 || backtrail_init(NULL) != 0) return 2;
    void *library;
    enter outer = argc == 5 ? load(argv[4], &library) : NULL;
    for (int round = 0; round < 40; round++) {
        copy(argv[1 + round % 2], argv[3]);
        enter entry = load(argv[3], &library);
        if (round > 1 && places[round % 2] == entry) same_places++;
        places[round % 2] = entry;
        inner = entry;
        without_tables = 1;
        outer ? outer(through, 1) : entry(called_back, 1);
        without_tables = 0;
        if (backtrail_init(NULL) != 0) return 2;
        for (int again = 0; again < 3; again++) outer ? outer(through, 1) : entry(called_back, 1);
        dlclose(library);
        same("after");
    }
    if (outer) {
        inner = load(argv[3], &library);
        if (backtrail_init(NULL) != 0) return 2;
        if (!count_copies()) return 77;
        outer(through_counted, 1);
    }
    printf("%d stacks, %d deep; %d ended early; %d times at the same place\n", compared, deepest, ended_early, same_places);
    return 0;
}
