//! A fast path for the form of most fields. Other fields, those at the end of a packet and damaged
//! ones take the general path.

use super::shape::Shape;
use crate::description::Storage;
use backtrail_wire::Endian;

/// A byte-aligned number of whole bytes without a meaning for the packet's structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Bits of a 64-bit word that do not belong to the number.
    unused: u8,
    /// The number's bytes.
    bytes: u8,
    signed: bool,
    order: Endian,
    /// Its alignment in bits, less one.
    align: u64,
}

impl Whole {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`size` is from 8 to 64, an alignment a power of two"
    )]
    pub(super) fn of(shape: &Shape, align: u64) -> Option<Whole> {
        let (size, order, signed) = match shape {
            Shape::Integer(integer)
            | Shape::Enumeration(integer, _)
            | Shape::BitMap(integer, _)
            | Shape::Boolean(integer) => match (integer.storage, integer.role) {
                (Storage::Bits, None) => (integer.size, integer.byte_order, integer.signed),
                _ => return None,
            },
            Shape::Float(float) if !float.reversed => (float.size, float.byte_order, false),
            _ => return None,
        };
        (size.is_multiple_of(8) && (8..=64).contains(&size) && align >= 8).then(|| Whole {
            unused: 64 - size as u8,
            bytes: size as u8 / 8,
            signed,
            order,
            align: align - 1,
        })
    }

    /// Its size.
    pub(super) fn bits(self) -> u64 {
        u64::from(self.bytes).saturating_mul(8)
    }

    /// Its bits, sign-extended for a signed number, and its end.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "at most 64 bits after an aligned position in memory"
    )]
    pub(super) fn read(self, data: &[u8], position: u64, limit: u64) -> Option<(u64, u64)> {
        let start = position.checked_add(self.align)? & !self.align;
        let end = start + u64::from(self.bytes) * 8;
        let window = data.get((start / 8) as usize..)?.first_chunk()?;
        if end > limit {
            return None;
        }
        // Moves the number to the top of the word.
        let top = match self.order {
            Endian::Little => u64::from_le_bytes(*window) << self.unused,
            Endian::Big => u64::from_be_bytes(*window),
        };
        let value = match self.signed {
            true => (top as i64 >> self.unused) as u64,
            false => top >> self.unused,
        };
        Some((value, end))
    }
}
