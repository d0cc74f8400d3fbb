/* Recursion below code that starts the program without call frame information, as in programs of musl: without a C library.
 * Uses one second of CPU time. */

static long call(long number, long first, void *second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

static volatile unsigned long sink;

__attribute__((noinline)) void compute(void) {
    long time[2] = {0, 0};
    do {
        for (unsigned i = 0; i < 100000; i++) sink += i;
        call(228, 2, time); /* clock_gettime(CLOCK_PROCESS_CPUTIME_ID) */
    } while (time[0] < 1);
}

__attribute__((noinline)) void descend(unsigned level) {
    volatile unsigned long kept[8];
    for (unsigned i = 0; i < 8; i++) kept[i] = level + i;
    if (level == 0) compute();
    else descend(level - 1);
    sink += kept[level % 8];
}

void run(void) {
    descend(2000);
    sink++;
}

__asm__(".globl _start\n"
        "_start: xor %ebp, %ebp\n"
        "        mov %rsp, %rdi\n"
        "        and $-16, %rsp\n"
        "        call begin\n"
        "begin:  push %rbx\n"
        "        sub $32, %rsp\n"
        "        call run\n"
        "        mov $60, %eax\n" /* exit */
        "        xor %edi, %edi\n"
        "        syscall\n"
        "        hlt\n");
