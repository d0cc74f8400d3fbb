//! Reads one stream: packet after packet into a buffer, event after event out of it.

use super::event::Event;
use super::options::{Options, Recover};
use super::state::{Packet, State};
use super::value::Fields;
use crate::constants::MAX_PROBLEMS;
use crate::content::ContentDecoder;
use crate::error::{DecodeError, DecodeErrorKind, TraceError, TraceErrorKind};
use crate::plan::Plan;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Counts of a stream's contents read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Complete packets.
    pub packets: u64,
    /// Events.
    pub events: u64,
    /// Events that the tracer dropped between the first packet's start and now, according to the
    /// counters of the packets.
    pub discarded: u64,
    /// Missing packets, according to the sequence numbers.
    pub lost_packets: u64,
    /// Packets that could not be read, or not completely; only with [`Options::recover`].
    pub damaged: u64,
}

impl std::ops::Add for Statistics {
    type Output = Statistics;

    fn add(self, other: Statistics) -> Statistics {
        Statistics {
            packets: self.packets.saturating_add(other.packets),
            events: self.events.saturating_add(other.events),
            discarded: self.discarded.saturating_add(other.discarded),
            lost_packets: self.lost_packets.saturating_add(other.lost_packets),
            damaged: self.damaged.saturating_add(other.damaged),
        }
    }
}

/// An error in a packet; only with [`Options::recover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Bytes from the file's start to the packet.
    pub offset: u64,
    /// The error.
    pub error: DecodeError,
}

/// Reads a stream. Its memory holds one packet and one event.
#[derive(Debug)]
pub struct StreamReader {
    pub(super) plan: Arc<Plan>,
    pub(super) path: PathBuf,
    pub(super) source: Source,
    pub(super) length: u64,
    pub(super) options: Options,
    /// Reverses the transformation of packets.
    pub(super) content: Option<Arc<dyn ContentDecoder>>,
    /// The start of the next packet.
    pub(super) next_packet: u64,
    /// No packet from here on is read.
    pub(super) end: u64,
    pub(super) state: State,
    pub(super) statistics: Statistics,
    problems: Vec<Problem>,
    /// The start of the last packet with a problem.
    damaged: Option<u64>,
    /// Cycles at the start and the end of the part read so far.
    pub(super) span: (Option<u64>, Option<u64>),
    pub(super) finished: bool,
    /// Whether packets before [`Options::begin`] were skipped.
    pub(super) sought: bool,
}

/// The source of a stream's bytes.
#[derive(Debug)]
pub(super) enum Source {
    File(Arc<File>),
    Bytes(Vec<u8>),
    /// The bytes from an offset on: what was read is dropped.
    Window {
        base: u64,
        bytes: Vec<u8>,
    },
    /// The other one, for this many reads.
    Failing(Box<Source>, Cell<u64>),
}

