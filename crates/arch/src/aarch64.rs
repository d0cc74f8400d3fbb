//! AArch64 (DWARF for the Arm 64-bit Architecture, section 4.1: register numbers).

use crate::{Arch, Cpu, PerfRegisters, Register, SignalFrame, UserRegisters, VectorRegisters};

/// Frame pointer.
pub const X29: Register = Register(29);
/// Link register.
pub const X30: Register = Register(30);
/// Stack pointer.
pub const SP: Register = Register(31);

/// `struct rt_sigframe`: 128 bytes of `siginfo`, then `struct ucontext`, whose `uc_mcontext` begins
/// at its byte 176 with the fault address, then x0 to x30, SP and PC.
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

/// The CPU, with the addresses that programs see unless they ask for more.
pub static ARCH: Arch = sized(48);

/// The CPU with each size of addresses that Linux can be built for, and one that signs nothing.
static SIZED: [Arch; 7] = [
    sized(36),
    sized(39),
    sized(42),
    sized(47),
    sized(48),
    sized(52),
    sized(64),
];

/// The highest bit of a signature: bit 55 says whose address it is, and those above are a tag.
const HIGHEST_SIGNED: u8 = 54;

/// See [`Arch::signed_in`].
pub(crate) fn signed_in(mask: u64) -> Option<&'static Arch> {
    let below = |bits: u8| u64::MAX.checked_shr(64_u32.saturating_sub(bits.into())).unwrap_or(0);
    let signature = |arch: &Arch| below(HIGHEST_SIGNED.saturating_add(1)) & !below(arch.address_bits);
    SIZED.iter().find(|arch| signature(arch) == mask)
}

/// See [`Arch::with_code_below`].
pub(crate) fn with_code_below(end: u64) -> &'static Arch {
    let last = end.saturating_sub(1);
    let mut sizes = SIZED.iter().filter(|_| end > 0);
    sizes.find(|arch| arch.strip(last) == last).unwrap_or(&ARCH)
}

const fn sized(address_bits: u8) -> Arch {
    Arch { address_bits, ..CPU }
}

const CPU: Arch = Arch {
    cpu: Cpu::Aarch64,
    pointer_bytes: 8,
    sp: SP,
    fp: X29,
    ra: X30,
    link_register: true,
    sp_from_cfa: 0,
    ra_from_fp: 8,
    cfa_from_fp: 16,
    min_instruction: 4,
    address_bits: 64,
    red_zone: 0,
    // Procedure Call Standard for the Arm 64-bit Architecture, section 6.1.1.
    preserved: &[
        Register(19),
        Register(20),
        Register(21),
        Register(22),
        Register(23),
        Register(24),
        Register(25),
        Register(26),
        Register(27),
        Register(28),
        Register(29),
    ],
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
    // `struct user_pt_regs`: x0 to x30, SP, PC, PSTATE.
    user: UserRegisters {
        bytes: 272,
        pc: 256,
        general: &[
            (Register(0), 0),
            (Register(1), 8),
            (Register(2), 16),
            (Register(3), 24),
            (Register(4), 32),
            (Register(5), 40),
            (Register(6), 48),
            (Register(7), 56),
            (Register(8), 64),
            (Register(9), 72),
            (Register(10), 80),
            (Register(11), 88),
            (Register(12), 96),
            (Register(13), 104),
            (Register(14), 112),
            (Register(15), 120),
            (Register(16), 128),
            (Register(17), 136),
            (Register(18), 144),
            (Register(19), 152),
            (Register(20), 160),
            (Register(21), 168),
            (Register(22), 176),
            (Register(23), 184),
            (Register(24), 192),
            (Register(25), 200),
            (Register(26), 208),
            (Register(27), 216),
            (Register(28), 224),
            (Register(29), 232),
            (Register(30), 240),
            (Register(31), 248),
        ],
    },
    // `struct user_fpsimd_state`.
    vectors: Some(VectorRegisters {
        bytes: 528,
        first: Register(64),
        count: 32,
        offset: 0,
        name: "v",
    }),
    register_names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// `GENMASK_ULL(54, vabits_actual)` in the kernel's `asm/pointer_auth.h`.
    #[test]
    fn kernels_sign_above_their_addresses() {
        for (mask, bits) in [
            (0x007f_fff0_0000_0000, 36),
            (0x007f_ff80_0000_0000, 39),
            (0x007f_0000_0000_0000, 48),
            (0x0070_0000_0000_0000, 52),
            (0, 64),
        ] {
            let arch = ARCH.signed_in(mask).expect("some kernel has it");
            assert_eq!(arch.address_bits, bits);
            let address = 0x8_0123_4567_89ab & arch.strip(u64::MAX);
            assert_eq!(arch.strip(address | mask), address);
        }
        for mask in [u64::MAX, 1 << 54, 0x00ff_0000_0000_0000, 0x007f_ffff_ffff_ffff] {
            assert_eq!(ARCH.signed_in(mask), None, "{mask:x}");
        }
    }

    #[test]
    fn code_shows_how_long_addresses_are() {
        for (end, bits) in [
            (0, 48),
            (1, 36),
            (1 << 36, 36),
            (0x55_0080_0000, 39),
            (0xffff_f7ff_f000, 48),
            (1 << 48, 48),
            (1 + (1 << 48), 52),
            (u64::MAX, 64),
        ] {
            assert_eq!(ARCH.with_code_below(end).address_bits, bits, "{end:x}");
        }
    }
}
