//! The recorder's side: writes items to a trace.

mod common;
mod error;
mod event;
mod observer;
mod packets;

use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use backtrail_trace::{
    CreateError, CreateErrorKind, Description, Dialect, Plan, StreamOptions, StreamWriter, TraceWriter,
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::events::{self, INTERRUPT_BIT, class, stream};
use crate::options::WriterOptions;
use crate::tree;
use crate::{Detail, Item, Module, ProcessLabels, Sample, Stop, ThreadName};
use common::Common;
pub use error::{WriteError, is_occupied};
use event::{PACKET_BYTES, put_context, until_zero};
pub use observer::Observer;
use packets::{MemoryStream, Packets};

/// The most bytes of a packet: a definition of the longest stack takes some 150 KiB.
const MAX_PACKET_BYTES: usize = 1 << 20;

/// Writes a recording. Everything stays in memory until a packet is full or [`Writer::flush`] is
/// called. Items must come in time order.
#[derive(Debug)]
pub struct Writer {
    output: Output,
    /// Mappings already written, by process.
    modules: FxHashMap<u32, FxHashSet<u32>>,
    /// Threads whose names are already written.
    names: FxHashSet<u32>,
    /// Processes whose labels were written.
    labels: FxHashSet<u32>,
    /// Time of the last event; a checkpoint advances it, so that nothing after it can be taken for
    /// older.
    last: u64,
}

#[derive(Debug)]
enum Output {
    Files(Box<Files>),
    Observer(Observer),
}

#[derive(Debug)]
struct Files {
    directory: PathBuf,
    /// Whether we created the directory, so that [`Writer::discard`] removes it.
    made_directory: bool,
    cpus: Vec<Packets>,
    common: Common,
    /// The bits that are written of an instruction's address.
    ip_mask: u64,
    /// If packets stay in memory.
    memory: Option<Memory>,
}

/// What it takes to write packets from memory.
#[derive(Debug)]
struct Memory {
    description: Description,
    dialect: Dialect,
    /// The number of the current segment.
    segment: u64,
}

impl Writer {
    /// Creates the trace's directory (an existing empty one is used) and writes its metadata.
    pub fn create(directory: &Path, options: &WriterOptions<'_>) -> Result<Writer, CreateError> {
        let made_directory = !directory.exists();
        let trace = TraceWriter::create(directory, description(options), options.dialect)?;
        Self::in_files(directory, made_directory, &trace, options)
    }

    /// The same, under a hidden name until the trace is one: `directory`, whose parent must exist,
    /// is never seen without its metadata.
    pub fn create_whole(directory: &Path, options: &WriterOptions<'_>) -> Result<Writer, CreateError> {
        let trace = TraceWriter::create(&hidden(directory), description(options), options.dialect)?;
        let trace = trace.renamed(directory)?;
        Self::in_files(directory, true, &trace, options)
    }

    fn in_files(
        directory: &Path,
        made_directory: bool,
        trace: &TraceWriter,
        options: &WriterOptions<'_>,
    ) -> Result<Writer, CreateError> {
        let stream =
            |name: &str, options| Ok(Packets::File(Box::new(trace.stream(name, options)?))) as Result<_, CreateError>;
        let cpu_stream = |&cpu: &u32| stream(&cpu_name(cpu), unpadded(stream::CPU, cpu));
        Ok(Self::to(Output::Files(Box::new(Files {
            directory: directory.to_owned(),
            made_directory,
            cpus: options.cpus.iter().map(cpu_stream).collect::<Result<_, _>>()?,
            common: Common::new(stream(COMMON_NAME, unpadded(stream::ALL, 0))?),
            ip_mask: ip_mask(options),
            memory: None,
        }))))
    }

    /// Keeps everything in memory, until it is [forgotten](Self::forget_before).
    pub fn in_memory(options: &WriterOptions<'_>) -> Result<Writer, CreateError> {
        let path = Path::new("memory");
        let description = description(options);
        let plan = Plan::new(description.clone())
            .map_err(|error| CreateError::new(path, CreateErrorKind::Description(error)))?;
        let plan = Arc::new(plan);
        let stream = |name: String, options| {
            let writer = StreamWriter::new(Arc::clone(&plan), options)
                .map_err(|error| CreateError::new(path, CreateErrorKind::Encode(error)))?;
            Ok(Packets::Memory(Box::new(MemoryStream::new(name, writer)))) as Result<_, CreateError>
        };
        let cpu_stream = |&cpu: &u32| stream(cpu_name(cpu), unpadded(stream::CPU, cpu));
        Ok(Self::to(Output::Files(Box::new(Files {
            directory: PathBuf::new(),
            made_directory: false,
            cpus: options.cpus.iter().map(cpu_stream).collect::<Result<_, _>>()?,
            common: Common::new(stream(COMMON_NAME.to_owned(), unpadded(stream::ALL, 0))?),
            ip_mask: ip_mask(options),
            memory: Some(Memory {
                description,
                dialect: options.dialect,
                segment: 0,
            }),
        }))))
    }

    /// Ends a segment of what is kept in memory, and returns the number of the next one: from there
    /// on, everything can be read without what was before.
    pub fn begin_segment(&mut self) -> Result<u64, WriteError> {
        if let Output::Files(files) = &mut self.output {
            files.flush(self.last)?;
        }
        Ok(self.begin_anew())
    }

    /// Forgets the segments before this one.
    pub fn forget_before(&mut self, segment: u64) {
        if let Output::Files(files) = &mut self.output {
            files.streams_mut().for_each(|stream| stream.forget_before(segment));
        }
    }

    /// Writes what is in memory as a trace; its directory must not exist, and appears when it is
    /// complete.
    pub fn snapshot(&mut self, directory: &Path) -> Result<(), WriteError> {
        let Output::Files(files) = &mut self.output else {
            return Ok(());
        };
        files.flush(self.last)?;
        let Some(memory) = &files.memory else { return Ok(()) };
        let hidden = hidden(directory);
        let trace = TraceWriter::create(&hidden, memory.description.clone(), memory.dialect)?;
        let written = files.streams().try_for_each(|stream| match stream {
            Packets::Memory(stream) => stream.write(&hidden),
            Packets::File(_) => Ok(()),
        });
        if let Err(error) = written {
            // The reason matters more.
            let _ = fs::remove_dir_all(&hidden);
            return Err(error.into());
        }
        trace.renamed(directory)?;
        Ok(())
    }

    /// Writes no trace, but passes the items on.
    pub fn observed(observer: Observer) -> Writer {
        Self::to(Output::Observer(observer))
    }

    fn to(output: Output) -> Writer {
        Writer {
            output,
            modules: FxHashMap::default(),
            names: FxHashSet::default(),
            labels: FxHashSet::default(),
            last: 0,
        }
    }

    /// Removes the trace again, if nothing was recorded.
    pub fn discard(self) {
        if let Output::Files(files) = self.output {
            // Anything that cannot be removed stays; the reason why nothing was recorded matters
            // more.
            let _ = fs::remove_file(files.directory.join("metadata"));
            if files.made_directory {
                let _ = fs::remove_dir(&files.directory);
            }
        }
    }

    /// Bytes of the trace on disk.
    pub fn bytes(&self) -> u64 {
        let Output::Files(files) = &self.output else {
            return 0;
        };
        let metadata = match files.memory {
            Some(_) => 0,
            None => fs::metadata(files.directory.join("metadata")).map_or(0, |metadata| metadata.len()),
        };
        metadata + files.streams().map(Packets::bytes).sum::<u64>()
    }

    /// Whether a mapping of a process must still be written; marks it as written.
    pub fn announce_module(&mut self, pid: u32, mapping: u32) -> bool {
        self.modules.entry(pid).or_default().insert(mapping)
    }

    /// Whether the name of a thread must still be written; marks it as written.
    pub fn announce_name(&mut self, tid: u32) -> bool {
        self.names.insert(tid)
    }

    /// A thread has a new name, which must be written again.
    pub fn forget_name(&mut self, tid: u32) {
        self.names.remove(&tid);
    }

    /// Whether a process's labels must be written: they have not been yet.
    pub fn announce_labels(&mut self, pid: u32) -> bool {
        self.labels.insert(pid)
    }

    /// A process has ended.
    pub fn forget_labels(&mut self, pid: u32) {
        self.labels.remove(&pid);
    }

    /// Writes where a process runs.
    pub fn labels(&mut self, labels: &ProcessLabels) -> Result<(), WriteError> {
        let time = self.time(labels.time);
        match &mut self.output {
            Output::Files(files) => files
                .common
                .event(class::LABELS, time, labels.pid, labels.pid, |event| {
                    event.text(until_zero(labels.group.as_bytes()));
                    event.u64(labels.namespace);
                    event.i32(labels.inner_pid as i32);
                }),
            Output::Observer(observer) => observed(observer, &Item::ProcessLabels(labels.clone())),
        }
    }

    /// A process is gone, or its modules have changed; they must be written again.
    pub fn forget_process(&mut self, pid: u32) {
        self.modules.remove(&pid);
        if let Output::Files(files) = &mut self.output {
            files.common.forget_process(pid);
        }
    }

    /// Writes a module.
    pub fn module(&mut self, tid: u32, module: &Module) -> Result<(), WriteError> {
        let time = self.time(module.time);
        match &mut self.output {
            Output::Files(files) => files.common.module(time, tid, module),
            Output::Observer(observer) => observed(observer, &Item::Module(module.clone())),
        }
    }

    /// Writes a thread's name.
    pub fn thread_name(&mut self, time: u64, pid: u32, tid: u32, name: &str) -> Result<(), WriteError> {
        let time = self.time(time);
        match &mut self.output {
            Output::Files(files) => files.common.event(class::THREAD_NAME, time, pid, tid, |event| {
                event.text(until_zero(name.as_bytes()));
            }),
            Output::Observer(observer) => {
                let name = name.to_owned();
                observed(observer, &Item::ThreadName(ThreadName { time, pid, tid, name }))
            }
        }
    }

    /// Writes that a process runs another program.
    pub fn exec(&mut self, time: u64, pid: u32) -> Result<(), WriteError> {
        self.forget_process(pid);
        let time = self.time(time);
        match &mut self.output {
            Output::Files(files) => files.common.event(class::START, time, pid, pid, |_| ()),
            Output::Observer(observer) => observed(observer, &Item::Exec { time, pid }),
        }
    }

    /// Writes a new thread or process.
    pub fn fork(&mut self, time: u64, pid: u32, tid: u32, parent: u32) -> Result<(), WriteError> {
        let time = self.time(time);
        match &mut self.output {
            Output::Files(files) => files
                .common
                .event(class::FORK, time, pid, tid, |event| event.i32(parent as i32)),
            Output::Observer(observer) => observed(observer, &Item::Fork { time, pid, tid, parent }),
        }
    }

    /// Writes the end of a thread.
    pub fn exit(&mut self, time: u64, pid: u32, tid: u32) -> Result<(), WriteError> {
        let time = self.time(time);
        match &mut self.output {
            Output::Files(files) => files.common.event(class::EXIT, time, pid, tid, |_| ()),
            Output::Observer(observer) => observed(observer, &Item::Exit { time, pid, tid }),
        }
    }

    /// Writes how many samples of a CPU were lost.
    pub fn lost(&mut self, stream: usize, time: u64, count: u64) -> Result<(), WriteError> {
        let time = self.time(time);
        let files = match &mut self.output {
            Output::Files(files) => files,
            Output::Observer(observer) => return observed(observer, &Item::Lost { time, count }),
        };
        let writer = files.cpus[stream].writer();
        writer.discard(count);
        let mut event = writer.event(class::LOST, time);
        put_context(&mut event, 0, 0);
        event.unsigned(0);
        event.u64(count);
        Ok(event.finish()?)
    }

    /// Writes a sample, whose `stop` must be known.
    pub fn sample(&mut self, stream: usize, sample: &Sample<'_>) -> Result<(), WriteError> {
        let time = self.time(sample.time);
        let files = match &mut self.output {
            Output::Files(files) => files,
            Output::Observer(observer) => return observed(observer, &Item::Sample(*sample)),
        };
        files.sample(stream, time, sample)?;
        if files.common.is_due_for_checkpoint() {
            files.flush(self.last)?;
            self.begin_anew();
        } else if files.cpus[stream].writer().content_bytes() >= PACKET_BYTES {
            files.common.flush(self.last)?;
            files.cpus[stream].flush(self.last)?;
        }
        Ok(())
    }

    /// Makes a checkpoint, after everything was flushed.
    fn begin_anew(&mut self) -> u64 {
        let mut segment = 0;
        if let Output::Files(files) = &mut self.output {
            files.common.begin_anew();
            if let Some(memory) = &mut files.memory {
                memory.segment += 1;
                segment = memory.segment;
            }
            files.streams_mut().for_each(|stream| stream.begin_segment(segment));
        }
        self.modules.clear();
        self.names.clear();
        self.labels.clear();
        // Numbers have a new meaning from here on, also in a stream whose next sample has the
        // same time as this one.
        self.last += 1;
        segment
    }

    /// Writes the packets that have events: first the one with the stacks, to which the others
    /// refer.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match &mut self.output {
            Output::Files(files) => files.flush(self.last),
            Output::Observer(_) => Ok(()),
        }
    }

    fn time(&mut self, time: u64) -> u64 {
        self.last = self.last.max(time);
        self.last
    }
}

