//! Encoding instructions in the fewest bytes.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "numbers of bytes from 1 to 8, of bits up to 64"
)]

use crate::WordSize;
use crate::constants::*;

/// The bytes of one instruction.
pub(super) struct Instruction {
    bytes: [u8; 9],
    len: usize,
}

impl Instruction {
    /// `pc`, `ra`, `async`: the address itself if it is shorter than its distance from `base`, or
    /// if there is no base.
    pub(super) fn address(opcode: u8, address: u64, base: Option<u64>, word: WordSize) -> Instruction {
        let absolute = word.sign_extend(address);
        let absolute_bytes = signed_bytes(absolute);
        if let Some(base) = base {
            let relative = word.sign_extend(address.wrapping_sub(base));
            let relative_bytes = signed_bytes(relative);
            if relative_bytes <= absolute_bytes {
                return Self::with_value(opcode, relative as u64, relative_bytes);
            }
        }
        Self::with_value(opcode | ADDRESS_ABSOLUTE, absolute as u64, absolute_bytes)
    }

    /// `omit`.
    pub(super) fn omit(count: u64) -> Instruction {
        Self::with_count(OMIT, OMIT_EXTERNAL, OMIT_COUNT_MASK, count)
    }

    /// `rep`: `count` further copies.
    pub(super) fn rep(count: u64) -> Instruction {
        Self::with_count(REP, REP_EXTERNAL, REP_COUNT_MASK, count)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// Stores `count - 1` in the opcode if it fits. 0 does not.
    fn with_count(opcode: u8, external: u8, mask: u8, count: u64) -> Instruction {
        match count.checked_sub(1) {
            Some(less_one) if less_one <= u64::from(mask) => Instruction {
                bytes: [opcode | less_one as u8, 0, 0, 0, 0, 0, 0, 0, 0],
                len: 1,
            },
            _ => Self::with_value(opcode | external, count, unsigned_bytes(count)),
        }
    }

    /// The opcode plus `bytes - 1`, followed by the low `bytes` (1 to 8) bytes of `value`.
    fn with_value(opcode: u8, value: u64, bytes: u32) -> Instruction {
        let [a, b, c, d, e, f, g, h] = value.wrapping_shl(64 - bytes * 8).to_be_bytes();
        Instruction {
            bytes: [opcode | (bytes - 1) as u8, a, b, c, d, e, f, g, h],
            len: 1 + bytes as usize,
        }
    }
}

/// The fewest bytes (1 to 8) that yield `value` after sign extension.
fn signed_bytes(value: i64) -> u32 {
    let sign_bits = value.leading_zeros().max(value.leading_ones());
    (65 - sign_bits).div_ceil(8)
}

/// The fewest bytes (1 to 8) that hold `value`.
fn unsigned_bytes(value: u64) -> u32 {
    (64 - value.leading_zeros()).div_ceil(8).max(1)
}
