//! The few instructions of AArch64 (Arm Architecture Reference Manual, C4.1) that show where code
//! continues, and what becomes of the stack pointer.

/// The stack pointer's number in additions of immediate values and as the base of an address.
pub(crate) const SP: u32 = 31;

/// Whether the bits of a mask have a value.
pub(crate) const fn is(word: u32, (mask, value): (u32, u32)) -> bool {
    word & mask == value
}

/// `nop`, `bti c`.
pub(crate) const NOP: u32 = 0xd503_201f;
pub(crate) const BTI_C: u32 = 0xd503_245f;

/// `b`.
pub(crate) const fn is_jump(word: u32) -> bool {
    word >> 26 == 0b00_0101
}

/// `ret`, with or without authentication.
pub(crate) const fn is_return(word: u32) -> bool {
    is(word, (0xfeff_f000, 0xd65f_0000))
}

/// `bl` and `blr`.
pub(crate) const fn is_call(word: u32) -> bool {
    word >> 26 == 0b10_0101 || is(word, (0xfeff_f000, 0xd63f_0000))
}

/// The distance in instructions to the target of `bl`.
pub(crate) const fn call(word: u32) -> Option<i64> {
    if word >> 26 == 0b10_0101 {
        Some(signed(word, 0, 26))
    } else {
        None
    }
}

/// The distance in instructions to where a branch that is no call leads.
pub(crate) const fn branch(word: u32) -> Option<i64> {
    match word >> 24 & 0x7f {
        _ if is_jump(word) => Some(signed(word, 0, 26)),
        0x54 | 0x34 | 0x35 => Some(signed(word, 5, 19)),
        0x36 | 0x37 => Some(signed(word, 5, 14)),
        _ => None,
    }
}

/// `br`.
pub(crate) const fn is_jump_to_register(word: u32) -> bool {
    is(word, (0xffff_fc1f, 0xd61f_0000))
}

/// Bits from `at` on as a number with a sign.
pub(crate) const fn signed(word: u32, at: u32, bits: u32) -> i64 {
    ((word as i64) << (64 - at - bits)) >> (64 - bits)
}

/// An addition of an immediate value, or a move to or from the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    pub(crate) to: u32,
    pub(crate) from: u32,
    pub(crate) bytes: i64,
}

/// `add` and `sub` of an immediate value in 64 bits, which set no flags.
pub(crate) fn addition(word: u32) -> Option<Addition> {
    let sign = match word & 0xff80_0000 {
        0x9100_0000 => 1,
        0xd100_0000 => -1,
        _ => return None,
    };
    let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
    Some(Addition {
        to: word & 31,
        from: word >> 5 & 31,
        bytes: sign * (i64::from(word >> 10 & 0xfff) << shift),
    })
}

/// The register with an address that an access to memory changes, and by how many bytes: pairs of
/// registers, and single ones.
pub(crate) fn writeback(word: u32) -> Option<(u32, i64)> {
    const PAIR: (u32, u32) = (0x3a80_0000, 0x2880_0000);
    const SINGLE: (u32, u32) = (0x3b20_0400, 0x3800_0400);
    let base = word >> 5 & 31;
    if is(word, PAIR) {
        let is_vector = word >> 26 & 1 == 1;
        let size = match word >> 30 {
            size if is_vector => 2 + size,
            0b00 | 0b01 => 2,
            _ => 3,
        };
        return Some((base, signed(word, 15, 7) << size));
    }
    is(word, SINGLE).then(|| (base, signed(word, 12, 9)))
}

/// Whether an instruction other than an addition of an immediate value may set the stack pointer.
pub(crate) fn may_set_sp(word: u32) -> bool {
    /// Additions of registers that are extended, and logical operations with immediate values.
    const TO_ANY: [(u32, u32); 2] = [(0x3fe0_0000, 0x0b20_0000), (0x1f80_0000, 0x1200_0000)];
    if word & 31 == SP && TO_ANY.iter().any(|class| is(word, *class)) {
        return true;
    }
    // Pairs and structures change the base if bit 23 is set, single registers without a scaled
    // offset if bit 10 is.
    let is_access = word >> 25 & 0b101 == 0b100;
    let is_single = word >> 27 & 0b111 == 0b111;
    let changes_base = if is_single {
        word >> 24 & 1 == 0 && word >> 10 & 1 == 1
    } else {
        word >> 23 & 1 == 1
    };
    is_access && word >> 5 & 31 == SP && changes_base
}

/// The instructions of code, which are little-endian even if data is big-endian.
pub(crate) fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}