impl Source {
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> std::io::Result<()> {
        let (bytes, offset) = match self {
            Source::File(file) => return file.read_exact_at(out, offset),
            Source::Bytes(bytes) => (bytes, offset),
            Source::Window { base, bytes } => {
                let offset = offset.checked_sub(*base).ok_or(std::io::ErrorKind::UnexpectedEof)?;
                (bytes, offset)
            }
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

/// Bytes read of a packet before its size is known.
const FIRST_READ: u64 = 4096;

impl StreamReader {
    /// `class` is the index of the stream class, if the file's name identifies it.
    pub(super) fn open(
        plan: Arc<Plan>,
        path: &Path,
        class: Option<usize>,
        options: Options,
    ) -> Result<StreamReader, TraceError> {
        let io = |error| TraceError::new(path, TraceErrorKind::Io(error));
        let file = crate::regular::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        Ok(StreamReader::new(
            plan,
            path,
            (Source::File(Arc::new(file)), length),
            class,
            options,
        ))
    }

    /// Reads a stream in memory. `path` appears in events and errors.
    pub fn in_memory(plan: Arc<Plan>, path: &Path, bytes: Vec<u8>, options: Options) -> StreamReader {
        let length = bytes.len() as u64;
        StreamReader::new(plan, path, (Source::Bytes(bytes), length), None, options)
    }

    /// Sets the decoder that reverses the transformation of packets.
    #[must_use]
    pub fn with_content(self, content: Option<Arc<dyn ContentDecoder>>) -> StreamReader {
        StreamReader { content, ..self }
    }

    /// Begins with the packet at this offset, as if there were none before.
    #[must_use]
    pub fn start_at(mut self, offset: u64) -> StreamReader {
        self.next_packet = offset.min(self.length);
        self
    }

    /// Every read after this many fails, as on a broken disk; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn fail_after(mut self, reads: u64) -> StreamReader {
        self.source = Source::Failing(Box::new(self.source), Cell::new(reads));
        self
    }

    pub(super) fn new(
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
            content: None,
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
            sought: false,
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

    /// The counts up to the current event.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Nanoseconds from the clock's origin at the start and the end of the part read so far: from
    /// the packets if they have times, else from the events.
    pub fn span(&self) -> (Option<i64>, Option<i64>) {
        let clock = self
            .plan
            .streams
            .get(self.state.packet.stream_class)
            .and_then(|class| class.clock.as_ref());
        let time = |cycles: Option<u64>| clock?.nanoseconds_at(cycles?);
        (time(self.span.0), time(self.span.1))
    }

    /// Errors in packets, one per packet, and at most [`MAX_PROBLEMS`] of them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The packet of the current event, or the last one that was read.
    pub fn packet(&self) -> Option<&Packet> {
        self.state.has_packet.then_some(&self.state.packet)
    }

    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// The event or its packet cannot be read, and [`Options::recover`] does not skip it.
    #[allow(clippy::should_implement_trait)] // Events borrow its buffers.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        Ok(self.advance()?.then(|| self.event()))
    }

    /// Decodes the next event; returns whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        if self.finished {
            return Ok(false);
        }
        loop {
            let result = self.try_advance();
            match &result {
                Ok(true) if self.is_unwanted() => continue,
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

    #[expect(clippy::arithmetic_side_effects, reason = "fewer events than bits")]
    fn count_event(&mut self) {
        self.statistics.events += 1;
        if let Some(cycles) = self.state.timestamp {
            self.span.0.get_or_insert(cycles);
            if self.state.packet.end.is_none() {
                self.span.1 = Some(cycles);
            }
        }
    }

    /// Records a problem that does not end everything; returns whether the stream continues with
    /// the next packet.
    fn recovers(&mut self, error: &TraceError) -> Option<bool> {
        let TraceErrorKind::Packet { offset, error } = error.kind else {
            return None;
        };
        if self.options.recover == Recover::Never {
            return None;
        }
        self.note(Problem { offset, error });
        // Without the packet's size, the start of the next one is unknown.
        let goes_on = self.options.recover == Recover::NextPacket && self.next_packet > offset;
        self.state.position = self.state.limit;
        Some(goes_on)
    }

    /// The first problem of a packet.
    #[expect(clippy::arithmetic_side_effects, reason = "fewer than packets")]
    fn note(&mut self, problem: Problem) {
        if self.damaged.replace(problem.offset) == Some(problem.offset) {
            return;
        }
        self.statistics.damaged += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// The time at which the current event is due: its own time, but not before the start of the
    /// packet that it is the first event of.
    #[expect(
        clippy::indexing_slicing,
        reason = "the current packet and event are of classes of the plan"
    )]
    pub(super) fn merge_time(&self) -> Option<i64> {
        let time = self.state.time?;
        let Some(due) = self.state.due else { return Some(time) };
        let clock = self.plan.streams[self.state.packet.stream_class].clock.as_ref()?;
        let begin = clock.nanoseconds_at(due);
        Some(begin.map_or(time, |begin| begin.max(time)))
    }

    /// The event that was decoded last.
    pub(super) fn event(&self) -> Event<'_> {
        Event::new(&self.plan, &self.state, &self.path)
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
        result.map_err(|error| TraceError::new(&self.path, TraceErrorKind::Packet { offset, error }))
    }

    /// Skips the rest of the packet and reads the next one; returns whether there is one.
    ///
    /// # Errors
    ///
    /// The packet cannot be read. [`Options::recover`] does not matter here.
    pub fn next_packet(&mut self) -> Result<bool, TraceError> {
        self.skip_to_begin()?;
        if self.next_packet >= self.end {
            return Ok(false);
        }
        self.read_packet()
    }

    /// The next event of the packet that [`StreamReader::next_packet`] read, between the wanted
    /// times.
    ///
    /// # Errors
    ///
    /// The event cannot be decoded.
    pub fn next_of_packet(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        while let Some(is_wanted) = self.next_of_packet_wanted()? {
            if is_wanted {
                return Ok(Some(self.event()));
            }
        }
        Ok(None)
    }

    /// Decodes the next event of the packet; returns whether it is between the wanted times.
    pub(crate) fn next_of_packet_wanted(&mut self) -> Result<Option<bool>, TraceError> {
        if !self.state.has_event() {
            return Ok(None);
        }
        self.decode_event()?;
        Ok(Some(!self.is_unwanted()))
    }

    /// Where the current event begins and ends, in bits from the packet's start; before the first
    /// one, both are where that begins.
    pub(crate) fn event_bits(&self) -> (u64, u64) {
        (self.state.start, self.state.position)
    }

    /// The clock at the current event.
    pub(crate) fn event_cycles(&self) -> Option<u64> {
        self.state.timestamp
    }

    /// The current packet without its padding.
    pub(crate) fn content_bytes(&self) -> &[u8] {
        &self.state.data
    }

    /// The context of the current packet.
    pub fn packet_context(&self) -> Option<Fields<'_>> {
        self.event().packet_context()
    }

