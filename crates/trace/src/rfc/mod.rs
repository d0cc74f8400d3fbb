//! The dialect of the RFC v1.1 of 2010: its metadata language (RFC 4 and 7) and its packets (RFC 5 and 6.1).
//!
//! `syntax` makes a tree of what was written, `types` field classes of types and what they inherit, `blocks` the description;
//! `headers` has what the RFC fixes: the headers of packets and events. Where the RFC is silent or contradicts itself, the
//! reading is told at its place.

mod blocks;
mod headers;
mod syntax;
mod types;
mod write;

pub use crate::tsdl::{Error, ErrorKind, Position};
pub(crate) use write::payload_size;
pub use write::{WriteError, WriteErrorKind, write};

use crate::description::{Clock, Description, Integer, StreamClass, Struct};
use crate::tsdl::{Result, lexer};
use backtrail_wire::Endian;
pub(crate) use headers::packet_header;
use headers::{Alignments, CLOCK, type1, type2};

/// The only field of the context of events whose section says `event_size = true` (RFC 7 and 6.2.1).
pub(crate) const PAYLOAD_SIZE: &str = "payload_size";

/// An attribute of sequences that the RFC does not have: the name that their length had as a field of its own, in a trace of
/// another dialect. Readers pass over attributes that they don't know.
const LENGTH_NAME: &str = "length_name";

/// What precedes every event of a section (RFC 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderType {
    /// For sections with fewer than 31 event ids: 5 bits of id and 27 of the time, in 4 bytes.
    Type1,
    /// For more: 32 bits of the time and 16 of id, in 6 bytes.
    Type2,
}

impl HeaderType {
    /// The one for events with these ids.
    pub fn for_ids(ids: impl IntoIterator<Item = u64>) -> HeaderType {
        match ids.into_iter().all(|id| id < 31) {
            true => HeaderType::Type1,
            false => HeaderType::Type2,
        }
    }
}

/// A trace of the RFC without sections yet, which are added to [`Description::streams`]. Its one clock counts
/// nanoseconds. `session` is a number that all packets carry; a trace's files have the same one, other traces another.
pub fn description(order: Endian, session: u32) -> Description {
    Description {
        byte_order: Some(order),
        clocks: vec![clock()],
        packet_header: Some(packet_header(order)),
        session: Some(session),
        ..Description::default()
    }
}

/// The one clock that the RFC has. Which moment it counts from is not said.
pub(crate) fn clock() -> Clock {
    Clock {
        unix_epoch: false,
        ..Clock::nanoseconds("time", 0)
    }
}

/// A section without events yet. Its streams' files are called by its name, or by that, `_` and the number of a CPU (RFC 2).
/// `event_size`: each event tells the bytes of its payload (RFC 7); the writer sees to it.
pub fn section(id: u64, name: &str, order: Endian, header: HeaderType, event_size: bool) -> StreamClass {
    let size = Struct::new().with(PAYLOAD_SIZE, Integer::unsigned(16, order));
    StreamClass {
        id,
        name: Some(name.to_owned()),
        clock: Some(CLOCK),
        event_header: Some(match header {
            HeaderType::Type1 => type1(order, Alignments::PACKED),
            HeaderType::Type2 => type2(order, Alignments::PACKED),
        }),
        event_context: event_size.then_some(size),
        ..StreamClass::default()
    }
}

/// Types that use others can describe exponentially many fields. Real metadata has less than one for ten bytes, and each
/// counts for as many as it has attributes.
const MAX_WORK_PER_BYTE: u64 = 4;

/// Parses the text in the packets of the metadata, for data packets of this byte order: theirs is the native one (RFC 4.1.3).
///
/// The zero bytes between the entries must have become spaces or newlines.
pub fn parse(text: &str, order: Endian) -> Result<Description> {
    let tokens = lexer::tokens(text)?;
    let entries = syntax::parse(&tokens)?;
    blocks::describe(&entries, order, MAX_WORK_PER_BYTE * text.len() as u64 + 64)
}
