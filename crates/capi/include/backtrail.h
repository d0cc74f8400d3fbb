/* Backtrail: backtraces of the calling thread, without frame pointers and without DWARF at run time.
 *
 *     backtrail_init(NULL);                      once, at the start, and again after dlopen
 *     int n = backtrail_backtrace(buffer, 64);   wherever you are, in a signal handler too
 *
 * Link with -lbacktrail. x86-64 and AArch64 Linux.
 *
 * "In handlers" below means: at any moment, in any thread, on any stack, also on an alternate one. Such a function takes no lock, leaves errno
 * as it was, and allocates nothing, but that the first walk of a thread maps some pages for it. Memory that cannot be read ends a backtrace, not the
 * program.
 *
 * Errors are negative error numbers, as in <errno.h>. */
#ifndef BACKTRAIL_H
#define BACKTRAIL_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Structs of options begin with their size. Set all of a struct to 0 and `size` to its sizeof: what a later version adds
 * means at 0 what it means today. A null pointer stands for all zeros. */
struct backtrail_init_options {
    size_t size;
    /* A folder where tables are kept for the next start; NULL for none. */
    const char *cache_dir;
    /* Other than 0: a thread calls backtrail_init again when a backtrace has come to a library that was opened later, and backtraces are whole
     * a moment after the first. It sleeps until then, and has all signals blocked. A forked child does not have it; backtrail_init starts it there. */
    int follow;
    int reserved;
};

struct backtrail_cbf_options {
    size_t size;
    /* A signal handler's third argument, for the stack of what it has interrupted; NULL for the caller's own. */
    const void *ucontext;
};

struct backtrail_crash_options {
    size_t size;
    /* The path of a program that is started for the report and reads it on its standard input, such as backtrail-crash-names, which repeats it
     * with names on its standard output, which is `fd`; NULL for none. */
    const char *helper;
    /* Where the report is written; 0 stands for standard error. */
    int fd;
    int reserved;
};

/* Makes the unwind tables of all modules that are loaded now. Call it again after dlopen; what dlclose takes away needs no
 * call. Where nothing has come or gone it returns at once. Not in handlers: it allocates, and takes the loader's lock.
 * Returns 0; -EINVAL or -E2BIG for options of a size that makes no sense, or that this library does not know; the error of the system where
 * there can be no thread. */
int backtrail_init(const struct backtrail_init_options *options);

/* As backtrace(3): writes the return addresses of the active calls, the caller's own first, and returns how many there are, at
 * most `size`. Code that a signal has interrupted is told by the address where it goes on. In handlers. */
int backtrail_backtrace(void **buffer, int size);

/* The stack of the code that a signal has interrupted, its program counter first. `ucontext` is the handler's third
 * argument. Returns how many there are, at most `size`; -EINVAL where it is NULL. In handlers. */
int backtrail_backtrace_from_ucontext(const void *ucontext, void **buffer, int size);

/* Writes a line for each address to `fd`: PATH(+0xOFFSET) [0xADDRESS]. `addr2line -e PATH 0xOFFSET` gives the name. In handlers. */
void backtrail_backtrace_symbols_fd(void *const *buffer, int size, int fd);

/* Writes the stack as a compact backtrace (CBF), which `backtrail cbf decode` reads, and returns how many bytes that are.
 * What has no room is left out at the outer end, and the backtrace then says that it is truncated.
 * -ENOSPC where there is no room at all; -EINVAL and -E2BIG as above. In handlers. */
ssize_t backtrail_backtrace_cbf(void *out, size_t size, const struct backtrail_cbf_options *options);

/* Makes known that there is code at `start`, made at run time, that keeps frame pointers. Not in handlers.
 * Returns 0; -EINVAL for an empty range; -EEXIST where some of it is known already. */
int backtrail_register_code(const void *start, size_t size);

/* Takes back what backtrail_register_code made known. Not in handlers. Returns 0; -ENOENT where no such code begins at `start`. */
int backtrail_withdraw_code(const void *start);

/* Makes SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP and SIGSYS write a report before the process dies of them as it would have
 * without (core dump included; a handler that was there before is called instead): lines of text with the signal, the stack, the stack as
 * compact backtrace, and the modules with their build ids. The handler runs on a stack of its own, which is given to the calling thread, unless that
 * has an alternate stack. Does what backtrail_init does, too. Not in handlers.
 * Returns 0; -EINVAL and -E2BIG as above; the error of the system call that failed. */
int backtrail_crash_install(const struct backtrail_crash_options *options);

/* Gives the calling thread such a stack, until it ends: call it at the start of each thread whose stack overflow is to be reported; other
 * crashes of it are reported without. Not in handlers. Returns as above. */
int backtrail_crash_thread(void);

#ifdef __cplusplus
}
#endif

#endif
