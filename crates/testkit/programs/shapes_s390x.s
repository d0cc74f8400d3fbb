# Call frame information that no compiler makes so often: each function has the rules that its name says. Never run.
    .text
in_registers:
    .cfi_startproc
    nopr
    .cfi_register 11, 16
    nopr
    .cfi_register 14, 17
    nopr
    .cfi_def_cfa 11, 320
    nopr
    .cfi_restore 14
    nopr
    .cfi_restore 11
    .cfi_offset 11, -72
    nopr
    .cfi_offset 14, -48
    nopr
    .cfi_endproc
fp_alone:
    .cfi_startproc
    nopr
    .cfi_offset 11, -72
    nopr
    .cfi_offset 14, -48
    nopr
    .cfi_restore 14
    nopr
    .cfi_endproc
outermost:
    .cfi_startproc
    .cfi_undefined 14
    nopr
    .cfi_endproc
signal_frame:
    .cfi_startproc
    .cfi_signal_frame
    nopr
    .cfi_def_cfa 5, 160
    nopr
    .cfi_register 14, 17
    nopr
    .cfi_endproc
large_frame:
    .cfi_startproc
    nopr
    .cfi_def_cfa_offset 96160
    .cfi_offset 14, -96000
    nopr
    .cfi_endproc
