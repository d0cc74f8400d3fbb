//! A description, compiled once into what decoding and encoding need: flat fields with resolved references.

mod compile;
mod decode;
mod quick;

pub(crate) use decode::{Decoder, Node, Raw, Roles, select};

use crate::description::{Clock, Description, Encoding, Float, Integer, Mapping, Range, Role, Scope};
#[cfg(feature = "render")]
use crate::slot::SharedSlot;
use quick::{UsualHeader, Whole};
use std::collections::HashMap;

/// A [`Description`] that was checked and compiled. Shared by all readers and writers of a trace.
#[derive(Debug)]
pub struct Plan {
    pub(crate) description: Description,
    pub(crate) fields: Vec<Field>,
    pub(crate) packet_header: Option<FieldId>,
    /// In the description's order.
    pub(crate) streams: Vec<StreamPlan>,
    /// Registers for the values of integers that later fields refer to.
    pub(crate) slots: usize,
    /// Room for what is derived from it.
    #[cfg(feature = "render")]
    pub(crate) pieces: SharedSlot,
}

/// Index into [`Plan::fields`].
pub(crate) type FieldId = u32;

#[derive(Debug)]
pub(crate) struct StreamPlan {
    pub(crate) clock: Option<ClockPlan>,
    pub(crate) packet_context: Option<FieldId>,
    pub(crate) event_header: Option<FieldId>,
    /// The form of the event header that nearly all events have.
    usual_header: Option<UsualHeader>,
    pub(crate) event_context: Option<FieldId>,
    /// In the description's order.
    pub(crate) events: Vec<EventPlan>,
    pub(crate) events_by_id: EventIds,
}

/// Which event class has an id. Ids are mostly small and dense.
#[derive(Debug, Default)]
pub(crate) struct EventIds {
    /// By id; [`u32::MAX`] for none.
    dense: Vec<u32>,
    others: HashMap<u64, usize>,
}

impl EventIds {
    /// Ids below this are looked up in a table.
    const DENSE: u64 = 4096;

    /// Whether there was one with this id already.
    pub(crate) fn insert(&mut self, id: u64, index: usize) -> bool {
        if id >= EventIds::DENSE {
            return self.others.insert(id, index).is_some();
        }
        let place = id as usize;
        if self.dense.len() <= place {
            self.dense.resize(place + 1, u32::MAX);
        }
        std::mem::replace(&mut self.dense[place], index as u32) != u32::MAX
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<usize> {
        match self.dense.get(id as usize) {
            Some(&index) if id < EventIds::DENSE => (index != u32::MAX).then_some(index as usize),
            _ => self.others.get(&id).copied(),
        }
    }
}

/// A clock, and how its cycles become nanoseconds.
#[derive(Debug)]
pub(crate) struct ClockPlan {
    pub(crate) clock: Clock,
    /// Nanoseconds from the origin to cycle 0 of a clock of nanoseconds, where 64 bits hold them.
    zero: Option<i64>,
}

impl ClockPlan {
    pub(crate) fn new(clock: Clock) -> ClockPlan {
        let zero = match clock.frequency {
            1_000_000_000 => clock.nanoseconds_at(0),
            _ => None,
        };
        ClockPlan { clock, zero }
    }

    /// [`Clock::nanoseconds_at`], without wide numbers where that is possible.
    #[inline]
    pub(crate) fn nanoseconds_at(&self, cycles: u64) -> Option<i64> {
        match self.zero {
            Some(zero) => zero.checked_add_unsigned(cycles),
            None => self.clock.nanoseconds_at(cycles),
        }
    }
}

#[derive(Debug)]
pub(crate) struct EventPlan {
    pub(crate) context: Option<FieldId>,
    pub(crate) payload: Option<FieldId>,
}

#[derive(Debug)]
pub(crate) struct Field {
    /// As a member of a struct; otherwise empty.
    pub(crate) name: Box<str>,
    /// Bits, a power of two.
    pub(crate) align: u64,
    /// What it asks of the structs around it. More than its own alignment where a part of it has a greater one.
    pub(crate) outer_align: u64,
    /// Register that keeps the value.
    pub(crate) slot: Option<u32>,
    /// What it is where it can be decoded without more ado.
    whole: Option<Whole>,
    pub(crate) shape: Shape,
}

#[derive(Debug)]
pub(crate) enum Shape {
    Integer(Integer),
    Enumeration(Integer, Box<[Mapping]>),
    Float(Float),
    String(Encoding),
    Struct(Box<[FieldId]>),
    Array(ArrayPlan),
    Variant {
        slot: u32,
        /// Whether the tag is signed.
        signed: bool,
        options: Box<[OptionPlan]>,
    },
    Optional {
        slot: u32,
        /// Whether the tag is signed.
        signed: bool,
        ranges: Box<[Range]>,
        field: FieldId,
    },
    BitMap(Integer, Box<[Mapping]>),
    Boolean(Integer),
}

#[derive(Debug)]
pub(crate) struct ArrayPlan {
    pub(crate) count: Count,
    pub(crate) element: FieldId,
    /// Bits from one element to the next where elements are plain integers or floats: they need not be decoded one by one.
    pub(crate) stride: Option<u64>,
    /// Elements are characters.
    pub(crate) text: bool,
    pub(crate) trace_uuid: bool,
    pub(crate) blob: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Fixed(u64),
    Slot(u32),
    /// Lies before the elements.
    Prefix {
        integer: Integer,
        field: FieldId,
    },
}

#[derive(Debug)]
pub(crate) struct OptionPlan {
    pub(crate) ranges: Box<[Range]>,
    pub(crate) field: FieldId,
}

impl Plan {
    /// Checks and compiles a description.
    pub fn new(description: Description) -> Result<Plan, DescriptionError> {
        compile::compile(description)
    }

