//! Reads a stream whose bytes arrive piece by piece, from a pipe, a socket or memory.

use super::event::Event;
use super::options::{Options, Recover};
use super::state::Packet;
use super::stream::{Problem, Source, Statistics, StreamReader};
use crate::content::ContentDecoder;
use crate::error::{DecodeErrorKind, TraceError, TraceErrorKind};
use crate::plan::Plan;
use std::path::Path;
use std::sync::Arc;

/// Reads a stream from the bytes that it is fed. It keeps the packet that is read and the bytes
/// that follow it.
///
/// ```
/// use backtrail_trace::{Options, Plan, PushReader, parse_metadata};
/// use std::io::Read;
/// use std::path::Path;
/// use std::sync::Arc;
///
/// /// Prints the names of the events that come out of a pipe or a socket.
/// fn print(metadata: &[u8], mut input: impl Read) -> Result<(), Box<dyn std::error::Error>> {
///     let (_, description) = parse_metadata(metadata)?;
///     let plan = Arc::new(Plan::new(description)?);
///     let mut reader = PushReader::new(plan, Path::new("socket"), Options::default());
///     let mut buffer = [0; 4096];
///     loop {
///         let count = input.read(&mut buffer)?;
///         match count {
///             0 => reader.finish(),
///             _ => reader.feed(&buffer[..count]),
///         }
///         while let Some(event) = reader.next()? {
///             println!("{}", event.name());
///         }
///         if count == 0 {
///             return Ok(());
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct PushReader {
    reader: StreamReader,
    /// Fewer bytes cannot complete the next packet.
    wanted: u64,
    /// No more bytes come.
    ended: bool,
    /// No more events come.
    over: bool,
    /// For the packets from the next one on.
    plan: Option<Arc<Plan>>,
}

impl PushReader {
    /// Starts before the first packet. `path` appears in events and errors.
    pub fn new(plan: Arc<Plan>, path: &Path, options: Options) -> PushReader {
        PushReader::of_class(plan, path, None, options)
    }

    /// `class` is the index of the stream class, if the file's name identifies it, as in the RFC.
    pub fn of_class(plan: Arc<Plan>, path: &Path, class: Option<usize>, options: Options) -> PushReader {
        let source = Source::Window {
            base: 0,
            bytes: Vec::new(),
        };
        let mut reader = StreamReader::new(plan, path, (source, 0), class, options);
        // There is nothing to seek in.
        reader.sought = true;
        reader.state.cut = false;
        reader.state.open = true;
        PushReader {
            reader,
            wanted: 0,
            ended: false,
            over: false,
            plan: None,
        }
    }

    /// Sets the decoder that reverses the transformation of packets.
    #[must_use]
    pub fn with_content(mut self, content: Option<Arc<dyn ContentDecoder>>) -> PushReader {
        self.reader = self.reader.with_content(content);
        self
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.over || self.ended {
            return;
        }
        if let Source::Window { bytes: window, .. } = &mut self.reader.source {
            window.extend_from_slice(bytes);
            self.reader.length = self.reader.length.saturating_add(bytes.len() as u64);
        }
    }

    /// States that no more bytes come: a packet that is incomplete now is an error, or damaged with
    /// [`Options::recover`].
    pub fn finish(&mut self) {
        self.ended = true;
        self.reader.state.open = false;
        self.reader.state.cut = self.reader.options.recover == Recover::NextPacket;
    }

    /// Decodes the packets from the next one on by this plan: metadata may grow while a stream is
    /// written. The classes of streams must be the same as before, in the same order.
    pub fn set_plan(&mut self, plan: Arc<Plan>) {
        self.plan = Some(plan);
    }

