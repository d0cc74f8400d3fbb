//! The recorder's side: writes items to a trace.

mod common;
mod error;
mod event;
mod observer;

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_trace::{CreateError, PacketFile, StreamOptions, TraceWriter};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::events::{self, class, stream};
use crate::options::WriterOptions;
use crate::tree;
use crate::{Item, Module, Sample, Stop, ThreadName};
use common::Common;
pub use error::{WriteError, is_occupied};
use event::{PACKET_BYTES, put_context, until_zero};
pub use observer::Observer;

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
    cpus: Vec<PacketFile>,
    common: Common,
}

impl Writer {
    /// Creates the trace's directory (an existing empty one is used) and writes its metadata.
    pub fn create(directory: &Path, options: &WriterOptions<'_>) -> Result<Writer, CreateError> {
        let made_directory = !directory.exists();
        let description = events::description(&options.environment, options.command, options.frequency);
        let trace = TraceWriter::create(directory, description, options.dialect)?;
        // Unlike a tracer's, our packets are not parts of mapped memory. Padding to pages would be
        // a fifth of a small trace.
        let unpadded = |options| StreamOptions {
            align_packet_bytes: 1,
            max_packet_bytes: MAX_PACKET_BYTES,
            ..options
        };
        let cpu_stream = |&cpu: &u32| {
            let options = unpadded(StreamOptions::for_cpu(stream::CPU, cpu));
            trace.stream(&format!("cpu_{cpu}"), options)
        };
        Ok(Self::to(Output::Files(Box::new(Files {
            directory: directory.to_owned(),
            made_directory,
            cpus: options.cpus.iter().map(cpu_stream).collect::<Result<_, _>>()?,
            // Among events of the same time, readers take those of the first file first.
            common: Common::new(trace.stream("all_cpus", unpadded(StreamOptions::for_cpu(stream::ALL, 0)))?),
        }))))
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
        let metadata = fs::metadata(files.directory.join("metadata")).map_or(0, |metadata| metadata.len());
        let streams = files.cpus.iter().map(PacketFile::bytes_written).sum::<u64>();
        metadata + streams + files.common.bytes_written()
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
            files.common.begin_anew();
            self.modules.clear();
            self.names.clear();
            // Numbers have a new meaning from here on, also in a stream whose next sample has the
            // same time as this one.
            self.last += 1;
        } else if files.cpus[stream].writer().content_bytes() >= PACKET_BYTES {
            files.common.flush(self.last)?;
            files.cpus[stream].flush(self.last)?;
        }
        Ok(())
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
    fn sample(&mut self, stream: usize, time: u64, sample: &Sample<'_>) -> Result<(), WriteError> {
        let (leaf, callers) = match sample.frames.split_first() {
            Some((leaf, callers)) => (leaf.address, callers),
            None => (0, &[][..]),
        };
        let root = tree::root(sample.stop.unwrap_or(Stop::NoUserStack), sample.live);
        let stack = self.common.define(time, sample.pid, root, callers)?;
        let class = match sample.passed {
            [] => class::SAMPLE,
            _ => class::CALL,
        };
        let mut event = self.cpus[stream].writer().event(class, time);
        put_context(&mut event, sample.pid, sample.tid);
        event.unsigned(leaf & ((1 << events::IP_BITS) - 1));
        event.unsigned(stack.into());
        if class == class::CALL {
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

fn observed(observer: &mut Observer, item: &Item<'_>) -> Result<(), WriteError> {
    observer.take(item);
    Ok(())
}