    /// What it was compiled from.
    pub fn description(&self) -> &Description {
        &self.description
    }

    pub(crate) fn field(&self, id: FieldId) -> &Field {
        &self.fields[id as usize]
    }

    /// Index of the stream class with this id.
    pub(crate) fn stream_index(&self, id: u64) -> Option<usize> {
        self.description.streams.iter().position(|class| class.id == id)
    }
}

impl Field {
    /// The number's storage, where it is one.
    pub(crate) fn integer(&self) -> Option<&Integer> {
        match &self.shape {
            Shape::Integer(integer)
            | Shape::Enumeration(integer, _)
            | Shape::BitMap(integer, _)
            | Shape::Boolean(integer) => Some(integer),
            _ => None,
        }
    }

    pub(crate) fn role(&self) -> Option<Role> {
        self.integer().and_then(|integer| integer.role)
    }
}

/// A description that cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// What is wrong.
    pub kind: DescriptionErrorKind,
    /// In which struct.
    pub scope: Option<Scope>,
    /// Id of the stream class.
    pub stream: Option<u64>,
    /// Id of the event class.
    pub event: Option<u64>,
    /// How many fields of that struct, nested ones included, come before the one at fault.
    pub field: u32,
}

/// What is wrong with a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptionErrorKind {
    /// An integer's size is not 1 to 64 bits.
    IntegerSize(u32),
    /// A floating point number is not 32 or 64 bits wide.
    FloatSize(u32),
    /// An alignment is not a power of two.
    Alignment(u32),
    /// Two members of a struct have one name.
    DuplicateName,
    /// A length or tag refers to nothing that comes before it.
    UnknownReference,
    /// A length is signed.
    SignedLength,
    /// A variant without options.
    NoOptions,
    /// A range whose end is before its begin.
    Range,
    /// Field classes nest deeper than [`crate::constants::MAX_NESTING`].
    TooDeep,
    /// Two stream classes have this id.
    DuplicateStream(u64),
    /// Two event classes of a stream class have this id.
    DuplicateEvent(u64),
    /// There are several stream classes, but no field of the packet header tells which.
    NoStreamId,
    /// There are several event classes, but no field of the event header tells which.
    NoEventId,
    /// There is no clock with this index.
    UnknownClock(usize),
    /// A clock that does not tick.
    Frequency,
}

impl std::fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use DescriptionErrorKind as Kind;
        match self.kind {
            Kind::IntegerSize(size) => write!(f, "integer of {size} bits")?,
            Kind::FloatSize(size) => write!(f, "floating point number of {size} bits")?,
            Kind::Alignment(align) => write!(f, "alignment of {align} bits is not a power of two")?,
            Kind::DuplicateName => write!(f, "two members have the same name")?,
            Kind::UnknownReference => write!(f, "length or tag refers to no integer before it")?,
            Kind::SignedLength => write!(f, "length is a signed integer")?,
            Kind::NoOptions => write!(f, "variant without options")?,
            Kind::Range => write!(f, "range ends before it begins")?,
            Kind::TooDeep => write!(f, "field classes nest too deeply")?,
            Kind::DuplicateStream(id) => write!(f, "two stream classes have the id {id}")?,
            Kind::DuplicateEvent(id) => write!(f, "two event classes have the id {id}")?,
            Kind::NoStreamId => write!(f, "several stream classes, but no stream id in the packet header")?,
            Kind::NoEventId => write!(f, "several event classes, but no event id in the event header")?,
            Kind::UnknownClock(index) => write!(f, "there is no clock {index}")?,
            Kind::Frequency => write!(f, "clock of frequency 0")?,
        }
        if let Some(scope) = self.scope {
            write!(f, ", field {} of {}", self.field + 1, scope.tsdl_name())?;
        }
        if let Some(event) = self.event {
            write!(f, " of event {event}")?;
        }
        if let Some(stream) = self.stream {
            write!(f, " of stream class {stream}")?;
        }
        Ok(())
    }
}

impl std::error::Error for DescriptionError {}
