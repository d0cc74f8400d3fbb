/* steps_inproc PART...
 * Single-steps code in its own process (the trap flag), and at each instruction holds the chain of backtrail_backtrace_from_ucontext
 * against that of libgcc's _Unwind_Backtrace.
 *   registers   assembly whose CFA is in rbx, r12 or rax, and what it calls
 *   silent      assembly without call frame information: some keeps a frame pointer, some does not
 *   memory      the C library's functions for memory and text
 *   stubs       calls that are bound lazily
 *   NAME        a cipher or a digest of libcrypto, as it names them: AES-128-GCM, SHA512
 *   swscale     scaling a picture by libswscale
 *   dgemm       a product of matrices by libopenblas
 * For each part a line: steps, chains that are equal, longer, shorter and different, and those of ours that end in main and its callers
 * ("whole"), and how often libgcc crashed. A part whose library is missing is "missing". Exits with 1 if a chain is shorter or different.
 * x86-64. Link with libbacktrail, -Wl,-z,lazy and -ldl. */
#define _GNU_SOURCE
#include <backtrail.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

#define MOST 128
#define SHOWN 6

struct chain {
    void *addresses[MOST];
    int count;
};

static struct chain outer;
static volatile int stepping, shown, failed;
static volatile long steps, equal, longer, shorter, different, whole, crashes;
static sigjmp_buf after_crash;
static volatile int in_libgcc;

static _Unwind_Reason_Code add(struct _Unwind_Context *context, void *to) {
    struct chain *chain = to;
    int before = 0;
    void *address = (void *)_Unwind_GetIPInfo(context, &before);
    if (address && chain->count < MOST) chain->addresses[chain->count++] = address;
    return _URC_NO_REASON;
}

static void show(const char *what, void *pc, int count, int theirs, int same) {
    Dl_info info = {0};
    if (shown++ >= SHOWN) return;
    dladdr(pc, &info);
    fprintf(stderr, "%s at %s+%#lx: %d frames, libgcc %d, of which the same %d\n", what, info.dli_fname ? info.dli_fname : "?",
            (long)((char *)pc - (char *)info.dli_fbase), count, theirs, same);
}

/* In code without call frame information libgcc may read whatever it takes for a return address. */
static void on_fault(int number) {
    if (in_libgcc) siglongjmp(after_crash, 1);
    signal(number, SIG_DFL);
}

static void on_trap(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    if (!stepping) return;
    void *pc = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    void *ours[MOST];
    int count = backtrail_backtrace_from_ucontext(context, ours, MOST);
    static struct chain theirs;
    static volatile int has_crashed;
    theirs.count = has_crashed = 0;
    in_libgcc = 1;
    if (sigsetjmp(after_crash, 1) == 0)
        _Unwind_Backtrace(add, &theirs);
    else
        has_crashed = 1;
    in_libgcc = 0;
    /* Before it are this handler and the trampoline. */
    int skipped = 0, same = 0;
    while (skipped < theirs.count && theirs.addresses[skipped] != pc) skipped++;
    int their_count = theirs.count - skipped;
    while (same < count && same < their_count && ours[same] == theirs.addresses[skipped + same]) same++;
    steps++;
    int is_whole = count > outer.count;
    for (int i = 1; is_whole && i <= outer.count; i++) is_whole = ours[count - i] == outer.addresses[outer.count - i];
    whole += is_whole;
    if (has_crashed) {
        crashes++;
    } else if (same == their_count && same == count) {
        equal++;
        if (!is_whole) show("both end early", pc, count, their_count, same);
    } else if (same == their_count) {
        longer++;
        if (!is_whole) show("longer, and ends early", pc, count, their_count, same);
    } else if (same == count) {
        shorter++;
        show("shorter", pc, count, their_count, same);
    } else {
        different++;
        show("different", pc, count, their_count, same);
    }
}

/* Sets and clears the trap flag. */
__asm__(".text\n.type trap_on, @function\n"
        "trap_on:\n"
        ".cfi_startproc\n"
        "pushfq\n"
        ".cfi_adjust_cfa_offset 8\n"
        "orl $0x100, (%rsp)\n"
        "popfq\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size trap_on, . - trap_on\n"
        ".type trap_off, @function\n"
        "trap_off:\n"
        ".cfi_startproc\n"
        "pushfq\n"
        ".cfi_adjust_cfa_offset 8\n"
        "andl $~0x100, (%rsp)\n"
        "popfq\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size trap_off, . - trap_off\n");
void trap_on(void), trap_off(void);

#define STEP(call)    \
    do {              \
        stepping = 1; \
        trap_on();    \
        call;         \
        trap_off();   \
        stepping = 0; \
    } while (0)

#define PART __attribute__((noinline, noclone))

