//! A fast path for the form of most event headers. Other headers, those at the end of a packet and
//! damaged ones take the general path.

use super::field::Field;
use super::shape::{FieldId, Shape};
use crate::description::{Integer, Role, Storage};
use backtrail_wire::{Endian, read_bits};

/// An id followed by a timestamp: the only form, or the first one if the id selects one of several
/// (LTTng's short headers, the RFC's of type 1).
#[derive(Clone, Copy, Debug)]
pub(super) struct UsualHeader {
    /// The header's alignment in bits, less one.
    align: u64,
    pub(super) id: Number,
    pub(super) timestamp: Number,
    /// The ids with this form.
    first: u64,
    last: u64,
}

/// A number in a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    /// Its alignment in bits, less one.
    align: u64,
    pub(super) size: u32,
    pub(super) order: Endian,
    pub(super) slot: Option<u32>,
    pub(super) role: Role,
}

/// The values of a header, and its end.
pub(super) struct Found {
    pub(super) id: u64,
    pub(super) timestamp: u64,
    pub(super) end: u64,
}

impl UsualHeader {
    #[expect(clippy::arithmetic_side_effects, reason = "alignments are powers of two")]
    pub(super) fn of(fields: &[Field], header: FieldId) -> Option<UsualHeader> {
        let field = |id: FieldId| fields.get(id as usize);
        let Field {
            shape: Shape::Struct(members),
            align,
            ..
        } = field(header)?
        else {
            return None;
        };
        let [id, second] = **members else { return None };
        let id = Number::of(field(id)?, Role::EventClassId)?;
        let (timestamp, first, last) = match &field(second)?.shape {
            Shape::Variant { slot, options, .. } if id.slot == Some(*slot) => {
                let option = options.first()?;
                let [range] = *option.ranges else { return None };
                let bounds = (u64::try_from(range.first).ok()?, u64::try_from(range.last).ok()?);
                (field(option.field)?, bounds.0, bounds.1)
            }
            _ => (field(second)?, 0, u64::MAX),
        };
        let (outer_align, timestamp) = match &timestamp.shape {
            Shape::Struct(members) => match **members {
                [only] => (timestamp.align, field(only)?),
                _ => return None,
            },
            _ => (1, timestamp),
        };
        let mut timestamp = Number::of(timestamp, Role::Timestamp)?;
        timestamp.align |= outer_align - 1;
        // Neighbours in a byte must have one byte order; the general path reports it if not.
        (timestamp.order == id.order).then_some(UsualHeader {
            align: align - 1,
            id,
            timestamp,
            first,
            last,
        })
    }

    #[inline]
    pub(super) fn read(&self, data: &[u8], position: u64, limit: u64) -> Option<Found> {
        let start = position.checked_add(self.align)? & !self.align;
        let (id, end) = self.id.read(data, start)?;
        if !start.is_multiple_of(8) || !(self.first..=self.last).contains(&id) {
            return None;
        }
        let (timestamp, end) = self.timestamp.read(data, end)?;
        (end <= limit).then_some(Found { id, timestamp, end })
    }
}

impl Number {
    #[expect(clippy::arithmetic_side_effects, reason = "alignments are powers of two")]
    fn of(field: &Field, role: Role) -> Option<Number> {
        let (Shape::Integer(integer) | Shape::Enumeration(integer, _)) = &field.shape else {
            return None;
        };
        let Integer {
            size,
            byte_order,
            signed,
            storage,
            ..
        } = *integer;
        let is_plain = storage == Storage::Bits && !signed && integer.role == Some(role);
        is_plain.then_some(Number {
            align: field.align - 1,
            size,
            order: byte_order,
            slot: field.slot,
            role,
        })
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the position is in the packet; alignment and size are small"
    )]
    fn read(&self, data: &[u8], position: u64) -> Option<(u64, u64)> {
        let start = (position + self.align) & !self.align;
        let value = read_bits(data, start, self.size, self.order).ok()?;
        Some((value, start + u64::from(self.size)))
    }
}
