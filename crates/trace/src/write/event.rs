//! Writes one event, value by value, checked against its class.

use super::packet::StreamWriter;
use super::walk::Pending;
use crate::error::EncodeError;
use crate::plan::{Count, Field, FieldId, Plan, Shape};
use backtrail_wire::Endian;

/// Writes the fields of an event: first the stream's event context, then the event's own context,
/// then the payload, each in the order of its class. Structs, arrays and variants need no call of
/// their own: their leaves follow one another, and an array takes as many elements as its earlier
/// length. An enumeration is written as its number.
///
/// After a value of the wrong kind [`EventWriter::finish`] fails, and the packet is unchanged. An
/// event that is dropped without `finish` is not written.
#[must_use = "an event that is not finished is not written"]
pub struct EventWriter<'w> {
    pub(super) stream: &'w mut StreamWriter,
    pub(super) front: bool,
    /// Length of the buffer without this event.
    pub(super) start: usize,
    pub(super) timestamp: u64,
    pub(super) error: Option<EncodeError>,
}

impl StreamWriter {
    /// Starts an event of the class with this id, at the packet's end.
    pub fn event(&mut self, id: u64, timestamp: u64) -> EventWriter<'_> {
        self.begin(timestamp);
        let timestamp = timestamp.max(self.last);
        self.start_event(id, timestamp, self.last, false)
    }

    /// Starts an event before all others of the packet, at the packet's start, whenever it is
    /// written. Several of them keep their order.
    pub fn front_event(&mut self, id: u64) -> EventWriter<'_> {
        self.begin(self.last);
        self.start_event(id, self.begin, self.begin, true)
    }

    fn start_event(&mut self, id: u64, timestamp: u64, last: u64, front: bool) -> EventWriter<'_> {
        let start = self.buffer(front).len();
        let error = self.event_header(id, timestamp, last, front).err();
        EventWriter {
            stream: self,
            front,
            start,
            timestamp,
            error,
        }
    }
}

