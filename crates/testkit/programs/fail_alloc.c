/* LD_PRELOAD=fail_alloc.so FAIL_ALLOC=N FAIL_REPORT=FILE COMMAND
 *
 * The command's N-th allocation fails; N of 0 fails none. Allocations are counted from the first
 * poll(2) on, which Rust's start code makes before main. When the command ends, FILE has their
 * number. Programs that it starts are not affected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Atomic long count;
static _Atomic int started;
static long wanted;
static char report[4096];
static pid_t own;

__attribute__((constructor)) static void begin(void) {
    const char *number = getenv("FAIL_ALLOC"), *path = getenv("FAIL_REPORT");
    wanted = number ? atol(number) : 0;
    snprintf(report, sizeof report, "%s", path ? path : "");
    own = getpid();
    unsetenv("LD_PRELOAD");
    unsetenv("FAIL_ALLOC");
    unsetenv("FAIL_REPORT");
}

__attribute__((destructor)) static void end(void) {
    char text[32];
    int fd = report[0] && own == getpid() ? open(report, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd >= 0 && write(fd, text, snprintf(text, sizeof text, "%ld\n", atomic_load(&count))) > 0) close(fd);
}

static int fails(void) {
    if (!atomic_load(&started)) return 0;
    if (atomic_fetch_add(&count, 1) + 1 != wanted) return 0;
    errno = ENOMEM;
    return 1;
}

int poll(struct pollfd *fds, nfds_t n, int timeout) {
    static int (*next)(struct pollfd *, nfds_t, int);
    if (!next) next = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
    atomic_store(&started, 1);
    return next(fds, n, timeout);
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void *memalign(size_t align, size_t size) { return fails() ? NULL : __libc_memalign(align, size); }
void *aligned_alloc(size_t align, size_t size) { return fails() ? NULL : __libc_memalign(align, size); }
int posix_memalign(void **place, size_t align, size_t size) {
    if (fails() || !(*place = __libc_memalign(align, size))) return ENOMEM;
    return 0;
}
