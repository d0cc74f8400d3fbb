//! The form of most fields, in a form that takes few steps to decode. Other fields, those at the
//! end of a packet and damaged ones go the general way.

use super::shape::Shape;
use crate::description::Storage;
use backtrail_wire::Endian;

/// A number of whole bytes on whole bytes that says nothing of the packet's structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Bits of a word of 64 that are not the number's.
    unused: u8,
    /// Bytes of it.
    bytes: u8,
    signed: bool,
    order: Endian,
    /// Its alignment in bits, less one.
    align: u64,
}

impl Whole {
    pub(super) fn of(shape: &Shape, align: u64) -> Option<Whole> {
        let (size, order, signed) = match shape {
            Shape::Integer(integer)
            | Shape::Enumeration(integer, _)
            | Shape::BitMap(integer, _)
            | Shape::Boolean(integer) => match (integer.storage, integer.role) {
                (Storage::Bits, None) => (integer.size, integer.byte_order, integer.signed),
                _ => return None,
            },
            Shape::Float(float) => (float.size, float.byte_order, false),
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

    /// Its bits, a signed number's sign-extended, and where it ends.
    #[inline]
    pub(super) fn read(self, data: &[u8], position: u64, limit: u64) -> Option<(u64, u64)> {
        let start = position.checked_add(self.align)? & !self.align;
        let end = start + u64::from(self.bytes) * 8;
        let window = data.get((start / 8) as usize..)?.first_chunk()?;
        if end > limit {
            return None;
        }
        // The number at the top of the word.
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