impl EventWriter<'_> {
    /// An unsigned number, or the number of an enumeration.
    pub fn unsigned(&mut self, value: u64) {
        let result = self.integer(i128::from(value));
        self.note(result);
    }

    /// A signed number.
    pub fn signed(&mut self, value: i64) {
        let result = self.integer(i128::from(value));
        self.note(result);
    }

    /// An unsigned number of 8 bits or more.
    pub fn u8(&mut self, value: u8) {
        self.unsigned(u64::from(value));
    }

    /// An unsigned number of 16 bits, or wider.
    pub fn u16(&mut self, value: u16) {
        self.unsigned(u64::from(value));
    }

    /// An unsigned number of 32 bits, or wider.
    pub fn u32(&mut self, value: u32) {
        self.unsigned(u64::from(value));
    }

    /// An unsigned number of 64 bits, or narrower if it fits.
    pub fn u64(&mut self, value: u64) {
        self.unsigned(value);
    }

    /// A signed number of 32 bits, or wider.
    pub fn i32(&mut self, value: i32) {
        self.signed(i64::from(value));
    }

    /// A signed number of 64 bits, or narrower if it fits.
    pub fn i64(&mut self, value: i64) {
        self.signed(value);
    }

    /// The number that is the length of a sequence.
    pub fn sequence_len(&mut self, len: usize) {
        self.unsigned(len as u64);
    }

    /// A floating point number.
    pub fn f64(&mut self, value: f64) {
        let result = self.float(value);
        self.note(result);
    }

    /// A text: a string, which must not contain a zero byte, or an array of characters, which is
    /// filled with zeros.
    pub fn string(&mut self, text: &str) {
        self.text(text.as_bytes());
    }

    /// A text in bytes; see [`EventWriter::string`].
    pub fn text(&mut self, text: &[u8]) {
        let result = self.put_text(text);
        self.note(result);
    }

    /// The elements of an array of bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if !self.bulk(8, bytes.len(), |out, _| out.extend_from_slice(bytes)) {
            bytes.iter().for_each(|&byte| self.u8(byte));
        }
    }

    /// The elements of an array of 64-bit numbers.
    pub fn u64s(&mut self, values: &[u64]) {
        let copy = |out: &mut Vec<u8>, order| {
            for value in values {
                out.extend_from_slice(&match order {
                    Endian::Little => value.to_le_bytes(),
                    Endian::Big => value.to_be_bytes(),
                });
            }
        };
        if !self.bulk(64, values.len(), copy) {
            values.iter().for_each(|&value| self.u64(value));
        }
    }

    /// Ends the event and adds it to the packet.
    ///
    /// # Errors
    ///
    /// A value does not fit its field, a field has no value, or the packet has no room. The packet
    /// is then unchanged.
    pub fn finish(mut self) -> Result<(), EncodeError> {
        let mut result = self.error.map_or(Ok(()), Err);
        if result.is_ok() && self.next().is_ok() {
            result = Err(EncodeError::MissingField);
        }
        let start = self.start;
        self.start = usize::MAX;
        self.stream.end_event(self.front, start, self.timestamp, result)
    }

    fn note(&mut self, result: Result<(), EncodeError>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    fn next(&mut self) -> Result<FieldId, EncodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let stream = &mut *self.stream;
        stream.walk.leaf(&stream.plan)?.ok_or(EncodeError::WrongField)
    }

    fn integer(&mut self, value: i128) -> Result<(), EncodeError> {
        let id = self.next()?;
        let field: &Field = self.stream.plan.field(id);
        let slot = field.slot;
        let integer = *field.integer().ok_or(EncodeError::WrongField)?;
        let range = match integer.signed {
            true => -(1i128 << (integer.size - 1))..1i128 << (integer.size - 1),
            false => 0..1i128 << integer.size,
        };
        if !range.contains(&value) {
            return Err(EncodeError::OutOfRange(value as u64));
        }
        if let Some(slot) = slot {
            self.stream.walk.registers[slot as usize] = value as u64;
        }
        self.stream.walk.counted(value as u64);
        self.put(value as u64, integer.size, integer.byte_order);
        Ok(())
    }

    fn float(&mut self, value: f64) -> Result<(), EncodeError> {
        let id = self.next()?;
        let Shape::Float(float) = &self.stream.plan.field(id).shape else {
            return Err(EncodeError::WrongField);
        };
        let float = *float;
        let bits = match float.size {
            32 => u64::from((value as f32).to_bits()),
            _ => value.to_bits(),
        };
        self.put(bits, float.size, float.byte_order);
        Ok(())
    }

    /// Fields are whole bytes: otherwise the stream's writer could not be created.
    fn put(&mut self, value: u64, size: u32, order: Endian) {
        let bytes = (size / 8) as usize;
        let out = self.stream.buffer(self.front);
        match order {
            Endian::Little => out.extend_from_slice(&value.to_le_bytes()[..bytes]),
            Endian::Big => out.extend_from_slice(&value.to_be_bytes()[8 - bytes..]),
        }
    }

    fn put_text(&mut self, text: &[u8]) -> Result<(), EncodeError> {
        let id = self.next()?;
        let count = match &self.stream.plan.field(id).shape {
            Shape::String(_) => None,
            Shape::Array(array) if array.text => match array.count {
                Count::Fixed(count) => Some(count),
                Count::Slot(slot) => Some(self.stream.walk.registers[slot as usize]),
                // Rejected earlier by `check_bytes`.
                Count::Prefix { .. } => return Err(EncodeError::WrongField),
            },
            _ => return Err(EncodeError::WrongField),
        };
        let padding = match count {
            None if text.contains(&0) => return Err(EncodeError::Text),
            None => 1,
            Some(count) => count.checked_sub(text.len() as u64).ok_or(EncodeError::Text)?,
        };
        let end = padding.saturating_add(text.len() as u64);
        if end > self.stream.max_packet_bytes() as u64 {
            return Err(EncodeError::TooLarge);
        }
        let out = self.stream.buffer(self.front);
        out.extend_from_slice(text);
        out.resize(out.len() + padding as usize, 0);
        Ok(())
    }

    /// Copies elements at once if an array of plain numbers of this size is next and has room for
    /// them.
    fn bulk(&mut self, size: u32, count: usize, copy: impl FnOnce(&mut Vec<u8>, Endian)) -> bool {
        if count == 0 {
            return true;
        }
        if self.error.is_some() {
            return false;
        }
        let StreamWriter { plan, walk, .. } = &mut *self.stream;
        // The next field is known only once a leaf was taken.
        let Ok(Some(id)) = walk.leaf(plan) else { return false };
        let field = plan.field(id);
        let order = match (&field.shape, walk.pending.last_mut()) {
            (Shape::Integer(integer), Some(Pending::Elements { of, left }))
                if integer.size == size
                    && !integer.signed
                    && field.slot.is_none()
                    && *left >= count as u64 - 1
                    && is_array_of(plan, *of, id) =>
            {
                *left -= count as u64 - 1;
                integer.byte_order
            }
            _ => {
                walk.pending.push(Pending::Field(id));
                return false;
            }
        };
        copy(self.stream.buffer(self.front), order);
        true
    }
}

impl Drop for EventWriter<'_> {
    fn drop(&mut self) {
        if self.start != usize::MAX {
            self.stream.buffer(self.front).truncate(self.start);
        }
    }
}

fn is_array_of(plan: &Plan, array: FieldId, element: FieldId) -> bool {
    matches!(&plan.field(array).shape, Shape::Array(array) if array.element == element)
}