/* int NAME(int): calls `called` with its CFA in a register that functions preserve. */
#define ON(name, reg)                              \
    __asm__(".text\n.type " name ", @function\n"   \
            name ":\n"                             \
            ".cfi_startproc\n"                     \
            "push %" reg "\n"                      \
            ".cfi_adjust_cfa_offset 8\n"           \
            ".cfi_rel_offset %" reg ", 0\n"        \
            "mov %rsp, %" reg "\n"                 \
            ".cfi_def_cfa_register %" reg "\n"     \
            "sub $200, %rsp\n"                     \
            "and $-64, %rsp\n"                     \
            "call called\n"                        \
            "mov %" reg ", %rsp\n"                 \
            ".cfi_def_cfa_register %rsp\n"         \
            "pop %" reg "\n"                       \
            ".cfi_adjust_cfa_offset -8\n"          \
            ".cfi_restore %" reg "\n"              \
            "ret\n"                                \
            ".cfi_endproc\n"                       \
            ".size " name ", . - " name "\n")

ON("on_rbx", "rbx");
ON("on_r12", "r12");
/* The same with rax, which its callee leaves alone. */
__asm__(".text\n.type on_rax, @function\n"
        "on_rax:\n"
        ".cfi_startproc\n"
        "mov %rsp, %rax\n"
        ".cfi_def_cfa_register %rax\n"
        "sub $200, %rsp\n"
        "and $-64, %rsp\n"
        "call leaf\n"
        "mov %rax, %rsp\n"
        ".cfi_def_cfa_register %rsp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size on_rax, . - on_rax\n"
        ".type leaf, @function\n"
        "leaf:\n"
        ".cfi_startproc\n"
        "nop\n"
        "push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size leaf, . - leaf\n");
int on_rbx(int), on_r12(int), on_rax(int);

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Needs every register that functions preserve, and goes back through the assembly. */
__attribute__((used, noinline)) int called(int depth) {
    int numbers[8], sum = 0;
    for (int i = 0; i < 8; i++) numbers[i] = (i * 37 + depth) % 11;
    qsort(numbers, 8, sizeof numbers[0], compare_ints);
    for (int i = 0; i < 8; i++) sum += numbers[i] * (i + depth);
    if (depth > 0) sum += depth % 2 ? on_rbx(depth - 1) : on_r12(depth - 1);
    return sum + depth;
}

static volatile int sink;

static PART int registers(void) {
    STEP(sink += on_rbx(4) + on_r12(3) + on_rax(1));
    return 1;
}

/* Nothing describes these two, which call `called`. */
__asm__(".text\n.type silent_kept, @function\n"
        "silent_kept:\n"
        "push %rbp\n"
        "mov %rsp, %rbp\n"
        "sub $48, %rsp\n"
        "call called\n"
        "nop\n"
        "leave\n"
        "ret\n"
        ".size silent_kept, . - silent_kept\n"
        ".type silent_not_kept, @function\n"
        "silent_not_kept:\n"
        "push %r15\n"
        "push %r14\n"
        "sub $24, %rsp\n"
        "mov $1, %r14\n"
        "mov %r14, %r15\n"
        "call called\n"
        "add $24, %rsp\n"
        "pop %r14\n"
        "pop %r15\n"
        "ret\n"
        ".size silent_not_kept, . - silent_not_kept\n");
int silent_kept(int), silent_not_kept(int);

static PART int silent(void) {
    STEP(sink += silent_kept(0) + silent_not_kept(0));
    return 1;
}

static unsigned char from[4096], to[4096 + 64];

static PART int memory(void) {
    STEP(for (volatile int bytes = 0; bytes < 4096; bytes = bytes * 3 + 1) {
        memcpy(to, from, bytes);
        memmove(to + 3, to, bytes);
        memset(to, 1, bytes);
        sink += memcmp(from, to, bytes) + (memchr(from, 'x', bytes) != NULL) + (int)strlen((char *)to);
        sink += (strchr((char *)to, 'x') != NULL) + strcmp((char *)to, (char *)to + 9);
    });
    return 1;
}

static PART int stubs(void) {
    STEP(sink += rand() + atoi("12") + (getenv("NOTHING") != NULL) + (int)strtol("99", NULL, 0) + (int)strtod("1.5", NULL));
    return 1;
}

static void *function(void *library, const char *name) { return library ? dlsym(library, name) : NULL; }