    /// The next event; `None` if more bytes are needed for it, or at the end of the stream.
    ///
    /// # Errors
    ///
    /// The event or its packet cannot be read, and [`Options::recover`] does not skip it.
    #[allow(clippy::should_implement_trait)] // Events borrow its buffers.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        Ok(self.advance()?.then(|| self.reader.event()))
    }

    /// Decodes the next event; returns whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            let end = self.reader.end;
            match self.reader.advance() {
                Ok(true) => return Ok(true),
                Ok(false) => {
                    // The reader has ended the stream itself: after the wanted times, or there is
                    // damage.
                    let damaged =
                        self.reader.options.recover == Recover::EndStream && !self.reader.problems().is_empty();
                    // A packet whose size is unknown has no next one.
                    let stuck = self.reader.next_packet < self.reader.end;
                    self.over |= self.reader.end < end || damaged || stuck;
                }
                Err(error) => {
                    self.over = true;
                    return Err(error);
                }
            }
            if self.over || !self.has_packet() {
                return Ok(false);
            }
            self.reader.finished = false;
        }
    }

    /// Whether the next packet is there; if so, reading ends with it.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the next packet begins in the window, and both ends are in it"
    )]
    fn has_packet(&mut self) -> bool {
        let reader = &mut self.reader;
        let next = reader.next_packet.min(reader.length);
        if let Source::Window { base, bytes } = &mut reader.source {
            let read = bytes.len().min((next - *base) as usize);
            // Not after each packet, since what follows is moved.
            if read >= bytes.len() - read {
                bytes.drain(..read);
                *base += read as u64;
            }
        }
        if next >= reader.length || (reader.length < self.wanted && !self.ended) {
            return false;
        }
        if let Some(plan) = self.plan.take() {
            reader.state.registers.resize(plan.slots, 0);
            reader.state.slot.clear();
            reader.plan = plan;
        }
        let header = reader.read_header();
        // The packet before has no more events, wherever the next one's begin.
        reader.state.position = reader.state.limit;
        match header {
            Ok((packet, _)) => reader.end = next.saturating_add(packet.packet_bits / 8).min(reader.length),
            Err(error) => match missing(&error).filter(|_| !self.ended) {
                Some(missing) => {
                    self.wanted = reader.length.saturating_add(missing);
                    return false;
                }
                // The reader reports it.
                None => reader.end = reader.length,
            },
        }
        true
    }

    /// The event that [`PushReader::next`] returned last.
    pub(super) fn event(&self) -> Event<'_> {
        self.reader.event()
    }

    /// The time at which the current event is due.
    pub(super) fn merge_time(&self) -> Option<i64> {
        self.reader.merge_time()
    }

    /// Nanoseconds from the clock's origin before which nothing more comes: the end of the last
    /// packet.
    pub(super) fn known_until(&self) -> Option<i64> {
        self.reader.span().1
    }

    /// Whether no more events come.
    pub fn is_over(&self) -> bool {
        self.over || (self.ended && self.reader.finished)
    }

    /// The packet of the current event, or the last one that was read.
    pub fn packet(&self) -> Option<&Packet> {
        self.reader.packet()
    }

    /// Bytes that wait to be read.
    pub fn waiting_bytes(&self) -> u64 {
        self.reader.length.saturating_sub(self.reader.next_packet)
    }

    /// The counts up to the current event.
    pub fn statistics(&self) -> Statistics {
        self.reader.statistics()
    }

    /// Errors in packets; only with [`Options::recover`].
    pub fn problems(&self) -> &[Problem] {
        self.reader.problems()
    }

    /// The stream's reader, for its statistics.
    pub(super) fn into_reader(self) -> StreamReader {
        self.reader
    }
}

/// The least bytes that are missing, if that is all that is wrong.
fn missing(error: &TraceError) -> Option<u64> {
    match &error.kind {
        TraceErrorKind::Packet { error, .. } => match error.kind {
            DecodeErrorKind::PacketPastEnd { missing } => Some(missing.max(1)),
            DecodeErrorKind::Truncated => Some(1),
            _ => None,
        },
        _ => None,
    }
}
