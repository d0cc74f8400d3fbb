//! Errors in descriptions.

use super::class::Scope;

/// A description that cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// What is wrong.
    pub kind: DescriptionErrorKind,
    /// The struct that contains the error.
    pub scope: Option<Scope>,
    /// Id of the stream class.
    pub stream: Option<u64>,
    /// Id of the event class.
    pub event: Option<u64>,
    /// The number of fields of that struct, including nested ones, before the faulty one.
    pub field: u32,
}

/// What is wrong with a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescriptionErrorKind {
    /// An integer's size is not 1 to 64 bits.
    IntegerSize(u32),
    /// A floating point number is not 32 or 64 bits wide.
    FloatSize(u32),
    /// An alignment is not a power of two.
    Alignment(u32),
    /// Two members of a struct have one name.
    DuplicateName,
    /// A length or tag refers to a field that does not come before it.
    UnknownReference,
    /// A length is signed.
    SignedLength,
    /// A variant without options.
    NoOptions,
    /// A range whose end is before its start.
    Range,
    /// Field classes nest deeper than [`crate::constants::MAX_NESTING`].
    TooDeep,
    /// Two stream classes have this id.
    DuplicateStream(u64),
    /// Two event classes of a stream class have this id.
    DuplicateEvent(u64),
    /// There are several stream classes, but the packet header has no field for their ids.
    NoStreamId,
    /// There are several event classes, but the event header has no field for their ids.
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

/// A description that a dialect cannot express, and the place of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inexpressible<K> {
    /// The inexpressible part.
    pub kind: K,
    /// The struct that contains it.
    pub scope: Option<Scope>,
    /// Id of the stream class.
    pub stream: Option<u64>,
    /// Id of the event class.
    pub event: Option<u64>,
}

impl<K: std::fmt::Display> std::fmt::Display for Inexpressible<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(f)?;
        if let Some(scope) = self.scope {
            write!(f, ", in {}", scope.tsdl_name())?;
        }
        if let Some(event) = self.event {
            write!(f, " of event {event}")?;
        }
        if let Some(stream) = self.stream {
            write!(f, " of stream {stream}")?;
        }
        Ok(())
    }
}

impl<K: std::fmt::Debug + std::fmt::Display> std::error::Error for Inexpressible<K> {}
