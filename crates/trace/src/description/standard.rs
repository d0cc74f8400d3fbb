//! LTTng's packet and event headers, which tools support best.

use super::class::{
    Array, Enumeration, FieldClass, Integer, Mapping, Range, Reference, Role, Scope, Struct, Variant, VariantOption,
};
use super::trace::{Clock, Description, EventClass, StreamClass};
use backtrail_wire::Endian;

impl Description {
    /// A description for an application's own event classes: one stream class, with id 0 and
    /// LTTng's headers, in the byte order of this machine. The trace has no UUID and no
    /// environment; both can be added.
    pub fn of_events(clock: Clock, events: Vec<EventClass>) -> Description {
        let order = Endian::NATIVE;
        let header = match events.iter().all(|event| event.id < 31) {
            true => compact_event_header(order, 0),
            false => large_event_header(order, 0),
        };
        Description {
            byte_order: Some(order),
            clocks: vec![clock],
            packet_header: Some(packet_header(order)),
            streams: vec![StreamClass {
                clock: Some(0),
                packet_context: Some(packet_context(order, 0)),
                event_header: Some(header),
                events,
                ..StreamClass::default()
            }],
            ..Description::default()
        }
    }
}

impl EventClass {
    /// A class with these fields, without a context or a log level.
    pub fn new(id: u64, name: &str, payload: Struct) -> EventClass {
        EventClass {
            id,
            name: name.to_owned(),
            payload: Some(payload),
            ..EventClass::default()
        }
    }
}

/// Magic number, trace UUID, stream class and stream instance: LTTng's packet header.
pub fn packet_header(order: Endian) -> Struct {
    let mut uuid = Array::fixed(16, Integer::unsigned(8, order).hexadecimal());
    uuid.trace_uuid = true;
    Struct::new()
        .with("magic", Integer::unsigned(32, order).hexadecimal().role(Role::Magic))
        .with("uuid", uuid)
        .with("stream_id", Integer::unsigned(32, order).role(Role::StreamClassId))
        .with(
            "stream_instance_id",
            Integer::unsigned(64, order).role(Role::StreamInstanceId),
        )
}

/// LTTng's packet context, with timestamps of the clock with this index.
pub fn packet_context(order: Endian, clock: usize) -> Struct {
    let counter = |role| Integer::unsigned(64, order).role(role);
    Struct::new()
        .with("timestamp_begin", counter(Role::Timestamp).clock(clock))
        .with("timestamp_end", counter(Role::TimestampEnd).clock(clock))
        .with("content_size", counter(Role::ContentSize))
        .with("packet_size", counter(Role::PacketSize))
        .with("packet_seq_num", counter(Role::SequenceNumber))
        .with("events_discarded", counter(Role::EventsDiscarded))
        .with("cpu_id", Integer::unsigned(32, order))
}

/// LTTng's header for fewer than 31 event classes: a 5-bit id and 27 bits of the clock in 4 bytes;
/// with id 31 both in full, 13 bytes.
pub fn compact_event_header(order: Endian, clock: usize) -> Struct {
    event_header(
        Integer::unsigned(5, order).align(1),
        Integer::unsigned(27, order).align(1),
        clock,
    )
}

/// LTTng's header for more event classes: a 16-bit id and 32 bits of the clock; with id 65535 both
/// in full, 14 bytes.
pub fn large_event_header(order: Endian, clock: usize) -> Struct {
    event_header(Integer::unsigned(16, order), Integer::unsigned(32, order), clock)
}

fn event_header(id: Integer, timestamp: Integer, clock: usize) -> Struct {
    let extended = (1i128 << id.size) - 1;
    let compact_range = Range {
        first: 0,
        last: extended - 1,
    };
    let mapping = |name: &str, range| Mapping {
        name: name.to_owned(),
        ranges: vec![range],
    };
    let option = |name: &str, range, class: Struct| VariantOption {
        name: name.to_owned(),
        ranges: vec![range],
        class: FieldClass::Struct(class),
    };
    let order = id.byte_order;
    let full = Struct::new()
        .with("id", Integer::unsigned(32, order).role(Role::EventClassId))
        .with(
            "timestamp",
            Integer::unsigned(64, order).role(Role::Timestamp).clock(clock),
        );
    Struct {
        min_align: 8,
        ..Struct::new()
    }
    .with(
        "id",
        Enumeration {
            integer: id.role(Role::EventClassId),
            mappings: vec![
                mapping("compact", compact_range),
                mapping("extended", Range::one(extended)),
            ],
        },
    )
    .with(
        "v",
        Variant {
            tag: Reference::new(Scope::EventHeader, &["id"]),
            options: vec![
                option(
                    "compact",
                    compact_range,
                    Struct::new().with("timestamp", timestamp.role(Role::Timestamp).clock(clock)),
                ),
                option("extended", Range::one(extended), full),
            ],
        },
    )
}
