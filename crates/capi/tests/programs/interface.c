/* What the header promises besides the frames themselves. Exits with the line of the first
 * broken promise. */
#define _GNU_SOURCE
#include <backtrail.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); return __LINE__ % 200 + 1; } } while (0)

int main(int argc, char **argv) {
    void *frames[64];
    /* Nothing need be called before. */
    int before = backtrail_backtrace(frames, 64);
    MUST(before >= 3 && before < 10);
    struct backtrail_init_options options = {sizeof options, argc > 1 ? argv[1] : NULL, 0, 0};
    MUST(backtrail_init(&options) == 0);
    MUST(backtrail_init(NULL) == 0);
    options.size = 3;
    MUST(backtrail_init(&options) == -EINVAL);
    struct { struct backtrail_init_options known; long later; } larger = {{sizeof larger, NULL, 0, 0}, 0};
    MUST(backtrail_init(&larger.known) == 0);
    larger.later = 1;
    MUST(backtrail_init(&larger.known) == -E2BIG);
    options.size = sizeof(size_t);
    MUST(backtrail_init(&options) == 0);

    int count = backtrail_backtrace(frames, 64);
    MUST(count == before);
    MUST(backtrail_backtrace(frames, 2) == 2);
    MUST(backtrail_backtrace(frames, 0) == 0 && backtrail_backtrace(frames, -1) == 0 && backtrail_backtrace(NULL, 5) == 0);
    MUST(backtrail_backtrace_from_ucontext(NULL, frames, 5) == -EINVAL);

    unsigned char cbf[64];
    struct backtrail_cbf_options of = {sizeof of, NULL};
    ssize_t all = backtrail_backtrace_cbf(cbf, sizeof cbf, &of);
    MUST(all > 5 && cbf[all - 1] == 0);
    for (size_t size = 2; size < (size_t)all; size++) {
        memset(cbf, 0xee, sizeof cbf);
        ssize_t part = backtrail_backtrace_cbf(cbf, size, NULL);
        MUST(part >= 2 && part <= (ssize_t)size && cbf[part - 1] == 1 && cbf[size] == 0xee);
    }
    MUST(backtrail_backtrace_cbf(cbf, 1, NULL) == -ENOSPC && backtrail_backtrace_cbf(cbf, 0, NULL) == -ENOSPC);
    MUST(backtrail_backtrace_cbf(NULL, 5, NULL) == -EINVAL);
    of.size = 1;
    MUST(backtrail_backtrace_cbf(cbf, sizeof cbf, &of) == -EINVAL);

    static char code[4096];
    MUST(backtrail_register_code(code, 0) == -EINVAL && backtrail_register_code(NULL, 5) == -EINVAL);
    MUST(backtrail_register_code(code, sizeof code) == 0);
    MUST(backtrail_register_code(code + 100, 1) == -EEXIST);
    MUST(backtrail_register_code((void *)main, 1) == -EEXIST);
    MUST(backtrail_withdraw_code(code + 1) == -ENOENT);
    MUST(backtrail_withdraw_code(code) == 0 && backtrail_withdraw_code(code) == -ENOENT);

    errno = 77;
    frames[count] = (void *)5;
    backtrail_backtrace_symbols_fd(frames, count + 1, 1);
    backtrail_backtrace_symbols_fd(frames, count, -1);
    backtrail_backtrace_symbols_fd(NULL, 3, 1);
    MUST(errno == 77);
    ssize_t written = write(1, "cbf ", 4);
    all = backtrail_backtrace_cbf(cbf, sizeof cbf, NULL);
    for (ssize_t i = 0; i < all; i++) {
        char hex[3];
        snprintf(hex, sizeof hex, "%02x", cbf[i]);
        written += write(1, hex, 2);
    }
    return written < 4;
}
