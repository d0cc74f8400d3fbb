# Writes down what it was called with, and lets record() write that out.
	.globl	dump
	.type	dump, @function
dump:
	movq	%rdi, registers+0(%rip)
	movq	%rsi, registers+8(%rip)
	movq	%rdx, registers+16(%rip)
	movq	%rcx, registers+24(%rip)
	movq	%r8, registers+32(%rip)
	movq	%r9, registers+40(%rip)
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7
	.ifdef	WIDE
	vmovdqu64	%zmm\n, registers+64+64*\n(%rip)
	.else
	movups	%xmm\n, registers+64+64*\n(%rip)
	.endif
	.endr
	leaq	8(%rsp), %rdi
	subq	$8, %rsp
	call	record
	addq	$8, %rsp
	ret
	.size	dump, .-dump
	.section	.note.GNU-stack, "", @progbits
