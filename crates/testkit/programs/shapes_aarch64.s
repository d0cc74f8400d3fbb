// Call frame information that no compiler makes so often: each function has the rules that its name says. Never run.
    .text
signed_with_key_b:
    .cfi_startproc
    .cfi_b_key_frame
    paciasp
    .cfi_negate_ra_state
    nop
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    nop
    .cfi_def_cfa 29, 32
    nop
    .cfi_def_cfa 31, 0
    .cfi_restore 29
    .cfi_restore 30
    nop
    .cfi_negate_ra_state
    nop
    .cfi_endproc
ra_alone:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 16
    .cfi_offset 30, -16
    nop
    .cfi_endproc
outermost:
    .cfi_startproc
    .cfi_undefined 30
    nop
    .cfi_endproc
signal_frame:
    .cfi_startproc
    .cfi_signal_frame
    nop
    .cfi_endproc
large_frame:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 50000
    .cfi_offset 29, -50000
    .cfi_offset 30, -49992
    nop
    .cfi_endproc
