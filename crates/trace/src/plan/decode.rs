//! Decodes one struct of a packet into a tape of nodes.

use super::compiled::{EventPlan, Plan, StreamPlan};
use super::field::Field;
use super::shape::{ArrayPlan, Count, FieldId, OptionPlan, Shape};
use super::tape::{Node, Raw};
use crate::constants::MAX_EMPTY_FIELDS;
use crate::description::{Integer, Role, Storage};
use crate::error::{DecodeError, DecodeErrorKind};
use backtrail_wire::{Bytes, Endian, ErrorKind, read_bits, sign_extend};

/// The values of the integers with roles, as far as they occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Roles {
    /// One bit per role that occurred: cheaper to clear than the values.
    met: u32,
    values: [u64; Role::COUNT],
}

const _: () = assert!(Role::COUNT <= u32::BITS as usize);

impl Roles {
    #[expect(clippy::indexing_slicing, reason = "the values have a place for each role")]
    pub(crate) fn get(&self, role: Role) -> Option<u64> {
        (self.met >> role as u32 & 1 == 1).then(|| self.values[role as usize])
    }

    #[expect(clippy::indexing_slicing, reason = "the values have a place for each role")]
    fn set(&mut self, role: Role, value: u64) {
        self.met |= 1 << role as u32;
        self.values[role as usize] = value;
    }

    pub(crate) fn clear(&mut self) {
        self.met = 0;
    }
}

/// A position in a packet, and everything decoded so far.
pub(crate) struct Decoder<'a> {
    pub(crate) plan: &'a Plan,
    /// The packet, or its start.
    pub(crate) data: &'a [u8],
    /// Valid bits of `data`.
    pub(crate) limit: u64,
    /// Next bit.
    pub(crate) position: u64,
    pub(crate) registers: &'a mut [u64],
    pub(crate) tape: &'a mut Vec<Node>,
    pub(crate) roles: &'a mut Roles,
    /// Cycles of the stream's clock at the last timestamp.
    pub(crate) clock: &'a mut u64,
    /// Byte order of the previous field.
    pub(crate) order: &'a mut Option<Endian>,
}

type Result<T> = std::result::Result<T, DecodeError>;

