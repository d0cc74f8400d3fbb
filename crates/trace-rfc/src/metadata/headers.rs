//! What the RFC fixes: the header of packets (RFC 5) and the two of events (RFC 6.1), as ordinary
//! structs.

use backtrail_trace::description::{
    FieldClass, Integer, Range, Reference, Role, Scope, Struct, Variant, VariantOption,
};
use backtrail_wire::Endian;

/// The one clock; the RFC does not say what timestamps count: nanoseconds.
pub(super) const CLOCK: usize = 0;

/// The header of every packet (RFC 5), of data and of metadata: 48 bytes, in which natural
/// alignment and packing agree.
///
/// Its second `checksum` is the scheme of the first.
pub(crate) fn packet_header(order: Endian) -> Struct {
    let number = |size, role| Integer::unsigned(size, order).role(role);
    Struct::new()
        .with("magic", number(32, Role::Magic).hexadecimal())
        .with("session_id", number(32, Role::SessionId).hexadecimal())
        .with("content_size", number(32, Role::ContentBytes))
        .with("packet_size", number(32, Role::PacketBytes))
        .with("checksum", number(32, Role::Checksum).hexadecimal())
        .with("section_packet_count", number(32, Role::SequenceNumber))
        .with("timestamp_begin", number(64, Role::Timestamp).clock(CLOCK))
        .with("timestamp_end", number(64, Role::TimestampEnd).clock(CLOCK))
        .with("events_discarded", number(32, Role::EventsDiscarded))
        .with("section_packet_count_bits", number(8, Role::SequenceNumberBits))
        .with("compression_scheme", number(8, Role::CompressionScheme))
        .with("encryption_scheme", number(8, Role::EncryptionScheme))
        .with("checksum_scheme", number(8, Role::ChecksumScheme))
}

/// How an architecture aligns numbers, taken from the metadata's own types: 8 is packed.
#[derive(Clone, Copy)]
pub(super) struct Alignments {
    /// Of `uint16_t`.
    pub(super) u16: u32,
    /// Of `uint32_t`.
    pub(super) u32: u32,
    /// Of `uint64_t`.
    pub(super) u64: u32,
}

impl Alignments {
    /// Everything follows on the next byte, where all readings of the RFC agree.
    pub(super) const PACKED: Alignments = Alignments { u16: 8, u32: 8, u64: 8 };
}

/// Type 1 (RFC 6.1.1): 5 bits of id, 27 of the time. Id 31: 96 bits with the full id and time
/// follow without a gap (6.1.2).
pub(super) fn type1(order: Endian, align: Alignments) -> Struct {
    let number = |size| Integer::unsigned(size, order);
    let extended = Struct::new()
        .with("id", number(32).align(1).role(Role::EventClassId))
        .with("timestamp", number(64).align(1).role(Role::Timestamp).clock(CLOCK));
    Struct {
        min_align: align.u32,
        ..Struct::new()
    }
    .with("id", number(5).align(1).role(Role::EventClassId))
    .with("timestamp", number(27).align(1).role(Role::Timestamp).clock(CLOCK))
    .with("extended", if_extended(31, extended))
    .with("end", if_extended(31, aligned(align.u64)))
}

/// Type 2 (RFC 6.1.3): 32 bits of the time, 16 of id. Id 65535: the full time and id follow,
/// aligned as 64 bits are (6.1.4).
pub(super) fn type2(order: Endian, align: Alignments) -> Struct {
    let number = |size| Integer::unsigned(size, order);
    let extended = aligned(align.u64)
        .with("timestamp", number(64).role(Role::Timestamp).clock(CLOCK))
        .with("id", number(32).role(Role::EventClassId));
    Struct::new()
        .with(
            "timestamp",
            number(32).align(align.u32).role(Role::Timestamp).clock(CLOCK),
        )
        .with("id", number(16).align(align.u16).role(Role::EventClassId))
        .with("extended", if_extended(0xffff, extended))
        .with("end", if_extended(0xffff, aligned(align.u32)))
}

fn aligned(bits: u32) -> Struct {
    Struct {
        min_align: bits,
        ..Struct::new()
    }
}

/// The struct after an id that says so, and nothing after others. A variant, because it does not
/// ask the structs around it for the alignment of an option that is not there.
fn if_extended(id: i128, class: Struct) -> Variant {
    let option = |name: &str, range, class| VariantOption {
        name: name.to_owned(),
        ranges: vec![range],
        class: FieldClass::Struct(class),
    };
    let compact = Range { first: 0, last: id - 1 };
    Variant {
        tag: Reference::new(Scope::EventHeader, &["id"]),
        options: vec![
            option("compact", compact, Struct::new()),
            option("extended", Range::one(id), class),
        ],
    }
}
