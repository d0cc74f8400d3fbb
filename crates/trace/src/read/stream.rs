//! One stream: packet after packet into a buffer, event after event out of it.

use super::event::Event;
use super::{Options, fail};
use crate::constants::PACKET_MAGIC;
use crate::description::Role;
use crate::error::{DecodeError, DecodeErrorKind, TraceError, TraceErrorKind};
use crate::plan::{Decoder, Node, Plan, Roles};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a stream has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Whole packets.
    pub packets: u64,
    /// Events.
    pub events: u64,
    /// Events that the tracer dropped between the first packet's begin and now, by the counters of the packets.
    pub discarded: u64,
    /// Packets that are missing by the sequence numbers.
    pub lost_packets: u64,
    /// Streams that ended early because a packet could not be read; only with [`Options::recover`].
    pub damaged: u64,
}

/// What a packet says of itself. Sizes are in bits, times in cycles of the stream's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Bytes from the file's start.
    pub offset: u64,
    /// Index of the stream class in the description.
    pub stream_class: usize,
    /// With padding.
    pub packet_bits: u64,
    /// Without padding.
    pub content_bits: u64,
    /// Number of the stream in its class.
    pub instance_id: Option<u64>,
    /// The clock at its begin.
    pub begin: Option<u64>,
    /// The clock at its end.
    pub end: Option<u64>,
    /// Number of the packet in its stream.
    pub sequence_number: Option<u64>,
    /// Events dropped since the stream began, as of the packet's end.
    pub events_discarded: Option<u64>,
}

/// Reads a stream. Memory: one packet, and one event.
#[derive(Debug)]
pub struct StreamReader {
    pub(super) plan: Arc<Plan>,
    path: PathBuf,
    file: File,
    length: u64,
    options: Options,
    /// Where the next packet begins.
    next_packet: u64,
    pub(super) state: State,
    statistics: Statistics,
    finished: bool,
}

/// The current packet and event.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) data: Vec<u8>,
    pub(super) packet: Packet,
    has_packet: bool,
    /// Next event's place in the packet, in bits.
    position: u64,
    clock: u64,
    registers: Vec<u64>,
    /// The packet context, as long as there is one.
    pub(super) packet_tape: Vec<Node>,
    pub(super) has_context: bool,
    /// The event: each struct from its node on.
    pub(super) tape: Vec<Node>,
    pub(super) event: usize,
    pub(super) event_context: Option<usize>,
    pub(super) context: Option<usize>,
    pub(super) payload: Option<usize>,
    pub(super) timestamp: Option<u64>,
}

/// What is read of a packet before its size is known.
const FIRST_READ: u64 = 4096;

impl StreamReader {
    pub(super) fn open(plan: Arc<Plan>, path: &Path, options: Options) -> Result<StreamReader, TraceError> {
        let io = |error| fail(path, TraceErrorKind::Io(error));
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let registers = vec![0; plan.slots];
        Ok(StreamReader {
            plan,
            path: path.to_owned(),
            file,
            length,
            options,
            next_packet: 0,
            state: State {
                registers,
                ..State::default()
            },
            statistics: Statistics::default(),
            finished: false,
        })
    }