    /// Header and content of the current packet, before any event was taken from it.
    pub fn packet_bytes(&self) -> (&[u8], &[u8]) {
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

    /// Reads the start of the next packet, which contains its size; returns how many bytes it read.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the next packet begins in the file, whose bits fit into 64 bits"
    )]
    pub(super) fn read_header(&mut self) -> Result<(Packet, u64), TraceError> {
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
        let packet = packet.map_err(|error| TraceError::new(&self.path, TraceErrorKind::Packet { offset, error }))?;
        Ok((packet, beginning))
    }

    /// Reads the next packet, unless it is after the wanted times.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the next packet begins in the file, whose bits fit into 64 bits"
    )]
    fn read_packet(&mut self) -> Result<bool, TraceError> {
        let offset = self.next_packet;
        let rest = self.length - offset;
        let (packet, beginning) = self.read_header()?;
        if self.is_past_end(&packet) {
            self.end = offset;
            return Ok(false);
        }
        self.next_packet = offset.saturating_add(packet.packet_bits / 8);
        let content = packet.content_bits.min(rest * 8).div_ceil(8);
        self.fill(offset, beginning.min(content), content)?;
        self.count(&packet);
        let due = [self.state.packet.end, packet.begin, self.state.due];
        self.state.due = due.into_iter().flatten().max();
        self.state.packet = packet;
        self.state.has_packet = true;
        let result = self.state.unpack(self.content.as_deref());
        result.map_err(|error| TraceError::new(&self.path, TraceErrorKind::Packet { offset, error }))?;
        if let Some(missing) = (packet.packet_bits / 8)
            .checked_sub(rest)
            .filter(|&missing| missing > 0)
        {
            let bit = rest * 8;
            let kind = DecodeErrorKind::PacketPastEnd { missing };
            let error = DecodeError { kind, bit };
            self.note(Problem { offset, error });
        }
        Ok(true)
    }

    /// Fills `data` with the `end` bytes of the file from `offset`, the first `start` of which are
    /// already there.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`data` was resized to the end"
    )]
    fn fill(&mut self, offset: u64, start: u64, end: u64) -> Result<(), TraceError> {
        // Both are at most the length of the file.
        let (start, end) = (start as usize, end as usize);
        self.state.data.resize(end, 0);
        self.source
            .read_exact_at(&mut self.state.data[start..], offset + start as u64)
            .map_err(|error| TraceError::new(&self.path, TraceErrorKind::Io(error)))
    }

    fn count(&mut self, packet: &Packet) {
        let before = self.state.has_packet.then_some(self.state.packet);
        let pair = |get: fn(&Packet) -> Option<u64>| before.as_ref().and_then(get).zip(get(packet));
        if let Some((old, new)) = pair(|packet| packet.sequence_number) {
            let lost = lost_between(old, new, packet.sequence_number_bits);
            self.statistics.lost_packets = self.statistics.lost_packets.saturating_add(lost);
        }
        let discarded = match pair(|packet| packet.events_discarded) {
            Some((old, new)) => new.saturating_sub(old),
            // A stream that begins with its first packet has counted from 0.
            None if packet.sequence_number == Some(0) => packet.events_discarded.unwrap_or(0),
            None => 0,
        };
        self.statistics.discarded = self.statistics.discarded.saturating_add(discarded);
        self.statistics.packets = self.statistics.packets.saturating_add(1);
        self.span = (self.span.0.or(packet.begin), packet.end.or(self.span.1));
    }
}

/// The missing packets between two of these numbers, of which `bits` bits are significant.
#[expect(clippy::arithmetic_side_effects, reason = "`bits` is from 1 to 63")]
fn lost_between(old: u64, new: u64, bits: u32) -> u64 {
    if bits == 0 {
        return 0;
    }
    if bits >= 64 {
        return new.saturating_sub(old.saturating_add(1));
    }
    let mask = (1u64 << bits) - 1;
    let step = new.wrapping_sub(old) & mask;
    // A repeated number means a packet read twice, not a whole round of packets.
    step.saturating_sub(1)
}