impl Files {
    fn streams(&self) -> impl Iterator<Item = &Packets> {
        self.cpus.iter().chain([&self.common.file])
    }

    fn streams_mut(&mut self) -> impl Iterator<Item = &mut Packets> {
        self.cpus.iter_mut().chain([&mut self.common.file])
    }

    fn sample(&mut self, stream: usize, time: u64, sample: &Sample<'_>) -> Result<(), WriteError> {
        let (leaf, callers) = match sample.frames.split_first() {
            Some((leaf, callers)) => (leaf.address, callers),
            None => (0, &[][..]),
        };
        let walk = if sample.in_kernel { tree::IN_KERNEL } else { 0 };
        let root = tree::root(sample.stop.unwrap_or(Stop::NoUserStack), sample.live) | walk;
        let stack = self.common.define(time, sample.pid, root, callers)?;
        let class = match (sample.detail, sample.wait, sample.passed) {
            (Detail::Call(_), ..) => class::FINISHED_CALL,
            (Detail::Event(_), ..) => class::EVENT,
            (Detail::Counted { .. }, ..) => class::COUNTED_EVENT,
            (Detail::Nothing, Some(_), _) => class::WAIT,
            (Detail::Nothing, None, []) => class::SAMPLE,
            (Detail::Nothing, None, _) => class::CALL,
        };
        let waker = sample.wait.and_then(|wait| wait.waker);
        let ending = waker.and_then(|waker| waker.stop).unwrap_or(Stop::NoUserStack);
        let waking = match waker.and_then(|waker| Some((waker, waker.frames.split_first()?))) {
            Some((waker, (leaf, callers))) => {
                let root = tree::root(ending, false);
                (leaf.address, self.common.define(time, waker.pid, root, callers)?)
            }
            None => (0, tree::root(ending, false)),
        };
        let mut event = self.cpus[stream].writer().event(class, time);
        put_context(&mut event, sample.pid, sample.tid);
        event.unsigned(leaf & self.ip_mask);
        event.unsigned(stack.into());
        match sample.detail {
            Detail::Call(call) => {
                event.u64(call.begin);
                event.u64(call.duration);
            }
            Detail::Event(number) => event.u8(number),
            Detail::Counted { event: number, count } => {
                event.u8(number);
                event.u64(count);
            }
            Detail::Nothing => {}
        }
        if let Some(wait) = sample.wait.filter(|_| class == class::WAIT) {
            let interrupt = waker.is_some_and(|waker| waker.interrupt);
            event.u8(wait.kind as u8 | u8::from(interrupt) << INTERRUPT_BIT);
            event.u64(wait.duration);
            event.u64(wait.ready);
            event.i32(waker.map_or(-1, |waker| waker.pid as i32));
            event.i32(waker.map_or(-1, |waker| waker.tid as i32));
            event.unsigned(waking.0 & self.ip_mask);
            event.unsigned(waking.1.into());
        }
        if matches!(class, class::CALL | class::FINISHED_CALL) {
            let passed = &sample.passed[..sample.passed.len().min(u8::MAX.into())];
            event.u8(passed.len() as u8);
            event.u64s(passed);
        }
        Ok(event.finish()?)
    }