    /// The stream's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub fn file_bytes(&self) -> u64 {
        self.length
    }

    /// What was counted up to the current event.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The packet of the current event, or the last one that was read.
    pub fn packet(&self) -> Option<&Packet> {
        self.state.has_packet.then_some(&self.state.packet)
    }

    /// The next event; `None` at the end of the stream.
    #[allow(clippy::should_implement_trait)] // It lends its buffers, which an iterator cannot.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        Ok(self.advance()?.then(|| self.event()))
    }

    /// Decodes the next event; whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        if self.finished {
            return Ok(false);
        }
        let result = self.try_advance();
        match &result {
            Ok(true) => self.statistics.events += 1,
            Ok(false) => self.finished = true,
            Err(error) => {
                self.finished = true;
                if self.options.recover && matches!(error.kind, TraceErrorKind::Packet { .. }) {
                    self.statistics.damaged += 1;
                    return Ok(false);
                }
            }
        }
        result
    }

    /// The event that was decoded last.
    pub(super) fn event(&self) -> Event<'_> {
        Event::new(self)
    }

    fn try_advance(&mut self) -> Result<bool, TraceError> {
        while !self.state.has_packet || self.state.position >= self.state.packet.content_bits {
            if self.next_packet >= self.length {
                return Ok(false);
            }
            self.read_packet()?;
        }
        let offset = self.state.packet.offset;
        let result = self.state.decode_event(&self.plan);
        result.map_err(|error| fail(&self.path, TraceErrorKind::Packet { offset, error }))?;
        Ok(true)
    }

    /// Reads the next packet: first its beginning, which tells its size, then all of it.
    fn read_packet(&mut self) -> Result<(), TraceError> {
        let offset = self.next_packet;
        let rest = self.length - offset;
        let mut beginning = FIRST_READ.min(rest);
        let packet = loop {
            self.fill(offset, 0, beginning)?;
            match self.state.decode_packet(&self.plan, offset, rest) {
                // The header may be longer than what was read.
                Err(error) if error.kind == DecodeErrorKind::Truncated && beginning < rest => {
                    beginning = beginning.saturating_mul(8).min(rest);
                }
                result => break result,
            }
        };
        let packet = packet.map_err(|error| fail(&self.path, TraceErrorKind::Packet { offset, error }))?;
        let bytes = packet.packet_bits / 8;
        let content = packet.content_bits.div_ceil(8);
        self.fill(offset, beginning.min(content), content)?;
        self.count(&packet);
        self.state.packet = packet;
        self.state.has_packet = true;
        self.next_packet = offset + bytes;
        Ok(())
    }

    /// Makes `data` the `end` bytes of the file from `offset`, of which the first `start` are there already.
    fn fill(&mut self, offset: u64, start: u64, end: u64) -> Result<(), TraceError> {
        // Both are at most the length of the file.
        let (start, end) = (start as usize, end as usize);
        self.state.data.resize(end, 0);
        self.file
            .read_exact_at(&mut self.state.data[start..], offset + start as u64)
            .map_err(|error| fail(&self.path, TraceErrorKind::Io(error)))
    }

    fn count(&mut self, packet: &Packet) {
        let before = self.state.has_packet.then_some(self.state.packet);
        let pair = |get: fn(&Packet) -> Option<u64>| before.as_ref().and_then(get).zip(get(packet));
        if let Some((old, new)) = pair(|packet| packet.sequence_number) {
            self.statistics.lost_packets += new.saturating_sub(old.saturating_add(1));
        }
        match pair(|packet| packet.events_discarded) {
            Some((old, new)) => self.statistics.discarded += new.saturating_sub(old),
            // A stream that begins with its first packet has counted from 0.
            None if packet.sequence_number == Some(0) => {
                self.statistics.discarded += packet.events_discarded.unwrap_or(0)
            }
            None => {}
        }
        self.statistics.packets += 1;
    }
}

