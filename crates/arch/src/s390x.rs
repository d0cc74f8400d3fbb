//! s390x (ELF ABI s390x supplement, section 1.6.2: DWARF register numbers).

use crate::{Arch, Cpu, PerfRegisters, Register, SignalFrame, UserRegisters};

/// Frame pointer, where a function has one.
pub const R11: Register = Register(11);
/// Return address at a function's entry.
pub const R14: Register = Register(14);
/// Stack pointer.
pub const R15: Register = Register(15);

/// The CPU. Sampling is not supported on it; its tables can be read and written on other machines.
pub static ARCH: Arch = Arch {
    cpu: Cpu::S390x,
    pointer_bytes: 8,
    sp: R15,
    fp: R11,
    ra: R14,
    link_register: true,
    sp_from_cfa: -160,
    // There are no frame-pointer chains on s390x; the back chain at SP is optional and off by
    // default.
    ra_from_fp: 0,
    cfa_from_fp: 0,
    min_instruction: 2,
    address_bits: 64,
    red_zone: 0,
    // ELF ABI s390x Supplement, section 1.2.2.1.
    preserved: &[
        Register(6),
        Register(7),
        Register(8),
        Register(9),
        Register(10),
        Register(11),
        Register(12),
        Register(13),
    ],
    signal_frame: SignalFrame {
        pc_offset: 0,
        registers: &[],
    },
    perf: PerfRegisters { general: &[], pc: 33 },
    // `s390_regs`: the PSW's mask and address, r0 to r15, access registers, orig_gpr2.
    user: UserRegisters {
        bytes: 216,
        pc: 8,
        general: &[
            (Register(0), 16),
            (Register(1), 24),
            (Register(2), 32),
            (Register(3), 40),
            (Register(4), 48),
            (Register(5), 56),
            (Register(6), 64),
            (Register(7), 72),
            (Register(8), 80),
            (Register(9), 88),
            (Register(10), 96),
            (Register(11), 104),
            (Register(12), 112),
            (Register(13), 120),
            (Register(14), 128),
            (Register(15), 136),
        ],
    },
    vectors: None,
    register_names: &[
        "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
    ],
};
