// Stacks that are odd in one way each.
//
//   odd_stacks leader    the first thread ends, two others wait
//   odd_stacks deep      50,000 frames, 12 MB, in code that runs on
//   odd_stacks context   waits in a function of makecontext
//   odd_stacks elsewhere waits on its own stack, called from another one (x86-64)
//   odd_stacks by-rbx    the same, without a stub of its own
//   odd_stacks zero      waits in the first function of a fibre, whose return address is 0 (x86-64)
//   odd_stacks aborts    the same; its return address is abort
//   odd_stacks exits     the same; its return address is a function of the program
//   odd_stacks zero runs, aborts runs, exits runs
//                        run there instead, and end
//   odd_stacks hole      runs for some milliseconds below frames that are mostly untouched, and ends
//   odd_stacks holes     runs that as a child, a hundred times
//   odd_stacks changing  runs on both stacks in turn, and ends (x86-64)
//   odd_stacks below     runs where the caller's frame pointer is below the stack pointer, and ends
//                        (x86-64)
//   odd_stacks visits    threads run on their stacks, each then once on another one, and ends
//   odd_stacks named     waits in a function whose name has more than 200 characters
//
// Each prints `ready` when it is there.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

static NOINLINE void *waits(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static volatile unsigned long spun;

static NOINLINE int recurse(int depth)
{
    volatile char room[200];
    room[0] = (char) depth;
    if (depth > 0)
        return recurse(depth - 1) + room[0];
    ready();
    for (;;)
        spun++;
}

// Of each frame, only the ends are ever touched: the pages between them are not present.
static NOINLINE void below_holes(int frames)
{
    volatile char room[24 << 10];
    room[0] = room[sizeof room - 1] = (char) frames;
    if (frames > 1)
        below_holes(frames - 1);
    else
        for (int i = 0; i < 6000000; i++)
            spun++;
    spun += (unsigned char) room[0];
}

static void *deep(void *unused)
{
    recurse(50000);
    return unused;
}

static void in_context(void)
{
    ready();
    waits(NULL);
    spun++;
}

#ifdef __x86_64__
// Like the run-time system of OCaml 5: code runs on a stack in the heap, and calls functions of C
// on the thread's own. Each switch leaves the old stack pointer on the new stack, and is described
// as a signal frame.
void on_other_stack(void (*function)(void), char *end);
void on_own_stack(void (*function)(void));
void on_own_stack_by_rbx(void (*function)(void));
__asm__(".text\n"
        ".globl on_other_stack\n"
        ".type on_other_stack, @function\n"
        "on_other_stack:\n"
        ".cfi_startproc\n"
        ".cfi_signal_frame\n"
        "movq %rsp, own_stack(%rip)\n"
        "movq %rsp, -16(%rsi)\n"
        "leaq -16(%rsi), %rsp\n"
        ".cfi_escape 0x0f, 5, 0x77, 0, 0x06, 0x23, 8\n" // CFA: the word at rsp, plus 8
        "call *%rdi\n"
        "movq (%rsp), %rsp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size on_other_stack, . - on_other_stack\n"
        ".globl on_own_stack\n"
        ".type on_own_stack, @function\n"
        "on_own_stack:\n"
        ".cfi_startproc\n"
        ".cfi_signal_frame\n"
        "movq own_stack(%rip), %rax\n"
        "leaq -24(%rax), %rax\n"
        "movq %rsp, 8(%rax)\n"
        "movq %rax, %rsp\n"
        ".cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 8\n" // the word at rsp + 8, plus 8
        "call *%rdi\n"
        "movq 8(%rsp), %rsp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size on_own_stack, . - on_own_stack\n"
        // OCaml's code itself does this for functions of C that need no stub.
        ".globl on_own_stack_by_rbx\n"
        ".type on_own_stack_by_rbx, @function\n"
        "on_own_stack_by_rbx:\n"
        ".cfi_startproc\n"
        "pushq %rbx\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbx, -16\n"
        "movq %rsp, %rbx\n"
        ".cfi_def_cfa_register %rbx\n"
        "movq own_stack(%rip), %rax\n"
        "leaq -24(%rax), %rsp\n"
        "call *%rdi\n"
        "movq %rbx, %rsp\n"
        ".cfi_def_cfa_register %rsp\n"
        "popq %rbx\n"
        ".cfi_def_cfa_offset 8\n"
        ".cfi_restore %rbx\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size on_own_stack_by_rbx, . - on_own_stack_by_rbx\n"
        ".local own_stack\n"
        ".comm own_stack, 8, 8\n");

static NOINLINE void at_home(void)
{
    spun++; // without it, compilers make one function of this and another one
    ready();
    waits(NULL);
}

static NOINLINE void elsewhere(void)
{
    on_own_stack(at_home);
    spun++;
}

static NOINLINE void by_rbx(void)
{
    on_own_stack_by_rbx(at_home);
    spun++;
}

static NOINLINE void spin_here(void)
{
    for (unsigned long end = spun + 12000000; spun < end;)
        spun++;
}

static NOINLINE void change(void)
{
    for (int round = 0; round < 100; round++) {
        spin_here();
        on_own_stack(spin_here);
        on_own_stack_by_rbx(spin_here);
    }
}

// Like libffi's ffi_call_unix64, which frees its frame before it restores the frame pointer from
// there, and like its caller.
void call_below(unsigned long rounds);
__asm__(".text\n"
        ".type below, @function\n"
        "below:\n"
        ".cfi_startproc\n"
        "pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "leaq -64(%rsp), %rbp\n"
        "leaq 8(%rsp), %rsp\n"
        ".cfi_def_cfa_offset 8\n"
        "1: decq %rdi\n"
        "jnz 1b\n"
        "movq -8(%rsp), %rbp\n"
        ".cfi_restore %rbp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size below, . - below\n"
        ".globl call_below\n"
        ".type call_below, @function\n"
        "call_below:\n"
        ".cfi_startproc\n"
        "pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "andq $-64, %rsp\n"
        "call below\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size call_below, . - call_below\n");

static int in_fibre_runs;

static NOINLINE void in_fibre(void)
{
    ready();
    if (in_fibre_runs)
        for (int round = 0; round < 100; round++)
            spin_here();
    else
        waits(NULL);
    if (spun)
        _exit(0);
}

static NOINLINE void exits(void)
{
    _exit(3);
}

// Runs in_fibre on a stack of its own, at the end of its memory, as if `next` had called it.
static void fibre(void *next)
{
    size_t size = 64 << 10;
    char *memory = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory + size, size, PROT_NONE);
    void **top = (void **) (memory + size) - 2;
    top[-1] = next;
    top[-2] = in_fibre;
    __asm__ volatile("movq %0, %%rsp\n\tret" : : "r"(top - 2) : "memory");
    __builtin_unreachable();
}
#endif

