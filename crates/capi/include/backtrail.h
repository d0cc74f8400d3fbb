/* Backtrail: backtraces of the calling thread, without frame pointers, from tables made in advance.
 *
 *     backtrail_init(NULL);                      once, at the start: faster first backtraces
 *     int n = backtrail_backtrace(buffer, 64);   anywhere, including signal handlers
 *
 * Link with -lbacktrail. Requires x86-64 or AArch64 Linux.
 *
 * "In handlers" marks functions that may be called at any moment, in any thread, and on any stack,
 * including an alternate one. They take no lock, leave errno unchanged, and do not allocate, except
 * that a thread's first backtrace maps a few pages. Unreadable memory ends a backtrace, not the
 * program.
 *
 * Errors are returned as negative error numbers from <errno.h>. */
#ifndef BACKTRAIL_H
#define BACKTRAIL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Option structs begin with their size. Set the whole struct to 0, and `size` to its sizeof:
 * members added by later versions keep today's behaviour when they are 0. A null pointer means
 * all zeros. */
struct backtrail_init_options {
    size_t size;
    /* Folder that keeps tables for the next start; NULL for none. */
    const char *cache_dir;
    /* If not 0, a thread calls backtrail_init again when a backtrace reaches a library that was
     * opened later, to make its table. The thread sleeps until then, with all signals blocked. In a
     * forked child it does not exist until backtrail_init is called there. */
    int follow;
    int reserved;
};

struct backtrail_cbf_options {
    size_t size;
    /* A signal handler's third argument, for the stack of the interrupted code; NULL for the
     * caller's own stack. */
    const void *ucontext;
};

struct backtrail_crash_options {
    size_t size;
    /* Path of a program that is started for each report and reads it on its standard input; its
     * standard output is `fd`. backtrail-crash-names, for example, repeats the report with
     * function names. NULL for none. */
    const char *helper;
    /* File descriptor that reports are written to; 0 means standard error. */
    int fd;
    int reserved;
};

/* Makes the unwind tables of all modules that are loaded now, which makes the first backtrace of
 * each place faster. Without tables, backtraces read call frame information. With a C library
 * before glibc 2.35, they cannot do so in modules that were loaded after the library: then call
 * this again after dlopen. Returns at once if no module was loaded or unloaded. Not in handlers: it
 * allocates, and takes the loader's lock. Returns 0; -EINVAL if the options' size is invalid;
 * -E2BIG if they set members that this library does not know; the system's error if the thread
 * cannot be started. */
int backtrail_init(const struct backtrail_init_options *options);

/* Like backtrace(3): writes the return addresses of the active calls, the caller's own first,
 * and returns their number, at most `size`. For code that a signal has interrupted, writes the
 * address where it resumes. In handlers. */
int backtrail_backtrace(void **buffer, int size);

/* Writes the stack of the code that a signal has interrupted, its program counter first.
 * `ucontext` is the handler's third argument. Returns the number of addresses, at most `size`;
 * -EINVAL if `ucontext` is NULL. In handlers. */
int backtrail_backtrace_from_ucontext(const void *ucontext, void **buffer, int size);

/* Writes one line per address to `fd`: PATH(+0xOFFSET) [0xADDRESS]. `addr2line -e PATH 0xOFFSET`
 * prints the name. In handlers. */
void backtrail_backtrace_symbols_fd(void *const *buffer, int size, int fd);

/* Writes the stack as a compact backtrace (CBF), which `backtrail cbf decode` reads, and returns
 * its length in bytes. If `out` is too small, the outermost frames are left out and the
 * backtrace is marked as truncated. Returns -ENOSPC if nothing fits; -EINVAL if the options' size
 * is invalid; -E2BIG if they set members that this library does not know. In handlers. */
ssize_t backtrail_backtrace_cbf(void *out, size_t size, const struct backtrail_cbf_options *options);

/* Registers code generated at run time, at `start`, that keeps frame pointers. Not in handlers.
 * Returns 0; -EINVAL for an empty range; -EEXIST if a part of it is registered already. */
int backtrail_register_code(const void *start, size_t size);

/* Undoes backtrail_register_code. Not in handlers. Returns 0; -ENOENT if no registered code
 * begins at `start`. */
int backtrail_withdraw_code(const void *start);

/* Makes SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP and SIGSYS write a report before the
 * process dies of them. The report is text: the signal, the registers, the code around the program
 * counter, the stack, the stack as a compact backtrace, the modules with their build IDs, and the
 * stacks of the other threads, which SIGSYS interrupts. The process then dies as it would have
 * otherwise, with a core dump if enabled; an earlier handler is called instead. The handler runs
 * on an alternate stack, which the calling thread gets unless it already has one. Also does what
 * backtrail_init does. Not in handlers. Returns 0; -EINVAL if the options' size is invalid; -E2BIG
 * if they set members that this library does not know; the error of the system call that failed. */
