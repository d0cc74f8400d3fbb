//! AArch64 (DWARF for the Arm 64-bit Architecture, section 4.1: register numbers).

use crate::{Arch, PerfRegisters, Register, SignalFrame};

/// Frame pointer.
pub const X29: Register = Register(29);
/// Link register.
pub const X30: Register = Register(30);
/// Stack pointer.
pub const SP: Register = Register(31);

/// `struct rt_sigframe`: 128 bytes of `siginfo`, then `struct ucontext`, whose `uc_mcontext` begins at its byte 176
/// with the fault address, then x0 to x30, SP and PC.
const SIGNAL_FRAME: SignalFrame = SignalFrame {
    pc_offset: 568,
    registers: &[
        (Register(0), 312),
        (Register(1), 320),
        (Register(2), 328),
        (Register(3), 336),
        (Register(4), 344),
        (Register(5), 352),
        (Register(6), 360),
        (Register(7), 368),
        (Register(8), 376),
        (Register(9), 384),
        (Register(10), 392),
        (Register(11), 400),
        (Register(12), 408),
        (Register(13), 416),
        (Register(14), 424),
        (Register(15), 432),
        (Register(16), 440),
        (Register(17), 448),
        (Register(18), 456),
        (Register(19), 464),
        (Register(20), 472),
        (Register(21), 480),
        (Register(22), 488),
        (Register(23), 496),
        (Register(24), 504),
        (Register(25), 512),
        (Register(26), 520),
        (Register(27), 528),
        (Register(28), 536),
        (Register(29), 544),
        (Register(30), 552),
        (Register(31), 560),
    ],
};

/// The CPU.
pub static ARCH: Arch = Arch {
    name: "aarch64",
    pointer_bytes: 8,
    sp: SP,
    fp: X29,
    ra: X30,
    link_register: true,
    sp_from_cfa: 0,
    ra_from_fp: 8,
    cfa_from_fp: 16,
    min_instruction: 4,
    // Linux gives user space at most 52 bits; the pointer authentication code lies above bit 54 or 47, and
    // programs see 48-bit addresses unless they ask for more.
    address_bits: 48,
    red_zone: 0,
    signal_frame: SIGNAL_FRAME,
    perf: PerfRegisters {
        general: &[
            (0, Register(0)),
            (1, Register(1)),
            (2, Register(2)),
            (3, Register(3)),
            (4, Register(4)),
            (5, Register(5)),
            (6, Register(6)),
            (7, Register(7)),
            (8, Register(8)),
            (9, Register(9)),
            (10, Register(10)),
            (11, Register(11)),
            (12, Register(12)),
            (13, Register(13)),
            (14, Register(14)),
            (15, Register(15)),
            (16, Register(16)),
            (17, Register(17)),
            (18, Register(18)),
            (19, Register(19)),
            (20, Register(20)),
            (21, Register(21)),
            (22, Register(22)),
            (23, Register(23)),
            (24, Register(24)),
            (25, Register(25)),
            (26, Register(26)),
            (27, Register(27)),
            (28, Register(28)),
            (29, Register(29)),
            (30, Register(30)),
            (31, Register(31)),
        ],
        pc: 32,
    },
    register_names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp",
    ],
};
