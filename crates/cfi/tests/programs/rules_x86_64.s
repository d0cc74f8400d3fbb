# Rules that no compiler writes often: each function has one, and says it truly.
	.text
	.globl	plain, outermost, in_register, by_rax, drap, escaped, trampoline, fp_in_register
	.type	plain, @function
plain:
	.cfi_startproc
	push	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset rbx, -16
	pop	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	plain, .-plain
# Nobody called it.
	.type	outermost, @function
outermost:
	.cfi_startproc
	.cfi_undefined rip
	hlt
	nop
	.cfi_endproc
	.size	outermost, .-outermost
# The caller's address is taken from the stack into rbx.
	.type	in_register, @function
in_register:
	.cfi_startproc
	pop	%rbx
	.cfi_def_cfa_offset 0
	.cfi_register rip, rbx
	nop
	jmp	*%rbx
	.cfi_endproc
	.size	in_register, .-in_register
# The stack is another one while rax keeps the old.
	.type	by_rax, @function
by_rax:
	.cfi_startproc
	mov	%rsp, %rax
	.cfi_def_cfa rax, 8
	lea	-64(%rdi), %rsp
	mov	%rax, %rsp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.size	by_rax, .-by_rax
# As gcc realigns a stack.
	.type	drap, @function
drap:
	.cfi_startproc
	lea	8(%rsp), %r10
	.cfi_def_cfa r10, 0
	and	$-64, %rsp
	push	-8(%r10)
	push	%rbp
	mov	%rsp, %rbp
	.cfi_escape 0x10, 0x06, 0x02, 0x76, 0x00
	push	%r10
	.cfi_escape 0x0f, 0x03, 0x76, 0x78, 0x06
	nop
	pop	%r10
	.cfi_def_cfa r10, 0
	pop	%rbp
	lea	-8(%r10), %rsp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.size	drap, .-drap
# DW_CFA_def_cfa_expression rsp + 16 and DW_CFA_val_expression rbp = CFA - 32: neither is what compilers write.
	.type	escaped, @function
escaped:
	.cfi_startproc
	push	%rdi
	.cfi_escape 0x0f, 0x04, 0x77, 0x00, 0x40, 0x22
	nop
	pop	%rdi
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.size	escaped, .-escaped
# The caller's rbp waits in r11.
	.type	fp_in_register, @function
fp_in_register:
	.cfi_startproc
	mov	%rbp, %r11
	.cfi_register rbp, r11
	xor	%ebp, %ebp
	mov	%r11, %rbp
	.cfi_restore rbp
	ret
	.cfi_endproc
	.size	fp_in_register, .-fp_in_register
	.type	trampoline, @function
trampoline:
	.cfi_startproc
	.cfi_signal_frame
	nop
	ret
	.cfi_endproc
	.size	trampoline, .-trampoline
	.section	.note.GNU-stack,"",@progbits