impl Decoder<'_> {
    /// Decodes a field and its contents, and returns its node's index on the tape.
    #[expect(
        clippy::indexing_slicing,
        reason = "slots and nodes are those of the plan and of this tape"
    )]
    pub(crate) fn field(&mut self, id: FieldId) -> Result<usize> {
        let plan = self.plan;
        let field = plan.field(id);
        self.align(field)?;
        let place = self.push(id, Raw::Bits(0))?;
        let raw = match &field.shape {
            Shape::Integer(integer)
            | Shape::Enumeration(integer, _)
            | Shape::BitMap(integer, _)
            | Shape::Boolean(integer) => Raw::Bits(self.integer(field, integer)?),
            Shape::Float(float) => {
                let bits = self.bits(float.size, float.byte_order)?;
                Raw::Bits(match float.reversed {
                    true => reversed(bits, float.size),
                    false => bits,
                })
            }
            Shape::String(encoding) => self.string(encoding.unit_bytes())?,
            Shape::Struct(members) => {
                for &member in members {
                    self.member(member)?;
                }
                self.group(members.len() as u64)
            }
            Shape::Array(array) => self.array(array)?,
            // A group of one: the selected option.
            Shape::Variant { slot, signed, options } => {
                let tag = self.registers[*slot as usize];
                let option = select(options, tag, *signed).ok_or(self.error(DecodeErrorKind::NoOption(tag)))?;
                self.field(option)?;
                self.group(1)
            }
            // A group of one or zero.
            Shape::Optional {
                slot,
                signed,
                ranges,
                field,
            } => {
                let tag = number(self.registers[*slot as usize], *signed);
                let there = ranges.iter().any(|range| range.contains(tag));
                if there {
                    self.field(*field)?;
                }
                self.group(u64::from(there))
            }
        };
        self.tape[place].raw = raw;
        Ok(place)
    }

    /// Decodes the header of an event of the stream class. Its fields are never requested, so nodes
    /// for them are only made if the form is not the usual one.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "slots and nodes are those of the plan and of this tape"
    )]
    pub(crate) fn event_header(&mut self, class: &StreamPlan) -> Result<()> {
        if let Some(usual) = &class.usual_header
            && let Some(found) = usual.read(self.data, self.position, self.limit)
        {
            for (number, value) in [(&usual.id, found.id), (&usual.timestamp, found.timestamp)] {
                if let Some(slot) = number.slot {
                    self.registers[slot as usize] = value;
                }
                self.roles.set(number.role, value);
            }
            *self.clock = advance(*self.clock, found.timestamp, usual.timestamp.size);
            *self.order = Some(usual.timestamp.order);
            self.position = found.end;
            return Ok(());
        }
        match class.event_header {
            Some(header) => self.field(header).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Decodes the contexts and the payload of an event, and returns the node of each.
    #[inline]
    pub(crate) fn event_fields(&mut self, class: &StreamPlan, event: &EventPlan) -> Result<[Option<usize>; 3]> {
        if let Some(flat) = event.flat.as_ref().filter(|_| self.tape.is_empty()) {
            if let Some(end) = flat.read(self.data, self.position, self.limit, self.tape) {
                self.position = end;
                return Ok(flat.roots);
            }
            self.tape.clear();
        }
        let mut roots = [None; 3];
        for (root, field) in roots
            .iter_mut()
            .zip([class.event_context, event.context, event.payload])
        {
            *root = field.map(|field| self.field(field)).transpose()?;
        }
        Ok(roots)
    }

    /// Decodes a member of a struct: mostly a number, for which this is all.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "slots and nodes are those of the plan and of this tape"
    )]
    fn member(&mut self, id: FieldId) -> Result<()> {
        let field = self.plan.field(id);
        if let Some(whole) = field.whole
            && let Some((value, end)) = whole.read(self.data, self.position, self.limit)
        {
            if let Some(slot) = field.slot {
                self.registers[slot as usize] = value;
            }
            self.position = end;
            return self.push(id, Raw::Bits(value)).map(|_| ());
        }
        self.other_member(field, id)
    }

    fn other_member(&mut self, field: &Field, id: FieldId) -> Result<()> {
        let Shape::Integer(integer) = &field.shape else {
            return self.field(id).map(|_| ());
        };
        self.align(field)?;
        let value = self.integer(field, integer)?;
        self.push(id, Raw::Bits(value)).map(|_| ())
    }

    fn group(&self, count: u64) -> Raw {
        Raw::Group {
            end: self.tape.len() as u32,
            count: count as u32,
        }
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the position is in the packet; sizes and units are at most 64 bits, and slots those of the plan"
    )]
    fn integer(&mut self, field: &Field, integer: &Integer) -> Result<u64> {
        let bits = match integer.storage {
            Storage::Bits => self.bits(integer.size, integer.byte_order)?,
            Storage::Unit(unit) => {
                let unit = u64::from(unit);
                if self.position % unit + u64::from(integer.size) > unit {
                    self.skip(unit - self.position % unit)?;
                }
                self.bits(integer.size, integer.byte_order)?
            }
            Storage::Reversed => {
                let bits = self.bits(integer.size, integer.byte_order)?;
                reversed(bits, integer.size)
            }
            Storage::Leb128 => self.leb128(integer.signed)?,
        };
        let value = if integer.signed {
            sign_extend(bits, integer.size) as u64
        } else {
            bits
        };
        if let Some(slot) = field.slot {
            self.registers[slot as usize] = value;
        }
        if let Some(role) = integer.role {
            self.roles.set(role, value);
            if role == Role::Timestamp {
                *self.clock = advance(*self.clock, bits, integer.size);
            }
        }
        Ok(value)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the position stays at or before the limit, which the packet has"
    )]
    fn leb128(&mut self, signed: bool) -> Result<u64> {
        let start = (self.position / 8) as usize;
        let end = (self.limit / 8) as usize;
        let tail = self.data.get(start..end).unwrap_or_default();
        let mut cursor = Bytes::new(tail, Endian::Little).cursor(0);
        let value = match signed {
            true => cursor.sleb128().map(|value| value as u64),
            false => cursor.uleb128(),
        };
        let value = value.map_err(|error| match error.kind {
            ErrorKind::LebOverflow => self.error(DecodeErrorKind::Leb128),
            _ => self.error(DecodeErrorKind::Truncated),
        })?;
        self.position += cursor.offset() as u64 * 8;
        Ok(value)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the position stays at or before the limit, which the packet has"
    )]
    fn string(&mut self, unit: usize) -> Result<Raw> {
        let start = (self.position / 8) as usize;
        let end = (self.limit / 8) as usize;
        let tail = self.data.get(start..end).unwrap_or_default();
        let end = match unit {
            1 => memchr::memchr(0, tail),
            _ => tail
                .chunks_exact(unit)
                .position(|unit| unit.iter().all(|&byte| byte == 0)),
        };
        let Some(len) = end.map(|units| units * unit) else {
            return Err(self.error(DecodeErrorKind::Unterminated));
        };
        self.position += (len + unit) as u64 * 8;
        Ok(Raw::Bytes {
            start,
            end: start + len,
        })
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are those of the plan; `skip` compared the size with the packet"
    )]
    fn array(&mut self, array: &ArrayPlan) -> Result<Raw> {
        let count = match array.count {
            Count::Fixed(count) => count,
            Count::Slot(slot) => self.registers[slot as usize],
            Count::Prefix { integer, .. } => {
                let (size, order) = (integer.size, integer.byte_order);
                let count = self.bits(size, order)?;
                self.align(self.plan.field(array.element))?;
                count
            }
        };
        let Some(stride) = array.stride else {
            // Every element makes a node, and the packet's bits bound the tape.
            for _ in 0..count {
                self.field(array.element)?;
            }
            return Ok(self.group(count));
        };
        let bit = self.position;
        if let Some(before_last) = count.checked_sub(1) {
            let element = self.plan.field(array.element);
            let size = match &element.shape {
                Shape::Float(float) => float.size,
                _ => element.integer().map_or(0, |integer| integer.size),
            };
            let bits = before_last
                .checked_mul(stride)
                .and_then(|bits| bits.checked_add(u64::from(size)))
                .ok_or(self.error(DecodeErrorKind::Truncated))?;
            self.skip(bits)?;
        }
        if array.text {
            let start = (bit / 8) as usize;
            return Ok(Raw::Bytes {
                start,
                end: start + count as usize,
            });
        }
        Ok(Raw::Packed { bit, count })
    }

    #[inline]
    fn bits(&mut self, size: u32, order: Endian) -> Result<u64> {
        let start = self.position;
        self.skip(u64::from(size))?;
        let before = self.order.replace(order);
        // Neighbours within a byte fill it from the same end (CTF 1.8.3, section 4.1.5).
        if !start.is_multiple_of(8) && before.is_some_and(|before| before != order) {
            return Err(self.error(DecodeErrorKind::ByteOrder));
        }
        read_bits(self.data, start, size, order).map_err(|_| self.error(DecodeErrorKind::Truncated))
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "an alignment is a power of two")]
    fn align(&mut self, field: &Field) -> Result<()> {
        let padding = self.position.wrapping_neg() & (field.align - 1);
        if padding == 0 {
            return Ok(());
        }
        self.skip(padding)
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the position stays at or before the limit, which the packet has"
    )]
    fn skip(&mut self, bits: u64) -> Result<()> {
        if bits > self.limit.saturating_sub(self.position) {
            return Err(self.error(DecodeErrorKind::Truncated));
        }
        self.position += bits;
        Ok(())
    }

    #[inline]
    fn push(&mut self, field: FieldId, raw: Raw) -> Result<usize> {
        let place = self.tape.len();
        if place as u64 >= self.limit.saturating_add(MAX_EMPTY_FIELDS).min(u64::from(u32::MAX)) {
            return Err(self.error(DecodeErrorKind::TooManyFields));
        }
        self.tape.push(Node { field, raw });
        Ok(place)
    }

    pub(crate) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError {
            kind,
            bit: self.position,
        }
    }
}

/// The low `size` bits, the last one first.
#[expect(clippy::arithmetic_side_effects, reason = "a field has 1 to 64 bits")]
fn reversed(bits: u64, size: u32) -> u64 {
    bits.reverse_bits() >> (64 - size)
}

/// The clock's next value whose low `size` bits are `low`: at most one wrap since `clock` (CTF
/// 1.8.3, section 8).
#[expect(clippy::arithmetic_side_effects, reason = "`size` is below 64")]
pub(crate) fn advance(clock: u64, low: u64, size: u32) -> u64 {
    if size >= 64 {
        return low;
    }
    let mask = (1u64 << size) - 1;
    let value = clock & !mask | low;
    if value < clock {
        value.wrapping_add(mask + 1)
    } else {
        value
    }
}

/// The number in a register.
fn number(register: u64, signed: bool) -> i128 {
    match signed {
        true => i128::from(register as i64),
        false => i128::from(register),
    }
}

/// The first option whose ranges contain the tag.
pub(crate) fn select(options: &[OptionPlan], tag: u64, signed: bool) -> Option<FieldId> {
    let value = number(tag, signed);
    options
        .iter()
        .find(|option| option.ranges.iter().any(|range| range.contains(value)))
        .map(|option| option.field)
}
