//! x86-64 (System V ABI, AMD64 supplement, figure 3.36: DWARF register numbers).

use crate::{Arch, Cpu, PerfRegisters, Register, SignalFrame, UserRegisters, VectorRegisters};

/// Frame pointer.
pub const RBP: Register = Register(6);
/// Stack pointer.
pub const RSP: Register = Register(7);
/// Return address column.
pub const RA: Register = Register(16);

/// `struct rt_sigframe` as the restorer sees it: the return address is popped, so RSP points at
/// `struct ucontext`, whose `uc_mcontext` begins at byte 40 with r8.
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
    cpu: Cpu::X86_64,
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
    // Section 3.2.1.
    preserved: &[Register(3), RBP, Register(12), Register(13), Register(14), Register(15)],
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
    // `asm/user_64.h`: r15 first, RIP after orig_rax, RSP after CS and the flags.
    user: UserRegisters {
        bytes: 216,
        pc: 128,
        general: &[
            (Register(15), 0),
            (Register(14), 8),
            (Register(13), 16),
            (Register(12), 24),
            (Register(6), 32),
            (Register(3), 40),
            (Register(11), 48),
            (Register(10), 56),
            (Register(9), 64),
            (Register(8), 72),
            (Register(0), 80),
            (Register(2), 88),
            (Register(1), 96),
            (Register(4), 104),
            (Register(5), 112),
            (Register(7), 152),
        ],
    },
    // `struct fxregs_state`.
    vectors: Some(VectorRegisters {
        bytes: 512,
        first: Register(17),
        count: 16,
        offset: 160,
        name: "xmm",
    }),
    register_names: &[
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "rip",
    ],
};
