//! The traces below a directory, packet after packet, while they are written.

use crate::metadata::Metadata;
use crate::protocol::MOST_BYTES;
use backtrail_trace::constants::METADATA_FILE;
use backtrail_trace::description::Clock;
use backtrail_trace::{
    DecodeErrorKind, Dialect, Options, Packet, Plan, Trace, TraceError, TraceErrorKind, find_traces, regular, tsdl,
};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time between two looks at the directory.
const LOOK: Duration = Duration::from_millis(20);

/// The traces that a viewer knows.
pub(crate) struct Feeds {
    root: PathBuf,
    pub(crate) traces: Vec<TraceFeed>,
    looked: Option<Instant>,
}

pub(crate) struct TraceFeed {
    trace: Trace,
    /// The contents of the metadata's file.
    pub(crate) file: Vec<u8>,
    pub(crate) metadata: Metadata,
    pub(crate) streams: Vec<StreamFeed>,
}

pub(crate) struct StreamFeed {
    pub(crate) path: PathBuf,
    /// Whether the viewer knows it.
    pub(crate) is_announced: bool,
    /// The start of the next packet.
    offset: u64,
    /// The last packet, or that which the viewer was last promised nothing before.
    last: Option<(u64, u64)>,
}

/// Why a directory cannot be served.
#[derive(Debug)]
pub(crate) enum FeedError {
    Trace(TraceError),
    /// CTF 1.8 cannot express the trace in this directory.
    Inexpressible(PathBuf, tsdl::WriteError),
}

impl From<TraceError> for FeedError {
    fn from(error: TraceError) -> FeedError {
        FeedError::Trace(error)
    }
}

impl From<FeedError> for io::Error {
    fn from(error: FeedError) -> io::Error {
        let text = match error {
            FeedError::Trace(error) => error.to_string(),
            FeedError::Inexpressible(directory, error) => format!("{}: {error}", directory.display()),
        };
        io::Error::new(ErrorKind::InvalidData, text)
    }
}

/// What comes next in a stream.
pub(crate) enum Next {
    /// The packet, the id of its stream's class.
    Packet(Packet, u64),
    /// Nothing yet, but nothing before this time of the clock either, in cycles.
    NotBefore(u64, u64),
    Nothing,
}

impl Feeds {
    pub(crate) fn new(root: &Path) -> Feeds {
        Feeds {
            root: root.to_owned(),
            traces: Vec::new(),
            looked: None,
        }
    }

    /// Looks for new traces, streams and metadata.
    pub(crate) fn look(&mut self) -> Result<(), FeedError> {
        match self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            true => Ok(()),
            false => self.look_now(),
        }
    }

    /// The same, however short ago the last look was.
    pub(crate) fn look_now(&mut self) -> Result<(), FeedError> {
        let directories = match find_traces(&self.root) {
            Err(error) if is_missing(&error) => Vec::new(),
            directories => directories?,
        };
        for directory in directories {
            if self.traces.iter().all(|feed| feed.trace.directory() != directory) {
                self.traces.push(TraceFeed {
                    trace: Trace::open(&directory)?,
                    file: Vec::new(),
                    metadata: Metadata::default(),
                    streams: Vec::new(),
                });
            }
        }
        for feed in &mut self.traces {
            feed.look()?;
        }
        self.looked = Some(Instant::now());
        Ok(())
    }
}

fn is_missing(error: &TraceError) -> bool {
    matches!(&error.kind, TraceErrorKind::Io(error) if error.kind() == ErrorKind::NotFound)
}

impl TraceFeed {
    pub(crate) fn directory(&self) -> &Path {
        self.trace.directory()
    }

    /// What decodes its packets.
    pub(crate) fn plan(&self) -> &Plan {
        self.trace.plan()
    }