int backtrail_crash_install(const struct backtrail_crash_options *options);

/* Gives the calling thread an alternate stack for crash reports until the thread ends. Call it at
 * the start of each thread whose stack overflows are to be reported; its other crashes are reported
 * without it. Not in handlers. Returns 0, or the error of the system call that failed. */
int backtrail_crash_thread(void);

/* Compact backtraces (CBF), as backtrail_backtrace_cbf and crash reports contain them. */
enum backtrail_frame_kind {
    BACKTRAIL_FRAME_PC = 1,     /* an instruction that was about to run */
    BACKTRAIL_FRAME_RA = 2,     /* a return address: the call is before it */
    BACKTRAIL_FRAME_ASYNC = 3,  /* where an asynchronous function will resume */
    BACKTRAIL_FRAME_OMITTED = 4 /* frames that were left out; `address` is their number */
};

struct backtrail_cbf_frame {
    size_t size;
    int kind; /* enum backtrail_frame_kind */
    int reserved;
    uint64_t address;
    uint64_t repeat; /* number of consecutive copies, 1 for one frame */
};

/* Calls `each` for the frames of a compact backtrace, the innermost first, until it returns a value
 * other than 0, and returns that value. Otherwise returns 0; 1 if the stack had further frames;
 * -EBADMSG if the backtrace is damaged, after its intact frames; -EINVAL. Not in handlers. */
int backtrail_cbf_decode(const void *bytes, size_t size,
                         int (*each)(void *closure, const struct backtrail_cbf_frame *frame), void *closure);

/* Writes frames as a compact backtrace, and returns its length in bytes. If `truncated` is not 0, or
 * not all frames fit, the backtrace is marked as truncated. Returns -ENOSPC if nothing fits; -EINVAL
 * if a frame's size, kind or `repeat` is invalid. Not in handlers. */
ssize_t backtrail_cbf_encode(const struct backtrail_cbf_frame *frames, size_t count, int truncated, void *out, size_t size);

/* The unwind tables of a file (SFrame, any version).
 *
 *     struct backtrail_table *table;
 *     struct backtrail_row row = {.size = sizeof row};
 *     backtrail_table_open("/usr/bin/program", &table);
 *     backtrail_table_find(table, 0x1234, NULL, &row);
 *
 * None of these functions may be called in handlers. Several threads may use a handle at once. */
struct backtrail_table;

struct backtrail_function {
    size_t size;    /* set it before the call */
    uint64_t start; /* address of its first byte, as in the file */
    uint64_t bytes;
    uint64_t rows;
    int repeat;       /* the rows are for each block of this many bytes; 0 if not */
    int signal_frame; /* signal handlers return to it */
};

enum {
    BACKTRAIL_BASE_CFA = -1, /* the canonical frame address */
    BACKTRAIL_BASE_NONE = -2 /* no rule: the register is unchanged */
};

/* A value: the base plus the offset, or what is in memory at that address. */
struct backtrail_place {
    int base; /* a register's DWARF number, or BACKTRAIL_BASE_... */
    int in_memory;
    int64_t offset;
};

/* How the caller of code is found, from `start` on to the next row. */
struct backtrail_row {
    size_t size; /* set it before the call */
    uint64_t start;
    int outermost;  /* the function has no caller */
    int mangled_ra; /* AArch64: the return address is signed */
    struct backtrail_place cfa;
    struct backtrail_place ra;
    struct backtrail_place fp;
};

/* Opens the .sframe section of an ELF file, or a file that contains only such a section. Returns 0;
 * -ENODATA if it has no table; -EBADMSG if it is damaged; -EINVAL; the error of the system call that
 * failed. */
int backtrail_table_open(const char *path, struct backtrail_table **table);

/* Closes the handle. Does nothing for NULL. */
void backtrail_table_close(struct backtrail_table *table);

/* Finds the function and the row for an address of the file. Either may be NULL. Returns 0; -ENOENT
 * if no row covers the address; -EBADMSG if the table is damaged there; -EINVAL for a size that is
 * too small. */
int backtrail_table_find(const struct backtrail_table *table, uint64_t pc, struct backtrail_function *function,
                         struct backtrail_row *row);

/* Calls `each` for every function until it returns a value other than 0, and returns that value.
 * Errors: -EBADMSG if the table is damaged; -EINVAL if an argument is NULL. */
int backtrail_table_functions(const struct backtrail_table *table,
                              int (*each)(void *closure, const struct backtrail_function *function), void *closure);

/* Calls `each` for the rows of the function that begins at `start`, in the order of addresses, until
 * it returns a value other than 0, and returns that value. Errors: -ENOENT if no function begins
 * there; -EBADMSG if the table is damaged; -EINVAL if an argument is NULL. */
