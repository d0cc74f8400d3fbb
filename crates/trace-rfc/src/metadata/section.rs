//! The parts of a description that the RFC fixes: the trace, its clock, its sections.

use super::headers::{Alignments, CLOCK, packet_header, type1, type2};
use backtrail_trace::constants::PAYLOAD_SIZE;
use backtrail_trace::description::{Clock, Description, Integer, StreamClass, Struct};
use backtrail_wire::Endian;

/// An attribute of sequences that the RFC does not have: the name that their length had as a field
/// of its own, in a trace of another dialect. Readers pass over attributes that they don't know.
pub(super) const LENGTH_NAME: &str = "length_name";

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

/// A trace of the RFC without sections yet, which are added to [`Description::streams`]. Its one
/// clock counts nanoseconds. `session` is a number that all packets carry; a trace's files have the
/// same one, other traces another.
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

/// A section without events yet. Its streams' files are called by its name, or by that, `_` and the
/// number of a CPU (RFC 2). `event_size`: each event has the size of its payload (RFC 7), which the
/// writer fills in.
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