    fn look(&mut self) -> Result<(), FeedError> {
        let directory = self.trace.directory().to_owned();
        let files = Trace::stream_files(&directory)?;
        let path = directory.join(METADATA_FILE);
        let file = regular::read(&path).map_err(|error| TraceError {
            path,
            kind: TraceErrorKind::Io(error),
        })?;
        if self.file != file || files.len() != self.trace.streams().len() {
            self.trace = Trace::open(&directory)?;
            let description = self.trace.description();
            let uuid = description.uuid;
            // Streams of CTF 2 are the same in 1.8, which all viewers read.
            match self.trace.dialect() {
                Dialect::V2 => {
                    let text = tsdl::write(&description.clone().adapted_to(Dialect::V1_8));
                    let text = text.map_err(|error| FeedError::Inexpressible(directory, error))?;
                    self.metadata.update(text.as_bytes(), uuid);
                }
                _ => self.metadata.update(&file, uuid),
            }
            self.file = file;
        }
        for path in self.trace.streams() {
            if self.streams.iter().all(|stream| stream.path != *path) {
                self.streams.push(StreamFeed {
                    path: path.clone(),
                    is_announced: false,
                    offset: 0,
                    last: None,
                });
            }
        }
        Ok(())
    }

    /// The stream's next packet. Without one, and with `idle`, nothing is before the time that is
    /// as long ago: writers write packets at least that often.
    pub(crate) fn next(&mut self, stream: usize, idle: Option<Duration>) -> Result<Next, FeedError> {
        let feed = &mut self.streams[stream];
        let Some(index) = self.trace.streams().iter().position(|path| *path == feed.path) else {
            return Ok(Next::Nothing);
        };
        let mut reader = self.trace.stream(index, Options::default())?.start_at(feed.offset);
        let read = match reader.next_packet() {
            Err(error) if is_incomplete(&error) => false,
            read => read?,
        };
        if let Some(packet) = reader.packet().filter(|_| read) {
            let class = &self.trace.description().streams[packet.stream_class];
            feed.offset += packet.packet_bits / 8;
            feed.last = Some((packet.end.unwrap_or(0), class.id));
            return Ok(Next::Packet(*packet, class.id));
        }
        let (Some(idle), Some((last, class))) = (idle, feed.last) else {
            return Ok(Next::Nothing);
        };
        let streams = &self.trace.description().streams;
        let clock = streams
            .iter()
            .find(|stream| stream.id == class)
            .and_then(|stream| stream.clock);
        let clock = clock.and_then(|clock| self.trace.description().clocks.get(clock));
        match clock.and_then(|clock| cycles_before(clock, idle)) {
            Some(cycles) if cycles > last => {
                feed.last = Some((cycles, class));
                Ok(Next::NotBefore(cycles, class))
            }
            _ => Ok(Next::Nothing),
        }
    }
}

/// The packet is still being written.
fn is_incomplete(error: &TraceError) -> bool {
    matches!(
        &error.kind,
        TraceErrorKind::Packet { error, .. }
            if matches!(error.kind, DecodeErrorKind::PacketPastEnd { .. } | DecodeErrorKind::Truncated)
    )
}

/// The clock's cycles that long ago, if it counts from the Unix epoch.
fn cycles_before(clock: &Clock, ago: Duration) -> Option<u64> {
    const PER_SECOND: i128 = 1_000_000_000;
    // A clock that starts with the machine, and does not say when that was, has a small offset.
    if clock.offset_seconds == 0 && i128::from(clock.offset_cycles) < i128::from(clock.frequency) {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.checked_sub(ago)?;
    let since = now.as_nanos() as i128 - i128::from(clock.offset_seconds) * PER_SECOND;
    let cycles = since * i128::from(clock.frequency) / PER_SECOND - i128::from(clock.offset_cycles);
    u64::try_from(cycles).ok()
}

impl StreamFeed {
    /// Bytes of the stream's file.
    pub(crate) fn bytes(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let file = regular::open(&self.path)?;
        let size = file.metadata()?.len();
        let fits = offset.checked_add(length).is_some_and(|end| end <= size) && length <= MOST_BYTES;
        if !fits {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}