int backtrail_table_rows(const struct backtrail_table *table, uint64_t start,
                         int (*each)(void *closure, const struct backtrail_row *row), void *closure);

/* The types of a C program, from a file with compact C types (.ctf), BTF (.BTF,
 * /sys/kernel/btf/vmlinux) or debug information.
 *
 *     struct backtrail_types *types;
 *     backtrail_type_id id;
 *     backtrail_types_open("/usr/bin/program", NULL, &types);
 *     backtrail_types_find(types, NULL, "struct foo", &id);
 *     backtrail_type_parts(types, id, each_member, NULL);
 *
 * None of these functions may be called in handlers. Several threads may use a handle at once.
 * Strings live as long as the handle. */
struct backtrail_types;

/* A type of an open file; 0 is no type, or void. */
typedef uint64_t backtrail_type_id;

struct backtrail_types_options {
    size_t size;
    /* If not 0, types are made from debug information (DWARF) if the file has no type section. */
    int debug_information;
    int reserved;
};

enum backtrail_kind {
    BACKTRAIL_KIND_UNKNOWN = 0, /* a type that the file cannot describe */
    BACKTRAIL_KIND_INTEGER = 1, /* also void, with 0 bytes */
    BACKTRAIL_KIND_FLOAT = 2,
    BACKTRAIL_KIND_POINTER = 3,
    BACKTRAIL_KIND_ARRAY = 4,
    BACKTRAIL_KIND_FUNCTION = 5,
    BACKTRAIL_KIND_STRUCT = 6,
    BACKTRAIL_KIND_UNION = 7,
    BACKTRAIL_KIND_ENUM = 8,
    BACKTRAIL_KIND_FORWARD = 9, /* a struct, union or enum that is only declared */
    BACKTRAIL_KIND_TYPEDEF = 10,
    BACKTRAIL_KIND_VOLATILE = 11,
    BACKTRAIL_KIND_CONST = 12,
    BACKTRAIL_KIND_RESTRICT = 13,
    BACKTRAIL_KIND_SLICE = 14 /* some bits of another type */
};

struct backtrail_type {
    size_t size; /* set it before the call */
    int kind;    /* enum backtrail_kind */
    int variadic;
    const char *name; /* "" if it has none */
    uint64_t bytes;   /* 0 if the size is not known */
    /* The type that a pointer points to, a typedef or qualifier refers to, a function returns,
     * or an array contains. */
    backtrail_type_id refers;
    /* Number of elements of an array, members of a struct or union, values of an enum, or arguments
     * of a function. */
    uint64_t count;
};

struct backtrail_type_part {
    size_t size;
    const char *name;
    backtrail_type_id type; /* of a member or an argument */
    uint64_t bit_offset;    /* of a member, from the struct's start */
    int64_t value;          /* of an enumerator */
    int bits;               /* of a bit field, else 0 */
    int reserved;
};

/* Opens the types of an ELF file, or of a file that contains only the bytes of a section.
 * Returns 0; -ENODATA if it has no types; -EBADMSG if they are damaged; -EINVAL and -E2BIG as
 * above; the error of the system call that failed. */
int backtrail_types_open(const char *path, const struct backtrail_types_options *options, struct backtrail_types **types);

/* Closes the handle. Does nothing for NULL. */
void backtrail_types_close(struct backtrail_types *types);

/* Finds the first function, object or type ("struct foo", or "foo" for any kind) of this name.
 * `unit` is a unit's name in the file, which limits the search to that unit and the types it
 * shares; NULL searches everywhere. Returns 0; -ENOENT if there is none. */
int backtrail_types_find(const struct backtrail_types *types, const char *unit, const char *name, backtrail_type_id *found);

/* Calls `each` for every type until it returns a value other than 0, and returns that value. */
int backtrail_types_walk(const struct backtrail_types *types, int (*each)(void *closure, backtrail_type_id id), void *closure);

/* Describes a type. Returns 0; -EINVAL for an invalid id; -EBADMSG if the type is damaged. */
int backtrail_type_get(const struct backtrail_types *types, backtrail_type_id id, struct backtrail_type *info);

/* Calls `each` for the members of a struct or union, the values of an enum, or the arguments of
 * a function, until it returns a value other than 0, and returns that value. Errors: -EINVAL for an
 * invalid id; -EBADMSG if the type is damaged. */
int backtrail_type_parts(const struct backtrail_types *types, backtrail_type_id id,
                         int (*each)(void *closure, const struct backtrail_type_part *part), void *closure);

/* Writes the C declaration of `name` with this type, or of the type alone if `name` is NULL.
 * Like snprintf, writes at most `size` bytes and returns the length without the terminating zero
 * byte. Errors: -EINVAL for an invalid id; -EBADMSG if the type is damaged. */
ssize_t backtrail_type_text(const struct backtrail_types *types, backtrail_type_id id, const char *name, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
