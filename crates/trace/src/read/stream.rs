//! One stream: packet after packet into a buffer, event after event out of it.

mod split;

pub(super) use split::Totals;

use super::event::{Event, Fields};
use super::{Options, Recover, fail};
use crate::constants::{MAX_PROBLEMS, METADATA_ALLOWANCE, PACKET_MAGIC, RFC_PACKET_HEADER_BYTES};
use crate::content::{Key, Schemes};
use crate::description::Role;
use crate::error::{DecodeError, DecodeErrorKind, TraceError, TraceErrorKind};
use crate::plan::{Decoder, Node, Plan, Roles};
use crate::slot::Slot;
use backtrail_wire::Endian;
use std::cell::Cell;
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
    /// Packets that could not be read, or not to their end; only with [`Options::recover`].
    pub damaged: u64,
}

impl std::ops::Add for Statistics {
    type Output = Statistics;

    fn add(self, other: Statistics) -> Statistics {
        Statistics {
            packets: self.packets + other.packets,
            events: self.events + other.events,
            discarded: self.discarded + other.discarded,
            lost_packets: self.lost_packets + other.lost_packets,
            damaged: self.damaged + other.damaged,
        }
    }
}

/// What was wrong with a packet; only with [`Options::recover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Bytes from the file's start to the packet.
    pub offset: u64,
    /// What was wrong.
    pub error: DecodeError,
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
    /// How many bits of that number count (RFC 5); 64 where nothing is said.
    pub sequence_number_bits: u32,
    /// The session that it belongs to (RFC 5).
    pub session: Option<u64>,
    /// Events dropped since the stream began, as of the packet's end; of the RFC's packets as of their begin.
    pub events_discarded: Option<u64>,
}

/// Reads a stream. Memory: one packet, and one event.
#[derive(Debug)]
pub struct StreamReader {
    pub(super) plan: Arc<Plan>,
    path: PathBuf,
    source: Source,
    length: u64,
    options: Options,
    /// Where the next packet begins.
    next_packet: u64,
    /// No packet from there on is read.
    end: u64,
    pub(super) state: State,
    statistics: Statistics,
    problems: Vec<Problem>,
    /// Where the last packet with a problem begins.
    damaged: Option<u64>,
    /// Cycles at the begin and the end, as far as it was read.
    span: (Option<u64>, Option<u64>),
    finished: bool,
}

/// Where a stream's bytes are.
#[derive(Debug)]
enum Source {
    File(Arc<File>),
    Bytes(Vec<u8>),
    /// The other one for so many reads.
    Failing(Box<Source>, Cell<u64>),
}

