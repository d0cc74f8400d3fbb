/* fibre SECONDS
 *
 * Works for SECONDS of the CPU as programs of OCaml 5 do: 3,000 calls deep on a stack in the heap, from
 * where C is called on the thread's stack. Call frame information describes both changes of the
 * stack by expressions. x86-64 only. */
#include "common.h"
#include <stdlib.h>

/* Calls a function on another stack, whose end is given. The old stack pointer is kept there. */
uint64_t on_stack(void (*function)(void), void *end);
/* Calls `work` on the thread's stack, and keeps the old stack pointer there. */
void call_back(void);

__asm__(".pushsection .text\n"
        ".globl on_stack\n"
        ".type on_stack, @function\n"
        "on_stack:\n"
        ".cfi_startproc\n"
        ".cfi_signal_frame\n"
        "    push %rbp\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_offset rbp, -16\n"
        "    mov %rsp, thread_stack(%rip)\n"
        "    mov %rsp, -16(%rsi)\n"
        "    lea -16(%rsi), %rsp\n"
        /* DW_CFA_def_cfa_expression: DW_OP_breg7 0; DW_OP_deref; DW_OP_plus_uconst 16 */
        ".cfi_escape 0x0f, 5, 0x77, 0, 0x06, 0x23, 16\n"
        "    call *%rdi\n"
        "    mov (%rsp), %rsp\n"
        ".cfi_def_cfa rsp, 16\n"
        "    pop %rbp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size on_stack, . - on_stack\n"
        ".type call_back, @function\n"
        "call_back:\n"
        ".cfi_startproc\n"
        ".cfi_signal_frame\n"
        "    mov thread_stack(%rip), %r11\n"
        "    mov %rsp, -8(%r11)\n"
        "    lea -16(%r11), %rsp\n"
        /* DW_CFA_def_cfa_expression: DW_OP_breg7 8; DW_OP_deref; DW_OP_plus_uconst 8 */
        ".cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 8\n"
        "    call work\n"
        "    mov 8(%rsp), %rsp\n"
        ".cfi_def_cfa rsp, 8\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size call_back, . - call_back\n"
        ".local thread_stack\n"
        ".comm thread_stack, 8, 8\n"
        ".popsection\n");

static uint64_t rounds, result;

FRAME void work(void) { result += spin(rounds); }

static FRAME void deep(unsigned depth) {
    if (depth)
        deep(depth - 1);
    else
        call_back();
    result++;
}

static void begin(void) { deep(3000); }

int main(int argc, char **argv) {
    double end = cpu_time() + argument(argc, argv, 1, 3);
    enum { BYTES = 1 << 20 };
    char *stack = malloc(BYTES);
    if (!stack)
        return 1;
    rounds = rounds_per_ms() / 4;
    while (cpu_time() < end) on_stack(begin, stack + BYTES - 64);
    return result == 0;
}
