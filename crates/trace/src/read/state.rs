//! The current packet and event of a reader.

use crate::constants::PACKET_MAGIC;
use crate::content::{ContentDecoder, StoredPacket};
use crate::description::Role;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::plan::{Decoder, Node, Plan, Roles};
use crate::slot::Slot;
use backtrail_wire::Endian;

/// A packet's header and context. Sizes are in bits, times in cycles of the stream's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Bytes from the file's start.
    pub offset: u64,
    /// Index of the stream class in the description.
    pub stream_class: usize,
    /// Including padding.
    pub packet_bits: u64,
    /// Without padding.
    pub content_bits: u64,
    /// Number of the stream in its class.
    pub instance_id: Option<u64>,
    /// The clock at its start.
    pub begin: Option<u64>,
    /// The clock at its end.
    pub end: Option<u64>,
    /// Number of the packet in its stream.
    pub sequence_number: Option<u64>,
    /// The significant bits of that number (RFC 5); 64 if the packet does not say.
    pub sequence_number_bits: u32,
    /// The session that it belongs to (RFC 5).
    pub session: Option<u64>,
    /// Events dropped since the stream began, at the packet's end; in the RFC's packets at their
    /// start.
    pub events_discarded: Option<u64>,
}

/// The current packet and event.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) data: Vec<u8>,
    pub(super) packet: Packet,
    pub(super) has_packet: bool,
    /// Class of all packets, if the file's name identifies it.
    pub(super) class: Option<usize>,
    /// Whether the packets may be longer than the file.
    pub(super) cut: bool,
    /// Whether more bytes may follow those that are there.
    pub(super) open: bool,
    /// The values of the packet's header and context.
    pub(super) packet_roles: Roles,
    /// The start of the packet, and the end of the previous one, up to the first event.
    pub(super) due: Option<u64>,
    /// Bits that may follow the last event because the content's size is in bytes.
    pub(super) slack: u64,
    /// Bits of `data` that the packet's header, its context and its events take.
    pub(super) limit: u64,
    /// Next event's place in the packet, in bits.
    pub(super) position: u64,
    /// The current event's place, before its alignment.
    pub(super) start: u64,
    pub(super) clock: u64,
    /// Byte order of the last field.
    pub(super) order: Option<Endian>,
    pub(super) registers: Vec<u64>,
    /// The packet context, valid as long as there is one.
    pub(super) packet_tape: Vec<Node>,
    pub(super) has_context: bool,
    /// The values of the current event's header.
    pub(super) roles: Roles,
    /// A slot for data derived from the packet.
    pub(super) slot: Slot,
    /// The event: each struct starts at its node.
    pub(super) tape: Vec<Node>,
    pub(super) event: usize,
    pub(super) event_context: Option<usize>,
    pub(super) context: Option<usize>,
    pub(super) payload: Option<usize>,
    pub(super) timestamp: Option<u64>,
    /// The same in nanoseconds from the clock's origin.
    pub(super) time: Option<i64>,
}

impl State {
    /// The state at the start of one packet.
    pub(super) fn of(plan: &Plan, data: &[u8]) -> State {
        State {
            data: data.to_vec(),
            registers: vec![0; plan.slots],
            ..State::default()
        }
    }

    /// Whether the current packet has another event.
    #[inline]
    pub(super) fn has_event(&self) -> bool {
        self.has_packet && self.position.saturating_add(self.slack) < self.limit
    }

