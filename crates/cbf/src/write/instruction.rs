//! Encoding instructions in the fewest bytes.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "numbers of bytes from 1 to 8, of bits up to 64"
)]

use crate::WordSize;
use crate::constants::*;

/// The bytes of one instruction: the first, and the others in one word, so that they are copied
/// without a loop.
pub(super) struct Instruction {
    opcode: u8,
    operand: [u8; 8],
    len: usize,
}

impl Instruction {
    /// `pc`, `ra`, `async`: the address itself if it is shorter than its distance from `base`, or
    /// if there is no base.
    #[inline(always)]
    pub(super) fn address(opcode: u8, address: u64, base: Option<u64>, word: WordSize) -> Instruction {
        let absolute = word.sign_extend(address);
        if let Some(base) = base {
            let relative = word.sign_extend(address.wrapping_sub(base));
            // Mostly the first comparison is enough, which takes less time than counting twice.
            if magnitude(relative) <= magnitude(absolute) || signed_bytes(relative) <= signed_bytes(absolute) {
                return Self::with_value(opcode, relative as u64, signed_bytes(relative));
            }
        }
        Self::with_value(opcode | ADDRESS_ABSOLUTE, absolute as u64, signed_bytes(absolute))
    }

    /// `omit`.
    #[inline]
    pub(super) fn omit(count: u64) -> Instruction {
        Self::with_count(OMIT, OMIT_EXTERNAL, OMIT_COUNT_MASK, count)
    }

    /// `rep`: `count` further copies.
    #[inline]
    pub(super) fn rep(count: u64) -> Instruction {
        Self::with_count(REP, REP_EXTERNAL, REP_COUNT_MASK, count)
    }

    /// The number of bytes.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Writes the instruction at the start of `out`, and meaningless bytes after it if there is
    /// room for the longest one.
    #[inline(always)]
    pub(super) fn put(self, out: &mut [u8]) {
        match out.first_chunk_mut::<9>() {
            Some([opcode, operand @ ..]) => (*opcode, *operand) = (self.opcode, self.operand),
            None => put_bytewise(out, self.opcode, self.operand),
        }
    }

    /// Stores `count - 1` in the opcode if it fits. 0 does not.
    #[inline]
    fn with_count(opcode: u8, external: u8, mask: u8, count: u64) -> Instruction {
        match count.checked_sub(1) {
            Some(less_one) if less_one <= u64::from(mask) => Instruction {
                opcode: opcode | less_one as u8,
                operand: [0; 8],
                len: 1,
            },
            _ => Self::with_value(opcode | external, count, unsigned_bytes(count)),
        }
    }

    /// The opcode plus `bytes - 1`, followed by the low `bytes` (1 to 8) bytes of `value`.
    #[inline(always)]
    fn with_value(opcode: u8, value: u64, bytes: u32) -> Instruction {
        Instruction {
            opcode: opcode | (bytes - 1) as u8,
            operand: value.wrapping_shl(64 - bytes * 8).to_be_bytes(),
            len: 1 + bytes as usize,
        }
    }
}

/// Writes as much of an instruction as there is room for.
#[cold]
#[inline(never)]
fn put_bytewise(out: &mut [u8], opcode: u8, operand: [u8; 8]) {
    let bytes = core::iter::once(opcode).chain(operand);
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
}

/// The bits that are not copies of the sign.
#[inline(always)]
fn magnitude(value: i64) -> u64 {
    (value ^ value >> 63) as u64
}

/// The fewest bytes (1 to 8) that yield `value` after sign extension.
#[inline(always)]
fn signed_bytes(value: i64) -> u32 {
    (65 - magnitude(value).leading_zeros()).div_ceil(8)
}

/// The fewest bytes (1 to 8) that hold `value`.
#[inline]
fn unsigned_bytes(value: u64) -> u32 {
    (64 - value.leading_zeros()).div_ceil(8).max(1)
}
