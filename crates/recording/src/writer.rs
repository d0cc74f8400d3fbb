//! The recorder's side: items into a trace.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use backtrail_cbf::{Encoder, End, WordSize};
use backtrail_trace::{
    CreateError, CreateErrorKind, Dialect, EncodeError, EventWriter, PacketFile, StreamOptions, TraceWriter,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::events::{self, class};
use crate::tree::StackTree;
use crate::{Frame, FrameKind, Module, Sample};

/// Bytes of a stream after which its stacks, modules and names are told again, so that a reader who begins in the
/// middle has to skip no more than that.
const CHECKPOINT_BYTES: u64 = 1 << 20;
/// Bytes of events, definitions included, after which a packet is written, however young it is: little less than a
/// whole number of pages, to which it is padded.
const PACKET_BYTES: usize = (32 << 10) - 512;

/// What the metadata says of the machine and the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// A new one for each recording.
    pub trace_uuid: [u8; 16],
    /// The boot's; it identifies the monotonic clock.
    pub boot_uuid: Option<[u8; 16]>,
    /// Name of the machine.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's name, as `uname -m` prints it.
    pub machine: String,
    /// Nanoseconds from the Unix epoch to the zero of the monotonic clock.
    pub clock_offset_ns: u64,
}

/// How a recording is written.
#[derive(Clone, Debug)]
pub struct WriterOptions<'a> {
    /// The dialect of its metadata.
    pub dialect: Dialect,
    /// The CPUs, one stream each; streams are named by their index here.
    pub cpus: &'a [u32],
    /// What is recorded, for people.
    pub command: &'a str,
    /// Samples a second of CPU time.
    pub frequency: u64,
    /// The machine.
    pub environment: Environment,
}

/// What could not be written. The trace is readable up to there.
#[derive(Debug)]
pub struct WriteError(Cause);

#[derive(Debug)]
enum Cause {
    Io(io::Error),
    Trace(CreateError),
    Encode(EncodeError),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Io(error) => error.fmt(f),
            Cause::Trace(error) => error.fmt(f),
            Cause::Encode(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        WriteError(Cause::Io(error))
    }
}

impl From<CreateError> for WriteError {
    fn from(error: CreateError) -> Self {
        WriteError(Cause::Trace(error))
    }
}

impl From<EncodeError> for WriteError {
    fn from(error: EncodeError) -> Self {
        WriteError(Cause::Encode(error))
    }
}

/// Writes a recording. Everything is kept in memory until a packet is full or [`Writer::flush`] is called.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    /// Whether the directory is ours, to be removed by [`Writer::discard`].
    made_directory: bool,
    streams: Vec<Stream>,
}

impl Writer {
    /// Makes the trace's directory (an empty one is taken as it is) and writes its metadata.
    pub fn create(directory: &Path, options: &WriterOptions<'_>) -> Result<Writer, CreateError> {
        let made_directory = !directory.exists();
        let description = events::description(&options.environment, options.command, options.frequency);
        let trace = TraceWriter::create(directory, description, options.dialect)?;
        let stream = |&cpu: &u32| {
            let file = trace.stream(&format!("cpu_{cpu}"), StreamOptions::for_cpu(0, cpu))?;
            Ok(Stream::new(file))
        };
        Ok(Writer {
            directory: directory.to_owned(),
            made_directory,
            streams: options.cpus.iter().map(stream).collect::<Result<_, CreateError>>()?,
        })
    }

    /// Removes the trace again, as long as nothing was recorded.
    pub fn discard(self) {
        // What cannot be removed stays; the reason why nothing was recorded matters more.
        let _ = fs::remove_file(self.directory.join("metadata"));
        if self.made_directory {
            let _ = fs::remove_dir(&self.directory);
        }
    }

    /// Bytes of the trace on disk.
    pub fn bytes(&self) -> u64 {
        let metadata = fs::metadata(self.directory.join("metadata")).map_or(0, |metadata| metadata.len());
        metadata
            + self
                .streams
                .iter()
                .map(|stream| stream.file.bytes_written())
                .sum::<u64>()
    }

    /// Whether a mapping of a process has yet to be told in this stream; it counts as told from now on.
    pub fn announce_module(&mut self, stream: usize, pid: u32, mapping: u32) -> bool {
        self.streams[stream].modules.entry(pid).or_default().insert(mapping)
    }

    /// Whether the name of a thread has yet to be told in this stream; it counts as told from now on.
    pub fn announce_name(&mut self, stream: usize, tid: u32) -> bool {
        self.streams[stream].names.insert(tid)
    }

    /// A thread has a new name, which is to be told again.
    pub fn forget_name(&mut self, tid: u32) {
        for stream in &mut self.streams {
            stream.names.remove(&tid);
        }
    }

