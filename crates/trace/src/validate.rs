//! Checks whole traces, and continues after errors.

use crate::error::{DecodeError, TraceError, TraceErrorKind};
use crate::read::{Event, Options, Packet, Recover, StreamReader, Trace};
use std::path::{Path, PathBuf};

/// An error in a trace.
#[derive(Debug)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// The error.
    pub kind: FindingKind,
}

/// Errors in a trace. Offsets are bytes from the file's start to the packet; each kind is reported
/// once per packet.
#[derive(Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// The metadata or the file as a whole cannot be read.
    Unreadable(TraceErrorKind),
    /// A packet that cannot be read, or not completely.
    Packet {
        /// The start of the packet.
        offset: u64,
        /// The error within.
        error: DecodeError,
    },
    /// A packet ends before it starts.
    PacketTimes {
        /// The start of the packet.
        offset: u64,
    },
    /// A packet starts before the previous one has ended.
    PacketsOverlap {
        /// The start of the packet.
        offset: u64,
    },
    /// An event is earlier than the previous one, in cycles of the clock.
    EventTime {
        /// The start of the packet.
        offset: u64,
        /// The event's time.
        cycles: u64,
    },
    /// An event is not within the times of its packet, in cycles of the clock.
    EventOutside {
        /// The start of the packet.
        offset: u64,
        /// The event's time.
        cycles: u64,
    },
    /// The number of unreadable packets beyond [`crate::constants::MAX_PROBLEMS`].
    More(u64),
}

impl Finding {
    /// Bytes from the file's start to the faulty packet, if there is one.
    pub fn offset(&self) -> Option<u64> {
        match self.kind {
            FindingKind::Packet { offset, .. }
            | FindingKind::PacketTimes { offset }
            | FindingKind::PacketsOverlap { offset }
            | FindingKind::EventTime { offset, .. }
            | FindingKind::EventOutside { offset, .. } => Some(offset),
            FindingKind::Unreadable(TraceErrorKind::Packet { offset, .. }) => Some(offset),
            FindingKind::Unreadable(_) | FindingKind::More(_) => None,
        }
    }
}

impl std::fmt::Display for FindingKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FindingKind::Unreadable(kind) => kind.fmt(f),
            FindingKind::Packet { offset, error } => write!(f, "packet at offset {offset:#x}: {error}"),
            FindingKind::PacketTimes { offset } => write!(f, "packet at offset {offset:#x}: it ends before it begins"),
            FindingKind::PacketsOverlap { offset } => {
                write!(
                    f,
                    "packet at offset {offset:#x}: it begins before the one before has ended"
                )
            }
            FindingKind::EventTime { offset, cycles } => {
                write!(
                    f,
                    "packet at offset {offset:#x}: event at {cycles} cycles is earlier than the one before"
                )
            }
            FindingKind::EventOutside { offset, cycles } => {
                write!(
                    f,
                    "packet at offset {offset:#x}: event at {cycles} cycles is outside of the packet's times"
                )
            }
            FindingKind::More(count) => write!(f, "{count} more packets cannot be read"),
        }
    }
}

impl Trace {
    /// Reads all of the trace and returns all errors, by file and place.
    pub fn check(&self) -> Vec<Finding> {
        let options = Options {
            recover: Recover::NextPacket,
            ..Options::default()
        };
        let mut findings = Vec::new();
        for index in 0..self.streams().len() {
            match self.stream(index, options) {
                Ok(stream) => check_stream(stream, &mut findings),
                Err(error) => findings.push(error.into()),
            }
        }
        findings
    }
}

/// Reads all of the trace in a directory and returns all errors, by file and place.
pub fn check(directory: &Path) -> Vec<Finding> {
    match Trace::open(directory) {
        Ok(trace) => trace.check(),
        Err(error) => vec![error.into()],
    }
}

impl From<TraceError> for Finding {
    fn from(error: TraceError) -> Finding {
        Finding {
            path: error.path,
            kind: FindingKind::Unreadable(error.kind),
        }
    }
}

fn check_stream(mut stream: StreamReader, findings: &mut Vec<Finding>) {
    let path = stream.path().to_owned();
    let mut order = Order::default();
    let fatal = loop {
        match stream.next() {
            Ok(Some(event)) => order.event(&event),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let mut kinds = order.findings;
    kinds.extend(stream.problems().iter().map(|problem| FindingKind::Packet {
        offset: problem.offset,
        error: problem.error,
    }));
    let mut found: Vec<Finding> = kinds
        .into_iter()
        .map(|kind| Finding {
            path: path.clone(),
            kind,
        })
        .collect();
    found.sort_by_key(Finding::offset);
    let untold = stream.statistics().damaged - stream.problems().len() as u64;
    if untold > 0 {
        let kind = FindingKind::More(untold);
        found.push(Finding { path, kind });
    }
    findings.append(&mut found);
    findings.extend(fatal.map(Finding::from));
}

/// The order of times in a stream.
#[derive(Default)]
struct Order {
    packet: Option<Packet>,
    /// The time of the previous event.
    cycles: Option<u64>,
    /// Whether the current packet already has such a finding.
    back: bool,
    outside: bool,
    findings: Vec<FindingKind>,
}

impl Order {
    fn event(&mut self, event: &Event<'_>) {
        let packet = *event.packet();
        let offset = packet.offset;
        if self.packet.is_none_or(|before| before.offset != offset) {
            self.packet(packet);
        }
        let Some(cycles) = event.cycles() else { return };
        if self.cycles.is_some_and(|before| cycles < before) && !std::mem::replace(&mut self.back, true) {
            self.findings.push(FindingKind::EventTime { offset, cycles });
        }
        let early = packet.begin.is_some_and(|begin| cycles < begin);
        let late = packet.end.is_some_and(|end| cycles > end);
        if (early || late) && !std::mem::replace(&mut self.outside, true) {
            self.findings.push(FindingKind::EventOutside { offset, cycles });
        }
        self.cycles = Some(cycles);
    }

    fn packet(&mut self, packet: Packet) {
        let offset = packet.offset;
        if packet.begin.zip(packet.end).is_some_and(|(begin, end)| end < begin) {
            self.findings.push(FindingKind::PacketTimes { offset });
        }
        let before = self.packet.and_then(|before| before.end);
        if before.zip(packet.begin).is_some_and(|(end, begin)| begin < end) {
            self.findings.push(FindingKind::PacketsOverlap { offset });
        }
        self.packet = Some(packet);
        (self.back, self.outside) = (false, false);
    }
}