impl State {
    /// Decodes the packet header and context at the start of `data`, a packet at most `rest` bytes long.
    pub(super) fn decode_packet(&mut self, plan: &Plan, offset: u64, rest: u64) -> Result<Packet, DecodeError> {
        let mut roles = Roles::default();
        self.packet_tape.clear();
        let mut decoder = Decoder {
            plan,
            data: &self.data,
            limit: self.data.len() as u64 * 8,
            position: 0,
            registers: &mut self.registers,
            tape: &mut self.packet_tape,
            roles: &mut roles,
            clock: &mut self.clock,
        };
        if let Some(header) = plan.packet_header {
            decoder.field(header)?;
        }
        let wrong = |kind| DecodeError { kind, bit: 0 };
        if let Some(magic) = decoder.roles.get(Role::Magic)
            && magic != PACKET_MAGIC
        {
            return Err(wrong(DecodeErrorKind::Magic(magic)));
        }
        let stream_class = match decoder.roles.get(Role::StreamClassId) {
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
        let class = &plan.streams[stream_class];
        decoder.tape.clear();
        self.has_context = class.packet_context.is_some();
        if let Some(context) = class.packet_context {
            decoder.field(context)?;
        }
        self.position = decoder.position;
        let (packet_bits, content_bits) = sizes(&roles, self.position, rest)?;
        Ok(Packet {
            offset,
            stream_class,
            packet_bits,
            content_bits,
            instance_id: roles.get(Role::StreamInstanceId),
            begin: roles.get(Role::Timestamp),
            end: roles.get(Role::TimestampEnd),
            sequence_number: roles.get(Role::SequenceNumber),
            events_discarded: roles.get(Role::EventsDiscarded),
        })
    }

    /// Decodes the event at the current position.
    pub(super) fn decode_event(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let class = &plan.streams[self.packet.stream_class];
        let start = self.position;
        let mut roles = Roles::default();
        self.tape.clear();
        let mut decoder = Decoder {
            plan,
            data: &self.data,
            limit: self.packet.content_bits,
            position: start,
            registers: &mut self.registers,
            tape: &mut self.tape,
            roles: &mut roles,
            clock: &mut self.clock,
        };
        if let Some(header) = class.event_header {
            decoder.field(header)?;
        }
        let id = match decoder.roles.get(Role::EventClassId) {
            Some(id) => id,
            // Without ids there is one class only.
            None => plan.description().streams[self.packet.stream_class]
                .events
                .first()
                .map_or(0, |event| event.id),
        };
        let unknown = decoder.error(DecodeErrorKind::UnknownEventClass(id));
        let index = *class.events_by_id.get(&id).ok_or(unknown)?;
        let event = &class.events[index];
        let mut decode = |root: Option<u32>| root.map(|root| decoder.field(root)).transpose();
        self.event_context = decode(class.event_context)?;
        self.context = decode(event.context)?;
        self.payload = decode(event.payload)?;
        if decoder.position == start {
            return Err(decoder.error(DecodeErrorKind::EmptyEvent));
        }
        self.position = decoder.position;
        self.event = index;
        let timed = roles.get(Role::Timestamp).is_some() || self.packet.begin.is_some();
        self.timestamp = timed.then_some(self.clock);
        Ok(())
    }
}

/// Decodes all of a packet that is in memory, for the fuzz target; how many events it has.
pub(crate) fn decode_all(plan: &Plan, data: &[u8]) -> Result<u64, DecodeError> {
    let mut state = State {
        data: data.to_vec(),
        registers: vec![0; plan.slots],
        ..State::default()
    };
    state.packet = state.decode_packet(plan, 0, data.len() as u64)?;
    let mut events = 0;
    while state.position < state.packet.content_bits {
        state.decode_event(plan)?;
        events += 1;
    }
    Ok(events)
}

/// Packet and content size in bits, of a packet whose header takes `header` bits, in `rest` bytes of file.
fn sizes(roles: &Roles, header: u64, rest: u64) -> Result<(u64, u64), DecodeError> {
    let wrong = |kind| Err(DecodeError { kind, bit: header });
    let content = roles.get(Role::ContentSize);
    // Each stands for the other where only one is there; without both, the packet is the rest of the file.
    let packet = roles
        .get(Role::PacketSize)
        .or(content)
        .unwrap_or(rest.saturating_mul(8));
    let content = content.unwrap_or(packet);
    if !packet.is_multiple_of(8) || packet < header || packet == 0 {
        return wrong(DecodeErrorKind::PacketSize(packet));
    }
    if content > packet || content < header {
        return wrong(DecodeErrorKind::ContentSize(content));
    }
    match (packet / 8).checked_sub(rest) {
        Some(missing) if missing > 0 => wrong(DecodeErrorKind::PacketPastEnd { missing }),
        _ => Ok((packet, content)),
    }
}