    /// Decodes the packet header and context at the start of `data`, a packet at most `rest` bytes
    /// long.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan; eight bits for each byte in memory"
    )]
    pub(super) fn decode_packet(&mut self, plan: &Plan, offset: u64, rest: u64) -> Result<Packet, DecodeError> {
        let mut roles = Roles::default();
        self.packet_tape.clear();
        self.slot.clear();
        // A packet's start is taken as it is, whatever came before: also a short one, as in both
        // babeltraces.
        let mut clock = 0;
        let mut decoder = Decoder {
            plan,
            data: &self.data,
            limit: self.data.len() as u64 * 8,
            position: 0,
            registers: &mut self.registers,
            tape: &mut self.packet_tape,
            roles: &mut roles,
            clock: &mut clock,
            order: &mut self.order,
        };
        if let Some(header) = plan.packet_header {
            decoder.field(header)?;
        }
        let wrong = |kind| DecodeError { kind, bit: 0 };
        self.slack = if decoder.roles.get(Role::ContentBytes).is_some() {
            7
        } else {
            0
        };
        if let Some(magic) = decoder.roles.get(Role::Magic)
            && magic != PACKET_MAGIC
        {
            return Err(wrong(DecodeErrorKind::Magic(magic)));
        }
        let session = decoder.roles.get(Role::SessionId);
        if let (Some(id), Some(ours)) = (session, plan.description().session)
            && id != u64::from(ours)
        {
            return Err(wrong(DecodeErrorKind::Session(id)));
        }
        let stream_class = match decoder.roles.get(Role::StreamClassId) {
            _ if self.class.is_some_and(|class| class < plan.streams.len()) => self.class.unwrap_or(0),
            Some(id) => plan
                .stream_index(id)
                .ok_or(wrong(DecodeErrorKind::UnknownStreamClass(id)))?,
            None if !plan.streams.is_empty() => 0,
            None => return Err(wrong(DecodeErrorKind::UnknownStreamClass(0))),
        };
        if self.has_packet && stream_class != self.packet.stream_class {
            let id = plan.description().streams[stream_class].id;
            return Err(wrong(DecodeErrorKind::StreamClassChanged(id)));
        }
        let instance_id = decoder.roles.get(Role::StreamInstanceId);
        if self.has_packet && instance_id != self.packet.instance_id {
            return Err(wrong(DecodeErrorKind::StreamChanged(instance_id.unwrap_or(0))));
        }
        let class = &plan.streams[stream_class];
        decoder.tape.clear();
        self.has_context = class.packet_context.is_some();
        if let Some(context) = class.packet_context {
            decoder.field(context)?;
        }
        self.position = decoder.position;
        if roles.get(Role::Timestamp).is_some() {
            self.clock = clock;
        }
        let (packet_bits, content_bits) = sizes(&roles, self.position, rest, (self.cut, self.open))?;
        for cycles in [Role::Timestamp, Role::TimestampEnd]
            .into_iter()
            .filter_map(|role| roles.get(role))
        {
            if class
                .clock
                .as_ref()
                .is_some_and(|clock| clock.nanoseconds_at(cycles).is_none())
            {
                return Err(wrong(DecodeErrorKind::Clock(cycles)));
            }
        }
        self.packet_roles = roles;
        Ok(Packet {
            offset,
            stream_class,
            packet_bits,
            content_bits,
            instance_id,
            begin: roles.get(Role::Timestamp),
            end: roles.get(Role::TimestampEnd),
            sequence_number: roles.get(Role::SequenceNumber),
            sequence_number_bits: roles
                .get(Role::SequenceNumberBits)
                .map_or(64, |bits| bits.min(64) as u32),
            session,
            events_discarded: roles.get(Role::EventsDiscarded),
        })
    }

    /// Reverses the transformation of the content, once all of it is in `data`.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the current packet and event are of classes of the plan; eight bits for each byte in memory"
    )]
    pub(super) fn unpack(&mut self, content: Option<&dyn ContentDecoder>) -> Result<(), DecodeError> {
        self.limit = self.packet.content_bits.min(self.data.len() as u64 * 8);
        let start = (self.position / 8) as usize;
        let decoded = match content {
            Some(content) => {
                // Only packets whose header is whole bytes declare a transformation.
                let (header, stored) = self.data.split_at_checked(start).unwrap_or_default();
                content.decode(&StoredPacket::new(header, stored, &self.packet_roles))
            }
            None => self.is_plain().map(|()| None),
        };
        let decoded = decoded.map_err(|kind| {
            let bit = self.position;
            self.position = self.limit;
            DecodeError { kind, bit }
        })?;
        if let Some(content) = decoded {
            self.data.truncate(start);
            self.data.extend_from_slice(&content);
            self.limit = self.data.len() as u64 * 8;
        }
        Ok(())
    }

    /// Fails if the content is transformed.
    fn is_plain(&self) -> Result<(), DecodeErrorKind> {
        let scheme = |role| self.packet_roles.get(role).filter(|&scheme| scheme != 0);
        if let Some(scheme) = scheme(Role::ChecksumScheme) {
            return Err(DecodeErrorKind::ChecksumScheme(scheme));
        }
        if let Some(scheme) = scheme(Role::EncryptionScheme) {
            return Err(DecodeErrorKind::EncryptionScheme(scheme));
        }
        scheme(Role::CompressionScheme).map_or(Ok(()), |scheme| Err(DecodeErrorKind::CompressionScheme(scheme)))
    }

    /// Decodes the event at the current position.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan; eight bits for each byte in memory"
    )]
    pub(super) fn decode_event(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let class = &plan.streams[self.packet.stream_class];
        let start = self.position;
        self.start = start;
        let roles = &mut self.roles;
        roles.clear();
        self.tape.clear();
        let mut decoder = Decoder {
            plan,
            data: &self.data,
            limit: self.limit,
            position: start,
            registers: &mut self.registers,
            tape: &mut self.tape,
            roles,
            clock: &mut self.clock,
            order: &mut self.order,
        };
        decoder.event_header(class)?;
        let id = match decoder.roles.get(Role::EventClassId) {
            Some(id) => id,
            // Without ids there is only one class.
            None => plan.description().streams[self.packet.stream_class]
                .events
                .first()
                .map_or(0, |event| event.id),
        };
        let unknown = decoder.error(DecodeErrorKind::UnknownEventClass(id));
        let index = class.events_by_id.get(id).ok_or(unknown)?;
        let event = &class.events[index];
        [self.event_context, self.context, self.payload] = decoder.event_fields(class, event)?;
        if decoder.position == start {
            return Err(decoder.error(DecodeErrorKind::EmptyEvent));
        }
        self.position = decoder.position;
        self.event = index;
        let timed = self.roles.get(Role::Timestamp).is_some() || self.packet.begin.is_some();
        self.timestamp = timed.then_some(self.clock);
        self.time = match (&class.clock, self.timestamp) {
            (Some(clock), Some(cycles)) => Some(clock.nanoseconds_at(cycles).ok_or(DecodeError {
                kind: DecodeErrorKind::Clock(cycles),
                bit: start,
            })?),
            _ => None,
        };
        Ok(())
    }
}