static NOINLINE void a_function_whose_name_is_longer_than_any_line_part0_part1_part2_part3_part4_part5_part6_part7_part8_part9_part10_part11_part12_part13_part14_part15_part16_part17_part18_part19_part20_part21_part22_part23_part24_part25_part26_part27_part28_part29_part30_part31_part32_part33_part34_part35_part36_part37_part38_part39(void)
{
    ready();
    waits(NULL);
    spun++;
}

static void run(long milliseconds)
{
    struct timespec used;
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    while (used.tv_sec * 1000 + used.tv_nsec / 1000000 < milliseconds);
}

static NOINLINE void visit(int signal)
{
    (void)signal;
    run(110);
    spun++;
}

static NOINLINE void *visits(void *unused)
{
    static char memory[64 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    sigaltstack(&stack, NULL);
    run(100);
    raise(SIGUSR1);
    spun++;
    return unused;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    pthread_t thread;
    if (strcmp(what, "leader") == 0) {
        pthread_create(&thread, NULL, waits, NULL);
        pthread_create(&thread, NULL, waits, NULL);
        ready();
        pthread_exit(NULL);
    }
    if (strcmp(what, "hole") == 0) {
        below_holes(5);
        return 0;
    }
    if (strcmp(what, "holes") == 0) {
        for (int child = 0; child < 100; child++) {
            pid_t pid = fork();
            if (pid == 0)
                execl("/proc/self/exe", "hole", "hole", NULL);
            waitpid(pid, NULL, 0);
        }
        return 0;
    }
    if (strcmp(what, "visits") == 0) {
        struct sigaction action = {.sa_handler = visit, .sa_flags = SA_ONSTACK};
        sigaction(SIGUSR1, &action, NULL);
        for (int visitor = 0; visitor < 25; visitor++) {
            pthread_create(&thread, NULL, visits, NULL);
            pthread_join(thread, NULL);
        }
        return 0;
    }
    if (strcmp(what, "deep") == 0) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 64 << 20);
        pthread_create(&thread, &attributes, deep, NULL);
        pthread_join(thread, NULL);
    }
    if (strcmp(what, "context") == 0) {
        static char stack[64 << 10];
        static ucontext_t own, other;
        getcontext(&other);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = sizeof stack;
        other.uc_link = &own;
        makecontext(&other, in_context, 0);
        swapcontext(&own, &other);
    }
#ifdef __x86_64__
    static char stack[64 << 10] __attribute__((aligned(16)));
    if (strcmp(what, "elsewhere") == 0) {
        on_other_stack(elsewhere, stack + sizeof stack);
        spun++;
    }
    if (strcmp(what, "by-rbx") == 0) {
        on_other_stack(by_rbx, stack + sizeof stack);
        spun++;
    }
    if (strcmp(what, "changing") == 0) {
        on_other_stack(change, stack + sizeof stack);
        return 0;
    }
    in_fibre_runs = argc > 2;
    if (strcmp(what, "zero") == 0)
        fibre(NULL);
    if (strcmp(what, "aborts") == 0)
        fibre(abort);
    if (strcmp(what, "exits") == 0)
        fibre(exits);
    if (strcmp(what, "below") == 0) {
        ready();
        call_below(8000000000);
        return 0;
    }
#endif
    if (strcmp(what, "named") == 0)
        a_function_whose_name_is_longer_than_any_line_part0_part1_part2_part3_part4_part5_part6_part7_part8_part9_part10_part11_part12_part13_part14_part15_part16_part17_part18_part19_part20_part21_part22_part23_part24_part25_part26_part27_part28_part29_part30_part31_part32_part33_part34_part35_part36_part37_part38_part39();
    return 2;
}
