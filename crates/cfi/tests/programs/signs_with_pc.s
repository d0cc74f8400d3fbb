/* One function signs its return address with the program counter too, one with the other key. */
	.text
	.globl signs
	.type signs, %function
signs:
	.cfi_startproc
	.cfi_negate_ra_state_with_pc
	hint #39
	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	str x19, [sp, #16]
	.cfi_offset 19, -16
	bl other
	.cfi_remember_state
	cbz x0, 1f
	ldr x19, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_restore 30
	.cfi_restore 29
	.cfi_restore 19
	.cfi_def_cfa_offset 0
	.cfi_negate_ra_state_with_pc
	hint #39
	ret
1:	.cfi_restore_state
	add x0, x0, #1
	b 1b
	.cfi_endproc
	.size signs, .-signs
	.globl other
	.type other, %function
other:
	.cfi_startproc
	.cfi_b_key_frame
	hint #27
	.cfi_negate_ra_state
	stp x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset 29, -16
	.cfi_offset 30, -8
	ldp x29, x30, [sp], #16
	.cfi_restore 30
	.cfi_restore 29
	.cfi_def_cfa_offset 0
	hint #31
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size other, .-other