/// Packet and content size in bits, for a packet whose header takes `header` bits, in `rest` bytes
/// of file; with `cut`, the file may end before the packet does; with `open`, it may grow.
fn sizes(roles: &Roles, header: u64, rest: u64, (cut, open): (bool, bool)) -> Result<(u64, u64), DecodeError> {
    let wrong = |kind| Err(DecodeError { kind, bit: header });
    let in_bits = |role| roles.get(role).map(|bytes| bytes.saturating_mul(8));
    let content = roles.get(Role::ContentSize).or(in_bits(Role::ContentBytes));
    // If only one of them is present, it replaces the other; without both, the packet is the rest
    // of the file.
    let packet = roles.get(Role::PacketSize).or(in_bits(Role::PacketBytes)).or(content);
    if packet.is_none() && open {
        return wrong(DecodeErrorKind::PacketPastEnd { missing: 1 });
    }
    let packet = packet.unwrap_or(rest.saturating_mul(8));
    let content = content.unwrap_or(packet);
    if !packet.is_multiple_of(8) || packet < header || packet == 0 {
        return wrong(DecodeErrorKind::PacketSize(packet));
    }
    if content > packet || content < header {
        return wrong(DecodeErrorKind::ContentSize(content));
    }
    match (packet / 8).checked_sub(rest) {
        Some(missing) if missing > 0 && !cut => wrong(DecodeErrorKind::PacketPastEnd { missing }),
        _ => Ok((packet, content)),
    }
}