impl Source {
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> std::io::Result<()> {
        let bytes = match self {
            Source::File(file) => return file.read_exact_at(out, offset),
            Source::Bytes(bytes) => bytes,
            Source::Failing(source, left) => {
                let next = left.get().checked_sub(1);
                left.set(next.ok_or(std::io::ErrorKind::BrokenPipe)?);
                return source.read_exact_at(out, offset);
            }
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let wanted = start.checked_add(out.len()).and_then(|end| bytes.get(start..end));
        out.copy_from_slice(wanted.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The current packet and event.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) data: Vec<u8>,
    pub(super) packet: Packet,
    has_packet: bool,
    /// Class of all packets where the file's name tells it.
    pub(super) class: Option<usize>,
    /// Whether the packets may be longer than the file.
    cut: bool,
    /// What was done to the content.
    schemes: Schemes,
    /// The begin of the packet, and the end of the one before, up to the first event.
    due: Option<u64>,
    /// Bits that may follow the last event because the content's size is in bytes.
    slack: u64,
    /// Bits of `data` that the packet's header, its context and its events take.
    limit: u64,
    /// Next event's place in the packet, in bits.
    position: u64,
    clock: u64,
    /// Byte order of the last field.
    order: Option<Endian>,
    registers: Vec<u64>,
    /// The packet context, as long as there is one.
    pub(super) packet_tape: Vec<Node>,
    pub(super) has_context: bool,
    /// What the current event's header says.
    roles: Roles,
    /// Room for what is derived from the packet.
    pub(super) slot: Slot,
    /// The event: each struct from its node on.
    pub(super) tape: Vec<Node>,
    pub(super) event: usize,
    pub(super) event_context: Option<usize>,
    pub(super) context: Option<usize>,
    pub(super) payload: Option<usize>,
    pub(super) timestamp: Option<u64>,
    /// That in nanoseconds from the clock's origin.
    pub(super) time: Option<i64>,
}

/// What is read of a packet before its size is known.
const FIRST_READ: u64 = 4096;

impl StreamReader {
    /// `class` is the index of the stream class where the file's name tells it.
    pub(super) fn open(
        plan: Arc<Plan>,
        path: &Path,
        class: Option<usize>,
        options: Options,
    ) -> Result<StreamReader, TraceError> {
        let io = |error| fail(path, TraceErrorKind::Io(error));
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        Ok(StreamReader::new(
            plan,
            path,
            (Source::File(Arc::new(file)), length),
            class,
            options,
        ))
    }

    /// A stream that is in memory.
    pub(crate) fn of_memory(
        plan: Arc<Plan>,
        path: &Path,
        bytes: Vec<u8>,
        class: Option<usize>,
        options: Options,
    ) -> StreamReader {
        let length = bytes.len() as u64;
        StreamReader::new(plan, path, (Source::Bytes(bytes), length), class, options)
    }

    /// After so many reads each further one fails, as those of a broken disk do; for tests.
    pub(crate) fn fail_after(mut self, reads: u64) -> StreamReader {
        self.source = Source::Failing(Box::new(self.source), Cell::new(reads));
        self
    }

    fn new(
        plan: Arc<Plan>,
        path: &Path,
        (source, length): (Source, u64),
        class: Option<usize>,
        options: Options,
    ) -> StreamReader {
        let registers = vec![0; plan.slots];
        StreamReader {
            plan,
            path: path.to_owned(),
            source,
            length,
            options,
            next_packet: 0,
            end: length,
            state: State {
                registers,
                class,
                cut: options.recover == Recover::NextPacket,
                ..State::default()
            },
            statistics: Statistics::default(),
            problems: Vec::new(),
            damaged: None,
            span: (None, None),
            finished: false,
        }
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

    /// Nanoseconds from the clock's origin at the begin and the end of what was read: by the packets, where they tell it, or
    /// else by the events.
    pub fn span(&self) -> (Option<i64>, Option<i64>) {
        let clock = self
            .plan
            .streams
            .get(self.state.packet.stream_class)
            .and_then(|class| class.clock.as_ref());
        let time = |cycles: Option<u64>| clock?.nanoseconds_at(cycles?);
        (time(self.span.0), time(self.span.1))
    }

    /// What was wrong with packets, one problem each, and at most [`MAX_PROBLEMS`] of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
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
        loop {
            let result = self.try_advance();
            match &result {
                Ok(true) => self.count_event(),
                Ok(false) => self.finished = true,
                Err(error) => {
                    let goes_on = self.recovers(error);
                    if goes_on == Some(true) {
                        continue;
                    }
                    self.finished = true;
                    if goes_on.is_some() {
                        return Ok(false);
                    }
                }
            }
            return result;
        }
    }

    fn count_event(&mut self) {
        self.statistics.events += 1;
        if let Some(cycles) = self.state.timestamp {
            self.span.0.get_or_insert(cycles);
            if self.state.packet.end.is_none() {
                self.span.1 = Some(cycles);
            }
        }
    }

    /// Notes a problem that does not end everything; whether the stream goes on with the next packet.
    fn recovers(&mut self, error: &TraceError) -> Option<bool> {
        let TraceErrorKind::Packet { offset, error } = error.kind else {
            return None;
        };
        if self.options.recover == Recover::Never {
            return None;
        }
        self.note(Problem { offset, error });
        // Where the packet's size could not be read, nobody knows where the next one begins.
        let goes_on = self.options.recover == Recover::NextPacket && self.next_packet > offset;
        self.state.position = self.state.limit;
        Some(goes_on)
    }

    /// The first problem of a packet.
    fn note(&mut self, problem: Problem) {
        if self.damaged.replace(problem.offset) == Some(problem.offset) {
            return;
        }
        self.statistics.damaged += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// When the current event is due: at its time, but not before the packet that it is the first one of.
    pub(super) fn merge_time(&self) -> Option<i64> {
        let time = self.state.time?;
        let Some(due) = self.state.due else { return Some(time) };
        let clock = self.plan.streams[self.state.packet.stream_class].clock.as_ref()?;
        let begin = clock.nanoseconds_at(due);
        Some(begin.map_or(time, |begin| begin.max(time)))
    }

    /// The event that was decoded last.
    pub(super) fn event(&self) -> Event<'_> {
        Event::new(self)
    }

    fn try_advance(&mut self) -> Result<bool, TraceError> {
        self.state.due = None;
        while !self.state.has_event() {
            if !self.next_packet()? {
                return Ok(false);
            }
        }
        self.decode_event()?;
        Ok(true)
    }

    fn decode_event(&mut self) -> Result<(), TraceError> {
        let offset = self.state.packet.offset;
        let result = self.state.decode_event(&self.plan);
        result.map_err(|error| fail(&self.path, TraceErrorKind::Packet { offset, error }))
    }

    /// Passes over the rest of the packet; whether there is another one, which then is the current one.
    pub(crate) fn next_packet(&mut self) -> Result<bool, TraceError> {
        if self.is_at_end() {
            return Ok(false);
        }
        self.read_packet()?;
        Ok(true)
    }

    /// The next event of the packet.
    pub(crate) fn next_of_packet(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        if !self.state.has_event() {
            return Ok(None);
        }
        self.decode_event()?;
        Ok(Some(self.event()))
    }

    /// The context of the current packet.
    pub(crate) fn packet_context(&self) -> Option<Fields<'_>> {
        self.event().packet_context()
    }

    /// Header and content of the current packet, before any event was taken from it.
    pub(crate) fn packet_bytes(&self) -> (&[u8], &[u8]) {
        let end = (self.state.limit / 8) as usize;
        let data = self.state.data.get(..end).unwrap_or_default();
        data.split_at_checked((self.state.position / 8) as usize)
            .unwrap_or_default()
    }

    /// Nanoseconds from the origin of the current stream's clock.
    pub(crate) fn nanoseconds_at(&self, cycles: u64) -> Option<i64> {
        let class = self.plan.streams.get(self.state.packet.stream_class)?;
        class.clock.as_ref()?.nanoseconds_at(cycles)
    }

    /// Reads the beginning of the next packet, which tells its size; how many bytes it read.
    fn read_header(&mut self) -> Result<(Packet, u64), TraceError> {
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
        Ok((packet, beginning))
    }

    /// Reads the next packet.
    fn read_packet(&mut self) -> Result<(), TraceError> {
        let offset = self.next_packet;
        let rest = self.length - offset;
        let (packet, beginning) = self.read_header()?;
        self.next_packet = offset.saturating_add(packet.packet_bits / 8);
        let content = packet.content_bits.min(rest * 8).div_ceil(8);
        self.fill(offset, beginning.min(content), content)?;
        self.count(&packet);
        let due = [self.state.packet.end, packet.begin, self.state.due];
        self.state.due = due.into_iter().flatten().max();
        self.state.packet = packet;
        self.state.has_packet = true;
        let result = self.state.unpack(self.options.key);
        result.map_err(|error| fail(&self.path, TraceErrorKind::Packet { offset, error }))?;
        if let Some(missing) = (packet.packet_bits / 8)
            .checked_sub(rest)
            .filter(|&missing| missing > 0)
        {
            let bit = rest * 8;
            let kind = DecodeErrorKind::PacketPastEnd { missing };
            let error = DecodeError { kind, bit };
            self.note(Problem { offset, error });
        }
        Ok(())
    }

    /// Makes `data` the `end` bytes of the file from `offset`, of which the first `start` are there already.
    fn fill(&mut self, offset: u64, start: u64, end: u64) -> Result<(), TraceError> {
        // Both are at most the length of the file.
        let (start, end) = (start as usize, end as usize);
        self.state.data.resize(end, 0);
        self.source
            .read_exact_at(&mut self.state.data[start..], offset + start as u64)
            .map_err(|error| fail(&self.path, TraceErrorKind::Io(error)))
    }

    fn count(&mut self, packet: &Packet) {
        let before = self.state.has_packet.then_some(self.state.packet);
        let pair = |get: fn(&Packet) -> Option<u64>| before.as_ref().and_then(get).zip(get(packet));
        if let Some((old, new)) = pair(|packet| packet.sequence_number) {
            self.statistics.lost_packets += lost_between(old, new, packet.sequence_number_bits);
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
        self.span = (self.span.0.or(packet.begin), packet.end.or(self.span.1));
    }
}

impl State {
    /// For the beginning of one packet.
    pub(super) fn of(plan: &Plan, data: &[u8]) -> State {
        State {
            data: data.to_vec(),
            registers: vec![0; plan.slots],
            ..State::default()
        }
    }

    /// Whether the current packet has another event.
    fn has_event(&self) -> bool {
        self.has_packet && self.position.saturating_add(self.slack) < self.limit
    }

    /// Decodes the packet header and context at the start of `data`, a packet at most `rest` bytes long.
    pub(super) fn decode_packet(&mut self, plan: &Plan, offset: u64, rest: u64) -> Result<Packet, DecodeError> {
        let mut roles = Roles::default();
        self.packet_tape.clear();
        self.slot.clear();
        // A packet's begin is taken as it is, whatever was before: a short one too, as in both babeltraces.
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
        self.schemes = Schemes::of(decoder.roles);
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
        let (packet_bits, content_bits) = sizes(&roles, self.position, rest, self.cut)?;
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

    /// After the whole content is in `data`: undoes what was done to it after the event data was written.
    pub(super) fn unpack(&mut self, key: Option<Key>) -> Result<(), DecodeError> {
        self.limit = self.packet.content_bits.min(self.data.len() as u64 * 8);
        if self.schemes.are_none() {
            return Ok(());
        }
        // Only packets whose header is whole bytes say that something was done.
        let start = (self.position / 8) as usize;
        let (header, stored) = self.data.split_at_checked(start).unwrap_or_default();
        let content = self.schemes.unpack(header, stored, key).map_err(|kind| {
            let bit = self.position;
            self.position = self.limit;
            DecodeError { kind, bit }
        })?;
        if let Some(content) = content {
            self.data.truncate(start);
            self.data.extend_from_slice(&content);
            self.limit = self.data.len() as u64 * 8;
        }
        Ok(())
    }

    /// Decodes the event at the current position.
    pub(super) fn decode_event(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let class = &plan.streams[self.packet.stream_class];
        let start = self.position;
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
            // Without ids there is one class only.
            None => plan.description().streams[self.packet.stream_class]
                .events
                .first()
                .map_or(0, |event| event.id),
        };
        let unknown = decoder.error(DecodeErrorKind::UnknownEventClass(id));
        let index = class.events_by_id.get(id).ok_or(unknown)?;
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

/// Decodes all of a packet that is in memory, for the fuzz target; how many events it has.
pub(crate) fn decode_all(plan: &Plan, data: &[u8]) -> Result<u64, DecodeError> {
    let mut state = State::of(plan, data);
    state.packet = state.decode_packet(plan, 0, data.len() as u64)?;
    state.unpack(None)?;
    let mut events = 0;
    while state.position.saturating_add(state.slack) < state.limit {
        state.decode_event(plan)?;
        events += 1;
    }
    Ok(events)
}

/// The contents of metadata packets (RFC 7), one after the other.
pub(crate) struct Contents {
    pub(crate) text: Vec<u8>,
    pub(crate) session: Option<u32>,
}

/// Takes the contents out of the packets in a file that is read already. The packets' plan has no events.
pub(crate) fn packet_contents(plan: &Plan, file: &[u8]) -> Result<Contents, TraceErrorKind> {
    let mut state = State::of(plan, &[]);
    let mut contents = Contents {
        text: Vec::new(),
        session: None,
    };
    let mut rest = file;
    while !rest.is_empty() {
        let offset = (file.len() - rest.len()) as u64;
        let wrong = |error| TraceErrorKind::Packet { offset, error };
        let header = rest.get(..RFC_PACKET_HEADER_BYTES).unwrap_or(rest);
        state.data.clear();
        state.data.extend_from_slice(header);
        let packet = state.decode_packet(plan, offset, rest.len() as u64).map_err(wrong)?;
        let content = rest.get(header.len()..packet.content_bits.div_ceil(8) as usize);
        state.data.extend_from_slice(content.unwrap_or_default());
        state.packet = packet;
        state.unpack(None).map_err(wrong)?;
        let session = packet.session.map(|session| session as u32);
        if offset > 0 && session != contents.session {
            let kind = DecodeErrorKind::Session(packet.session.unwrap_or(0));
            return Err(wrong(DecodeError { kind, bit: 0 }));
        }
        contents.session = session;
        let start = (state.position / 8) as usize;
        contents
            .text
            .extend_from_slice(state.data.get(start..).unwrap_or_default());
        if contents.text.len() > file.len().saturating_add(METADATA_ALLOWANCE) {
            let kind = DecodeErrorKind::Bomb;
            return Err(wrong(DecodeError { kind, bit: 0 }));
        }
        rest = rest.get((packet.packet_bits / 8) as usize..).unwrap_or_default();
    }
    Ok(contents)
}

/// Packets that are missing between two of these numbers, of which `bits` bits count.
fn lost_between(old: u64, new: u64, bits: u32) -> u64 {
    if bits == 0 {
        return 0;
    }
    if bits >= 64 {
        return new.saturating_sub(old.saturating_add(1));
    }
    let mask = (1u64 << bits) - 1;
    let step = new.wrapping_sub(old) & mask;
    // The same number again is a packet read twice, not a whole round of packets.
    step.saturating_sub(1)
}

/// Packet and content size in bits, of a packet whose header takes `header` bits, in `rest` bytes of file; `cut`: the
/// file may end before the packet does.
fn sizes(roles: &Roles, header: u64, rest: u64, cut: bool) -> Result<(u64, u64), DecodeError> {
    let wrong = |kind| Err(DecodeError { kind, bit: header });
    let in_bits = |role| roles.get(role).map(|bytes| bytes.saturating_mul(8));
    let content = roles.get(Role::ContentSize).or(in_bits(Role::ContentBytes));
    // Each stands for the other where only one is there; without both, the packet is the rest of the file.
    let packet = roles
        .get(Role::PacketSize)
        .or(in_bits(Role::PacketBytes))
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
        Some(missing) if missing > 0 && !cut => wrong(DecodeErrorKind::PacketPastEnd { missing }),
        _ => Ok((packet, content)),
    }
}