static PART int crypto(const char *name) {
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);
    const void *(*cipher_named)(const char *) = function(library, "EVP_get_cipherbyname");
    const void *(*digest_named)(const char *) = function(library, "EVP_get_digestbyname");
    if (!cipher_named || !digest_named) return 0;
    static unsigned char key[64], digest[64];
    unsigned length;
    int count;
    if (cipher_named(name)) {
        void *(*create)(void) = function(library, "EVP_CIPHER_CTX_new");
        int (*begin)(void *, const void *, void *, const void *, const void *) = function(library, "EVP_EncryptInit_ex");
        int (*update)(void *, void *, int *, const void *, int) = function(library, "EVP_EncryptUpdate");
        void *context = create();
        begin(context, cipher_named(name), NULL, key, key);
        update(context, to, &count, from, 1024);
        if (backtrail_init(NULL) != 0) return 0;
        STEP(update(context, to, &count, from, 1024));
        return 1;
    }
    void *(*create)(void) = function(library, "EVP_MD_CTX_new");
    int (*begin)(void *, const void *, void *) = function(library, "EVP_DigestInit_ex");
    int (*update)(void *, const void *, size_t) = function(library, "EVP_DigestUpdate");
    int (*finish)(void *, void *, unsigned *) = function(library, "EVP_DigestFinal_ex");
    if (!digest_named(name)) return 0;
    void *context = create();
    begin(context, digest_named(name), NULL);
    if (backtrail_init(NULL) != 0) return 0;
    STEP(update(context, from, 1024));
    finish(context, digest, &length);
    return 1;
}

static void *any_of(const char *const *names) {
    void *library = NULL;
    for (; *names && !library; names++) library = dlopen(*names, RTLD_NOW);
    return library;
}

static PART int swscale(void) {
    const char *names[] = {"libswscale.so.6", "libswscale.so.7", "libswscale.so.8", NULL};
    void *library = any_of(names);
    void *(*create)(int, int, int, int, int, int, int, void *, void *, void *) = function(library, "sws_getContext");
    int (*scale)(void *, const void *const *, const int *, int, int, void *const *, const int *) = function(library, "sws_scale");
    if (!create || !scale) return 0;
    enum { YUV420P = 0, BGRA = 28, BICUBIC = 4, WIDTH = 64, HEIGHT = 8 };
    static unsigned char planes[3][WIDTH * HEIGHT * 4] __attribute__((aligned(64)));
    static unsigned char picture[WIDTH * HEIGHT * 8 * 4] __attribute__((aligned(64)));
    void *context = create(WIDTH, HEIGHT, YUV420P, WIDTH * 2, HEIGHT, BGRA, BICUBIC, NULL, NULL, NULL);
    if (!context) return 0;
    const void *in[4] = {planes[0], planes[1], planes[2], NULL};
    int in_strides[4] = {WIDTH, WIDTH / 2, WIDTH / 2, 0}, out_strides[4] = {WIDTH * 8, 0, 0, 0};
    void *out[4] = {picture, NULL, NULL, NULL};
    scale(context, in, in_strides, 0, HEIGHT, out, out_strides);
    if (backtrail_init(NULL) != 0) return 0;
    STEP(scale(context, in, in_strides, 0, HEIGHT, out, out_strides));
    return 1;
}

static PART int dgemm(void) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    const char *names[] = {"libopenblas.so.0", "libblas.so.3", NULL};
    void *library = any_of(names);
    void (*multiply)(const char *, const char *, const int *, const int *, const int *, const double *, const double *, const int *,
                     const double *, const int *, const double *, double *, const int *) = function(library, "dgemm_");
    if (!multiply) return 0;
    enum { SIZE = 48 };
    static double a[SIZE * SIZE], b[SIZE * SIZE], c[SIZE * SIZE];
    const int size = SIZE;
    const double one = 1;
    multiply("N", "T", &size, &size, &size, &one, a, &size, b, &size, &one, c, &size);
    if (backtrail_init(NULL) != 0) return 0;
    STEP(multiply("N", "T", &size, &size, &size, &one, a, &size, b, &size, &one, c, &size));
    return 1;
}

static PART int part(const char *name) {
    if (strcmp(name, "registers") == 0) return registers();
    if (strcmp(name, "silent") == 0) return silent();
    if (strcmp(name, "memory") == 0) return memory();
    if (strcmp(name, "stubs") == 0) return stubs();
    if (strcmp(name, "swscale") == 0) return swscale();
    if (strcmp(name, "dgemm") == 0) return dgemm();
    return crypto(name);
}

int main(int argc, char **argv) {
    if (backtrail_init(NULL) != 0) return 2;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGTRAP, &action, NULL);
    signal(SIGSEGV, on_fault);
    /* All but main itself. */
    struct chain here = {.count = 0};
    _Unwind_Backtrace(add, &here);
    for (int i = 1; i < here.count; i++) outer.addresses[outer.count++] = here.addresses[i];
    for (int i = 1; i < argc; i++) {
        steps = equal = longer = shorter = different = whole = crashes = shown = 0;
        if (!part(argv[i])) {
            printf("%s: missing\n", argv[i]);
            continue;
        }
        printf("%s: steps %ld equal %ld longer %ld shorter %ld different %ld whole %ld crashes %ld\n", argv[i], steps, equal, longer, shorter,
               different, whole, crashes);
        failed |= shorter + different > 0;
    }
    return failed;
}
