/* A library for LD_PRELOAD, in a program that is stepped by steps_plugin.c: at each SIGPROF it walks the interrupted code with libbacktrail, and sends
 * the registers and the chain to the socket that BACKTRAIL_STEPS names. It goes on when it has an answer of one byte.
 *
 * First it sends the chain of its constructor's callers by libgcc: return addresses and stack pointers at the calls. */
#define _GNU_SOURCE
#include <backtrail.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define BEGIN 0x7fff0002
#define MOST 256

static int stream;
static struct {
    uint64_t count;
    /* x0 to x30, SP and PC. */
    uint64_t registers[33];
    void *chain[MOST];
} walked;
static struct {
    uint64_t count;
    /* Where this is in memory. */
    uint64_t address;
    uint64_t frames[16][2];
} callers;

static void exchange(const void *bytes, size_t size) {
    char answer;
    if (write(stream, bytes, size) != (ssize_t)size || read(stream, &answer, 1) != 1) _exit(3);
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    int saved = errno;
    const mcontext_t *at = &((ucontext_t *)context)->uc_mcontext;
    memcpy(walked.registers, at->regs, sizeof at->regs);
    walked.registers[31] = at->sp;
    walked.registers[32] = at->pc;
    int count = backtrail_backtrace_from_ucontext(context, walked.chain, MOST);
    walked.count = (uint64_t)count;
    exchange(&walked, (char *)&walked.chain[count] - (char *)&walked);
    errno = saved;
}

static _Unwind_Reason_Code add(struct _Unwind_Context *context, void *unused) {
    (void)unused;
    if (callers.count == 16) return _URC_END_OF_STACK;
    callers.frames[callers.count][0] = _Unwind_GetIP(context);
    callers.frames[callers.count++][1] = _Unwind_GetCFA(context);
    return _URC_NO_REASON;
}

__attribute__((constructor, noinline)) static void begin(void) {
    const char *path = getenv("BACKTRAIL_STEPS");
    if (!path) return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    stream = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (backtrail_init(NULL) != 0 || connect(stream, (struct sockaddr *)&to, sizeof to) != 0) _exit(3);
    /* Not for the program's children. */
    unsetenv("BACKTRAIL_STEPS");
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    /* What else arrives must wait: only the interrupted code is stepped. */
    sigfillset(&action.sa_mask);
    sigaction(SIGPROF, &action, NULL);
    callers.address = (uint64_t)(uintptr_t)&callers;
    _Unwind_Backtrace(add, NULL);
    exchange(&callers, sizeof callers);
    register long number __asm__("x8") = BEGIN;
    register long result __asm__("x0") = 0;
    __asm__ volatile("svc #0" : "+r"(result) : "r"(number) : "memory");
}