    fn flush(&mut self, time: u64) -> Result<(), WriteError> {
        self.common.flush(time)?;
        for cpu in &mut self.cpus {
            if cpu.writer().events() > 0 {
                cpu.flush(time)?;
            }
        }
        Ok(())
    }
}

fn ip_mask(options: &WriterOptions<'_>) -> u64 {
    u64::MAX >> (64 - events::ip_bits(&options.environment))
}

fn description(options: &WriterOptions<'_>) -> Description {
    events::description(options)
}

/// Among events of the same time, readers take those of the first file first.
const COMMON_NAME: &str = "all_cpus";

fn cpu_name(cpu: u32) -> String {
    format!("cpu_{cpu}")
}

/// Unlike a tracer's, our packets are not parts of mapped memory. Padding to pages would be a fifth
/// of a small trace.
fn unpadded(class: u64, cpu: u32) -> StreamOptions {
    StreamOptions {
        align_packet_bytes: 1,
        max_packet_bytes: MAX_PACKET_BYTES,
        ..StreamOptions::for_cpu(class, cpu)
    }
}

/// The name of a directory until it is complete.
fn hidden(directory: &Path) -> PathBuf {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    directory.with_file_name(format!(".{name}"))
}

fn observed(observer: &mut Observer, item: &Item<'_>) -> Result<(), WriteError> {
    observer.take(item);
    Ok(())
}