    /// A process is gone, or has other modules than before; they are to be told again.
    pub fn forget_process(&mut self, pid: u32) {
        for stream in &mut self.streams {
            stream.modules.remove(&pid);
        }
    }

    /// Tells of a module.
    pub fn module(&mut self, stream: usize, tid: u32, module: &Module) -> Result<(), WriteError> {
        let context = Context::of(module.pid, tid);
        let stream = &mut self.streams[stream];
        stream.event(class::BIN_INFO, module.time, context, |event| {
            event.u64(module.base);
            event.u64(module.size);
            event.text(until_zero(module.path.as_bytes()));
            event.u8(module.position_independent.into());
            event.u8((!module.build_id.is_empty()).into());
            event.u8(0);
        })?;
        if module.build_id.is_empty() {
            return Ok(());
        }
        stream.event(class::BUILD_ID, module.time, context, |event| {
            event.u64(module.base);
            event.sequence_len(module.build_id.len());
            event.bytes(&module.build_id);
        })
    }

    /// Tells a thread's name.
    pub fn thread_name(&mut self, stream: usize, time: u64, pid: u32, tid: u32, name: &str) -> Result<(), WriteError> {
        self.streams[stream].event(class::THREAD_NAME, time, Context::of(pid, tid), |event| {
            event.text(until_zero(name.as_bytes()));
        })
    }

    /// Tells that a process runs another program.
    pub fn exec(&mut self, stream: usize, time: u64, pid: u32) -> Result<(), WriteError> {
        self.forget_process(pid);
        self.streams[stream].event(class::START, time, Context::of(pid, pid), |_| ())
    }

    /// Tells of a new thread or process.
    pub fn fork(&mut self, stream: usize, time: u64, pid: u32, tid: u32, parent: u32) -> Result<(), WriteError> {
        self.streams[stream].event(class::FORK, time, Context::of(pid, tid), |event| {
            event.i32(parent as i32)
        })
    }

    /// Tells of a thread's end.
    pub fn exit(&mut self, stream: usize, time: u64, pid: u32, tid: u32) -> Result<(), WriteError> {
        self.streams[stream].event(class::EXIT, time, Context::of(pid, tid), |_| ())
    }

    /// Tells of samples that were lost.
    pub fn lost(&mut self, stream: usize, time: u64, count: u64) -> Result<(), WriteError> {
        let stream = &mut self.streams[stream];
        stream.file.writer().discard(count);
        stream.event(class::LOST, time, Context::default(), |event| event.u64(count))
    }

    /// Writes a sample. Its `stop` must be known.
    pub fn sample(&mut self, stream: usize, sample: &Sample<'_>) -> Result<(), WriteError> {
        let stream = &mut self.streams[stream];
        let (leaf, callers) = match sample.frames.split_first() {
            Some((leaf, callers)) => (leaf.address, callers),
            None => (0, &[][..]),
        };
        let stack = stream.define(callers)?;
        let context = Context {
            ip: leaf,
            ..Context::of(sample.pid, sample.tid)
        };
        stream.event(class::SAMPLE, sample.time, context, |event| {
            event.unsigned(stack.into());
            let live = if sample.live { events::LIVE } else { 0 };
            event.u8(sample.stop.map_or(0, |stop| stop as u8) | live);
        })?;
        if stream.packet_bytes() >= PACKET_BYTES {
            stream.flush()?;
        }
        Ok(())
    }

    /// Writes the packets that have events.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        for stream in &mut self.streams {
            if stream.file.writer().events() > 0 {
                stream.flush()?;
            }
        }
        Ok(())
    }
}

/// A CPU's stream: what its packet holds so far, and what it has told already.
#[derive(Debug)]
struct Stream {
    file: PacketFile,
    tree: StackTree,
    definitions: Definitions,
    /// Mappings that were told, by process.
    modules: FxHashMap<u32, FxHashSet<u32>>,
    /// Threads whose names were told.
    names: FxHashSet<u32>,
    /// Bytes of the stream's file where it began anew.
    checkpoint: u64,
    /// Time of the last event.
    last: u64,
}

/// Definitions for the packet at hand.
#[derive(Debug, Default)]
struct Definitions {
    /// Number of the first new frame.
    first: u32,
    /// What each definition's frames stand on.
    parents: Vec<u32>,
    /// Compact backtraces, back to back.
    bytes: Vec<u8>,
}

impl Stream {
    fn new(file: PacketFile) -> Self {
        let tree = StackTree::default();
        Stream {
            file,
            definitions: Definitions {
                first: tree.next_node(),
                ..Definitions::default()
            },
            tree,
            modules: FxHashMap::default(),
            names: FxHashSet::default(),
            checkpoint: 0,
            last: 0,
        }
    }

