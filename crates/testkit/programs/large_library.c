/* A library with 30,000 functions that have call frame information: making its table takes a while. */
__asm__(".text\n"
        ".rept 30000\n"
        ".cfi_startproc\n"
        ".skip 4, 0x90\n"
        ".cfi_def_cfa_offset 16\n"
        ".skip 4, 0x90\n"
        ".cfi_def_cfa_offset 32\n"
        ".skip 4, 0x90\n"
        ".cfi_def_cfa_offset 8\n"
        ".skip 4, 0x90\n"
        ".cfi_endproc\n"
        ".endr\n");

unsigned long large_work(unsigned long rounds) {
    volatile unsigned long sum = 1;
    for (unsigned long i = 0; i < rounds; i++) sum = sum * 3 + i;
    return sum | 1;
}
