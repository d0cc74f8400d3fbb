//! Reads traces while they are written: what is appended to their files, new streams, new classes
//! of events, and new traces below the directories.

use super::event::Event;
use super::find::find_traces;
use super::options::Options;
use super::push::PushReader;
use super::stream::StreamReader;
use super::trace::Trace;
use crate::constants::METADATA_FILE;
use crate::error::{TraceError, TraceErrorKind};
use crate::regular;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Opens the trace in a directory.
type Open = Box<dyn Fn(&Path) -> Result<Trace, TraceError>>;

/// Bytes taken of a stream at a time.
const PIECE: u64 = 256 << 10;
/// The time between two looks for new traces and streams.
const LOOK: Duration = Duration::from_millis(100);

/// The events of traces that are being written, in the order of time as far as it is known.
///
/// An event is due once every stream has reached its time. A stream to which nothing was appended
/// for a while counts as one without events: what it has later is out of order.
pub struct Follow {
    open: Open,
    roots: Vec<PathBuf>,
    options: Options,
    idle: Duration,
    traces: Vec<Followed>,
    looked: Option<Instant>,
}

struct Followed {
    trace: Trace,
    metadata: Vec<u8>,
    streams: Vec<Stream>,
}

struct Stream {
    path: PathBuf,
    file: File,
    reader: PushReader,
    /// Whether the reader has an event that was not taken.
    has_event: bool,
    /// When bytes were last appended.
    grown: Instant,
}

impl Follow {
    /// Follows the traces in and below these directories, which `open` opens. `idle` is the time
    /// after which a stream is no longer waited for.
    pub fn new(
        roots: &[PathBuf],
        options: Options,
        idle: Duration,
        open: impl Fn(&Path) -> Result<Trace, TraceError> + 'static,
    ) -> Follow {
        Follow {
            open: Box::new(open),
            roots: roots.to_vec(),
            options,
            idle,
            traces: Vec::new(),
            looked: None,
        }
    }

    /// Passes on the events that are due. Returns whether there may be more at once, or the break
    /// of `take`. With `rest`, all events that are there are due.
    ///
    /// # Errors
    ///
    /// A trace or a stream cannot be read. The others go on with the next call.
    pub fn poll(
        &mut self,
        rest: bool,
        mut take: impl FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), bool>, TraceError> {
        self.look()?;
        let mut any = false;
        loop {
            self.fill()?;
            let Some((trace, stream)) = self.due(rest) else {
                return Ok(ControlFlow::Continue(any));
            };
            let stream = self
                .traces
                .get_mut(trace)
                .and_then(|trace| trace.streams.get_mut(stream));
            let Some(stream) = stream else {
                return Ok(ControlFlow::Continue(any));
            };
            stream.has_event = false;
            any = true;
            if take(&stream.reader.event()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    /// The streams in their current state, for their statistics.
    pub fn into_streams(self) -> Vec<StreamReader> {
        let streams = self.traces.into_iter().flat_map(|trace| trace.streams);
        streams.map(|stream| stream.reader.into_reader()).collect()
    }

    /// Looks for new traces, streams and metadata.
    fn look(&mut self) -> Result<(), TraceError> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        for root in &self.roots {
            let directories = match find_traces(root) {
                Err(error) if is_missing(&error) => continue,
                directories => directories?,
            };
            for directory in directories {
                if self.traces.iter().all(|known| known.trace.directory() != directory) {
                    let metadata = read_metadata(&directory)?;
                    let trace = (self.open)(&directory)?;
                    self.traces.push(Followed {
                        trace,
                        metadata,
                        streams: Vec::new(),
                    });
                }
            }
        }
        for followed in &mut self.traces {
            let directory = followed.trace.directory().to_owned();
            let files = match Trace::stream_files(&directory) {
                // A session may be deleted while it is followed.
                Err(error) if is_missing(&error) => continue,
                files => files?.len(),
            };
            if files != followed.trace.streams().len() {
                followed.trace = (self.open)(&directory)?;
            }
            followed.add_streams(self.options)?;
        }
        Ok(())
    }

    /// Decodes the next event of each stream that has none.
    fn fill(&mut self) -> Result<(), TraceError> {
        for followed in &mut self.traces {
            let mut renewed = false;
            for place in 0..followed.streams.len() {
                while let Some(stream) = followed.streams.get_mut(place) {
                    if stream.has_event || stream.reader.is_over() {
                        break;
                    }
                    stream.has_event = stream.reader.advance()?;
                    if stream.has_event || !stream.take_bytes()? {
                        break;
                    }
                    // A packet's classes are in the metadata before it is in the stream.
                    if !std::mem::replace(&mut renewed, true) {
                        followed.renew(&self.open)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The stream with the first event, unless another one may still have an earlier one.
    fn due(&self, rest: bool) -> Option<(usize, usize)> {
        let streams = || {
            let traces = self.traces.iter().enumerate();
            traces.flat_map(|(index, trace)| {
                trace
                    .streams
                    .iter()
                    .enumerate()
                    .map(move |(place, stream)| (index, place, stream))
            })
        };
        let events = streams().filter(|(.., stream)| stream.has_event);
        let (time, index, place) = events
            .map(|(index, place, stream)| (stream.reader.merge_time(), index, place))
            .min()?;
        let is_waited_for = |stream: &Stream| {
            !stream.has_event
                && !stream.reader.is_over()
                && stream.grown.elapsed() < self.idle
                && stream.reader.known_until() < time
        };
        let waits = !rest && time.is_some() && streams().any(|(.., stream)| is_waited_for(stream));
        (!waits).then_some((index, place))
    }
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow")
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

impl Followed {
    fn add_streams(&mut self, options: Options) -> Result<(), TraceError> {
        for (index, path) in self.trace.streams().iter().enumerate() {
            if self.streams.iter().any(|stream| stream.path == *path) {
                continue;
            }
            let file = regular::open(path).map_err(|error| TraceError::new(path, TraceErrorKind::Io(error)))?;
            self.streams.push(Stream {
                path: path.clone(),
                file,
                reader: self.trace.push_reader(index, options),
                has_event: false,
                grown: Instant::now(),
            });
        }
        Ok(())
    }

    /// Reads the metadata again if it has changed.
    fn renew(&mut self, open: &Open) -> Result<(), TraceError> {
        let directory = self.trace.directory().to_owned();
        let metadata = match read_metadata(&directory) {
            Err(error) if is_missing(&error) => return Ok(()),
            metadata => metadata?,
        };
        if metadata != self.metadata {
            self.trace = open(&directory)?;
            self.metadata = metadata;
            for stream in &mut self.streams {
                stream.reader.set_plan(self.trace.plan().clone());
            }
        }
        Ok(())
    }
}

impl Stream {
    /// Feeds what was appended; returns whether there was anything.
    fn take_bytes(&mut self) -> Result<bool, TraceError> {
        let mut bytes = Vec::new();
        let read = (&self.file).take(PIECE).read_to_end(&mut bytes);
        let read = read.map_err(|error| TraceError::new(&self.path, TraceErrorKind::Io(error)))?;
        if read > 0 {
            self.grown = Instant::now();
            self.reader.feed(&bytes);
        }
        Ok(read > 0)
    }
}

fn read_metadata(directory: &Path) -> Result<Vec<u8>, TraceError> {
    let path = directory.join(METADATA_FILE);
    regular::read(&path).map_err(|error| TraceError::new(&path, TraceErrorKind::Io(error)))
}

fn is_missing(error: &TraceError) -> bool {
    matches!(&error.kind, TraceErrorKind::Io(error) if error.kind() == ErrorKind::NotFound)
}
