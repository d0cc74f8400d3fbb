//! Writes events that were read, by another plan.

use super::packet::{StreamOptions, StreamWriter};
use crate::constants::PAYLOAD_SIZE;
use crate::description::{Integer, Storage};
use crate::error::EncodeError;
use crate::plan::{Count, FieldId, Plan, Shape};
use crate::read::{Elements, Event, Fields, Value};
use backtrail_wire::{Endian, write_bits};
use std::sync::Arc;

type Result<T> = std::result::Result<T, EncodeError>;

/// Unlike events that an application writes, these come with their times, which may go back, and
/// their fields may not be whole bytes.
impl StreamWriter {
    pub(super) fn for_recoding(plan: Arc<Plan>, options: StreamOptions) -> Result<StreamWriter> {
        StreamWriter::with_checks(plan, options, false)
    }

    /// Starts a packet at this time.
    pub(super) fn begin_recoding(&mut self, begin: Option<u64>) {
        if let Some(begin) = begin {
            self.last = begin;
        }
        self.begin = self.last;
        self.open = begin.is_some();
        self.unused_bits = 0;
    }

    /// Writes an event that was read.
    pub(super) fn recode(&mut self, event: &Event<'_>, timestamp: u64) -> Result<()> {
        if !self.open {
            self.open = true;
            (self.begin, self.last) = (timestamp, timestamp);
        }
        let id = event.class().id;
        self.event_header(id, timestamp, self.last, false)?;
        self.last = timestamp;
        let class = &self.plan.streams[self.stream];
        let index = class.events_by_id.get(id).ok_or(EncodeError::UnknownEventClass(id))?;
        let target = &class.events[index];
        let header_bits = self.layout.bytes() as u64 * 8;
        let mut bits = Bits {
            plan: &self.plan,
            position: header_bits + self.body.len() as u64 * 8,
            start: header_bits,
            out: &mut self.body,
        };
        let context = class.event_context.filter(|_| self.payload_size.is_none());
        if let (Some(target), Some(fields)) = (context, event.stream_context()) {
            bits.root(&fields, target)?;
        }
        if let (Some(target), Some(fields)) = (target.context, event.context()) {
            bits.root(&fields, target)?;
        }
        if let (Some(target), Some(fields)) = (target.payload, event.payload()) {
            bits.align(bits.plan.field(target).align);
            self.payload_start = ((bits.position - header_bits) / 8) as usize;
            bits.root(&fields, target)?;
        }
        self.unused_bits = bits.position.wrapping_neg() % 8;
        if self.payload_size.is_none() {
            return Ok(());
        }
        let declared = event
            .stream_context()
            .and_then(|context| context.get(PAYLOAD_SIZE)?.as_u64());
        let actual = (self.body.len() - self.payload_start) as u64;
        match declared {
            Some(declared) if declared != actual => Err(EncodeError::PayloadSize { declared, actual }),
            _ => self.put_payload_size(false),
        }
    }

    /// Ends the packet with these numbers.
    pub(super) fn finish_recoding(&mut self, end: Option<u64>, number: u64, discarded: u64) -> Result<&[u8]> {
        // Without a time, use the last event's, or that of the previous packet.
        self.last = end.unwrap_or(self.last);
        self.sequence_number = number;
        (self.discarded, self.discarded_before) = (discarded, discarded);
        self.finish_packet()
    }
}

/// Fields at arbitrary bit positions.
struct Bits<'w> {
    plan: &'w Plan,
    /// Bits from the packet's start.
    position: u64,
    /// Bits before `out`, which are whole bytes.
    start: u64,
    out: &'w mut Vec<u8>,
}

impl Bits<'_> {
    fn root(&mut self, fields: &Fields<'_>, target: FieldId) -> Result<()> {
        self.value(&Value::Struct(*fields), target)
    }

    fn value(&mut self, value: &Value<'_>, target: FieldId) -> Result<()> {
        let plan = self.plan;
        let field = plan.field(target);
        self.align(field.align);
        match (&field.shape, value) {
            (Shape::Integer(integer) | Shape::Enumeration(integer, _), Value::Integer(number)) => {
                self.integer(integer, number.bits())
            }
            (Shape::Float(float), Value::Float(number)) if float.size == 32 => {
                self.put(32, float.byte_order, u64::from((*number as f32).to_bits()))
            }
            (Shape::Float(float), Value::Float(number)) => self.put(64, float.byte_order, number.to_bits()),
            (Shape::String(_), Value::Text(text)) => self.text(text),
            (Shape::String(_), Value::WideText(text)) => self.text(text.chars().collect::<String>().as_bytes()),
            (Shape::Struct(members), Value::Struct(fields)) => self.members(fields, members),
            (Shape::Array(array), Value::Array(elements)) => {
                if let Count::Prefix { integer, .. } = &array.count {
                    self.integer(integer, elements.len() as u64)?;
                    self.align(plan.field(array.element).align);
                }
                self.elements(elements, array.element)
            }
            _ => Err(EncodeError::WrongField),
        }
    }

    /// The length of a sequence is in a field before it, or in the sequence itself.
    fn members(&mut self, fields: &Fields<'_>, members: &[FieldId]) -> Result<()> {
        let mut values = fields.iter().map(|(_, value)| value).peekable();
        for &member in members {
            let shape = &self.plan.field(member).shape;
            let value = values.next_if(|value| !matches!((shape, value), (Shape::Integer(_), Value::Array(_))));
            match (shape, value) {
                // The number before the sequence there is its length here.
                (Shape::Integer(integer), None) => {
                    let Some(Value::Array(elements)) = values.peek() else {
                        return Err(EncodeError::MissingField);
                    };
                    self.align(self.plan.field(member).align);
                    self.integer(integer, elements.len() as u64)?;
                }
                (Shape::Array(array), Some(Value::Integer(_))) if matches!(array.count, Count::Prefix { .. }) => {
                    let sequence = values.next().ok_or(EncodeError::MissingField)?;
                    self.value(&sequence, member)?;
                }
                (_, Some(value)) => self.value(&value, member)?,
                (_, None) => return Err(EncodeError::MissingField),
            }
        }
        Ok(())
    }

    fn elements(&mut self, elements: &Elements<'_>, target: FieldId) -> Result<()> {
        elements.iter().try_for_each(|element| self.value(&element, target))
    }

    fn integer(&mut self, integer: &Integer, value: u64) -> Result<()> {
        match integer.storage {
            Storage::Bits => self.put(integer.size, integer.byte_order, value),
            // No target dialect has them.
            _ => Err(EncodeError::Unwritable),
        }
    }

    fn text(&mut self, text: &[u8]) -> Result<()> {
        self.out.extend_from_slice(text);
        self.out.push(0);
        self.position += (text.len() as u64 + 1) * 8;
        Ok(())
    }

    fn put(&mut self, size: u32, order: Endian, value: u64) -> Result<()> {
        let place = self.position - self.start;
        self.position += u64::from(size);
        self.fill();
        write_bits(self.out, place, size, order, value).map_err(|_| EncodeError::Unwritable)
    }

    fn align(&mut self, align: u64) {
        self.position = self.position.next_multiple_of(align);
        self.fill();
    }

    /// Extends the output up to the position.
    fn fill(&mut self) {
        self.out.resize((self.position - self.start).div_ceil(8) as usize, 0);
    }
}