    fn event(
        &mut self,
        id: u64,
        time: u64,
        context: Context,
        fill: impl Fn(&mut EventWriter<'_>),
    ) -> Result<(), WriteError> {
        self.last = self.last.max(time);
        let mut event = self.file.writer().event(id, time);
        context.write(&mut event);
        fill(&mut event);
        event.finish()?;
        Ok(())
    }

    /// The number of a stack, which is defined where it is new.
    fn define(&mut self, frames: &[Frame]) -> Result<u32, WriteError> {
        let inserted = match self.tree.insert(frames) {
            Some(inserted) => inserted,
            None => {
                self.flush()?;
                self.begin_anew();
                self.tree.insert(frames).unwrap_or_default()
            }
        };
        if inserted.new_frames > 0 {
            self.definitions.add(inserted.parent, &frames[..inserted.new_frames])?;
        }
        Ok(inserted.stack)
    }

    fn packet_bytes(&mut self) -> usize {
        let definitions = &self.definitions;
        self.file.writer().content_bytes() + definitions.bytes.len() + size_of::<u32>() * definitions.parents.len()
    }

    /// Writes the packet, its definitions first.
    fn flush(&mut self) -> Result<(), WriteError> {
        let definitions = &self.definitions;
        let mut event = self.file.writer().front_event(class::STACKS);
        Context::default().write(&mut event);
        event.u32(definitions.first);
        event.sequence_len(definitions.parents.len());
        for &parent in &definitions.parents {
            event.u32(parent);
        }
        event.sequence_len(definitions.bytes.len());
        event.bytes(&definitions.bytes);
        event.finish()?;
        self.file.flush(self.last)?;
        self.definitions.clear(self.tree.next_node());
        if self.file.bytes_written() - self.checkpoint >= CHECKPOINT_BYTES {
            self.begin_anew();
        }
        Ok(())
    }

    /// Forgets what was told, so that all of it is told again from here on.
    fn begin_anew(&mut self) {
        self.checkpoint = self.file.bytes_written();
        self.tree.clear();
        self.modules.clear();
        self.names.clear();
        self.definitions.clear(self.tree.next_node());
    }
}

impl Definitions {
    /// Adds new frames, from the innermost outwards, on a known stack.
    fn add(&mut self, parent: u32, frames: &[Frame]) -> Result<(), WriteError> {
        let begin = self.bytes.len();
        self.bytes
            .resize(begin + WordSize::Bits64.max_encoded_len(frames.len()), 0);
        let mut encoder = Encoder::new(&mut self.bytes[begin..], WordSize::Bits64).map_err(unexpected)?;
        for run in frames.chunk_by(|a, b| a == b) {
            encoder
                .push_repeated(to_cbf(run[0]), run.len() as u64)
                .map_err(unexpected)?;
        }
        let len = encoder.finish(End::Complete);
        self.bytes.truncate(begin + len);
        self.parents.push(parent);
        Ok(())
    }

    fn clear(&mut self, first: u32) {
        self.first = first;
        self.parents.clear();
        self.bytes.clear();
    }
}

fn unexpected(error: backtrail_cbf::EncodeError) -> WriteError {
    WriteError(Cause::Io(io::Error::other(error)))
}

fn to_cbf(frame: Frame) -> backtrail_cbf::Frame {
    match frame.kind {
        FrameKind::Pc => backtrail_cbf::Frame::Pc(frame.address),
        FrameKind::Ra => backtrail_cbf::Frame::Ra(frame.address),
        FrameKind::Omitted => backtrail_cbf::Frame::Omit(frame.address),
    }
}

/// The context that every event has.
#[derive(Clone, Copy, Debug, Default)]
struct Context {
    pid: u32,
    tid: u32,
    ip: u64,
}

impl Context {
    fn of(pid: u32, tid: u32) -> Self {
        Context { pid, tid, ip: 0 }
    }

    fn write(self, event: &mut EventWriter<'_>) {
        // A process outside the recorder's namespace has the number -1.
        event.i32(self.pid as i32);
        event.i32(self.tid as i32);
        event.unsigned(self.ip & ((1 << events::IP_BITS) - 1));
    }
}

/// Texts in a trace end with a zero byte.
fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Whether the trace could not be created because there is something already.
pub fn is_occupied(error: &CreateError) -> bool {
    match &error.kind {
        CreateErrorKind::NotEmpty => true,
        CreateErrorKind::Io(error) => error.kind() == io::ErrorKind::AlreadyExists,
        _ => false,
    }
}
