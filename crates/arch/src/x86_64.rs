//! x86-64 (System V ABI, AMD64 supplement, figure 3.36: DWARF register numbers).

use crate::{Arch, PerfRegisters, Register, SignalFrame};

/// Frame pointer.
pub const RBP: Register = Register(6);
/// Stack pointer.
pub const RSP: Register = Register(7);
/// Return address column.
pub const RA: Register = Register(16);

/// `struct rt_sigframe` as the restorer sees it: the return address is popped, so RSP points at `struct ucontext`,
/// whose `uc_mcontext` begins at byte 40 with r8.
const SIGNAL_FRAME: SignalFrame = SignalFrame {
    pc_offset: 168,
    registers: &[
        (Register(8), 40),
        (Register(9), 48),
        (Register(10), 56),
        (Register(11), 64),
        (Register(12), 72),
        (Register(13), 80),
        (Register(14), 88),
        (Register(15), 96),
        (Register(5), 104),
        (Register(4), 112),
        (Register(6), 120),
        (Register(3), 128),
        (Register(1), 136),
        (Register(0), 144),
        (Register(2), 152),
        (Register(7), 160),
    ],
};

/// The CPU.
pub static ARCH: Arch = Arch {
    name: "x86_64",
    pointer_bytes: 8,
    sp: RSP,
    fp: RBP,
    ra: RA,
    link_register: false,
    sp_from_cfa: 0,
    ra_from_fp: 8,
    cfa_from_fp: 16,
    min_instruction: 1,
    address_bits: 64,
    red_zone: 128,
    signal_frame: SIGNAL_FRAME,
    perf: PerfRegisters {
        general: &[
            (0, Register(0)),
            (1, Register(3)),
            (2, Register(2)),
            (3, Register(1)),
            (4, Register(4)),
            (5, Register(5)),
            (6, Register(6)),
            (7, Register(7)),
            (16, Register(8)),
            (17, Register(9)),
            (18, Register(10)),
            (19, Register(11)),
            (20, Register(12)),
            (21, Register(13)),
            (22, Register(14)),
            (23, Register(15)),
        ],
        pc: 8,
    },
    register_names: &[
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "rip",
    ],
};
