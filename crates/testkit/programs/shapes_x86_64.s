# Call frame information that no compiler makes so often: each function has the rules that its name says. Never run.
    .text
undefined_later:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 16
    nop
    .cfi_undefined rip
    nop
    .cfi_endproc
outermost:
    .cfi_startproc
    .cfi_undefined rip
    nop
    .cfi_endproc
signal_frame:
    .cfi_startproc
    .cfi_signal_frame
    nop
    .cfi_endproc
outermost_signal_frame:
    .cfi_startproc
    .cfi_undefined rip
    .cfi_signal_frame
    .cfi_def_cfa rbx, 8
    nop
    .cfi_endproc
# What gcc makes where main realigns the stack (DRAP).
realigned:
    .cfi_startproc
    leaq 8(%rsp), %r10
    .cfi_def_cfa r10, 0
    andq $-32, %rsp
    pushq -8(%r10)
    pushq %rbp
    .cfi_escape 0x10, 0x6, 0x2, 0x76, 0
    movq %rsp, %rbp
    pushq %r10
    .cfi_escape 0xf, 0x3, 0x76, 0x78, 0x6
    nop
    .cfi_def_cfa r10, 0
    popq %r10
    popq %rbp
    .cfi_restore rbp
    leaq -8(%r10), %rsp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
in_registers:
    .cfi_startproc
    nop
    .cfi_register rip, rbx
    nop
    .cfi_register rbp, r12
    nop
    .cfi_def_cfa rax, 24
    nop
    .cfi_def_cfa_offset 4000
    nop
    .cfi_def_cfa_offset 400000
    nop
    .cfi_offset rbp, -3000
    nop
    .cfi_endproc
wide_words:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 200
    nop
    .cfi_def_cfa_offset 40000
    nop
    .cfi_offset rbp, -39992
    nop
    .cfi_endproc
long_function:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 16
    .skip 300
    .cfi_def_cfa_offset 24
    .skip 70000
    .cfi_def_cfa_offset 16
    nop
    .cfi_endproc
