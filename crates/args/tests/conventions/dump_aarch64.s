// Writes down what it was called with, and lets record() write that out.
	.globl	dump
	.type	dump, %function
dump:
	adrp	x9, registers
	add	x9, x9, :lo12:registers
	stp	x0, x1, [x9]
	stp	x2, x3, [x9, 16]
	stp	x4, x5, [x9, 32]
	stp	x6, x7, [x9, 48]
	str	q0, [x9, 64]
	str	q1, [x9, 128]
	str	q2, [x9, 192]
	str	q3, [x9, 256]
	str	q4, [x9, 320]
	str	q5, [x9, 384]
	str	q6, [x9, 448]
	str	q7, [x9, 512]
	mov	x0, sp
	stp	x29, x30, [sp, -16]!
	bl	record
	ldp	x29, x30, [sp], 16
	ret
	.size	dump, .-dump
	.section	.note.GNU-stack, "", %progbits
