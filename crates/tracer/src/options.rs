//! How a program traces itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where events go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A thread writes them to a trace below this directory.
    Directory(PathBuf),
    /// The newest stay in memory, or in this file.
    FlightRecorder(Option<PathBuf>),
    /// A collector takes them from rings in its folder.
    Folder(PathBuf),
}

/// Options of [`start`](crate::start).
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) destination: Option<Destination>,
    pub(crate) rules: String,
    pub(crate) packet_bytes: usize,
    pub(crate) packets: usize,
    pub(crate) threads: usize,
    pub(crate) contexts: u64,
    pub(crate) own: Vec<(String, fn() -> u64)>,
    pub(crate) sample: u64,
    pub(crate) flush: Duration,
    pub(crate) stacks: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            destination: None,
            rules: "*".to_owned(),
            packet_bytes: 256 << 10,
            packets: 16,
            threads: 128,
            contexts: 0,
            own: Vec::new(),
            sample: 100,
            flush: Duration::from_millis(100),
            stacks: true,
        }
    }
}

/// What each event has beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Context {
    /// `vpid`: the process.
    Pid,
    /// `vtid`: the thread. Packets have it anyway, as `tid`.
    Tid,
    /// `cpu_id`: the processor on which the thread runs.
    Cpu,
    /// `procname`: the thread's name when it recorded its first event.
    Name,
}

impl Options {
    /// Streams to disk: each process gets a trace of its own below `directory`.
    pub fn to_directory(directory: impl AsRef<Path>) -> Options {
        Options {
            destination: Some(Destination::Directory(directory.as_ref().to_owned())),
            ..Options::default()
        }
    }

    /// Keeps the newest events of each thread in memory, for
    /// [`Tracer::snapshot`](crate::Tracer::snapshot).
    pub fn flight_recorder() -> Options {
        Options {
            destination: Some(Destination::FlightRecorder(None)),
            ..Options::default()
        }
    }

    /// The same in a file, which outlives the process: [`recover`](crate::collect::recover) makes
    /// it a trace.
    pub fn flight_recorder_in(file: impl AsRef<Path>) -> Options {
        Options {
            destination: Some(Destination::FlightRecorder(Some(file.as_ref().to_owned()))),
            ..Options::default()
        }
    }

    /// Records nothing until `backtrail trace record --attach` finds the process.
    pub fn attachable() -> Options {
        Options {
            rules: String::new(),
            ..Options::default()
        }
    }

    /// Waits for `backtrail trace record`, which finds the process's rings in `folder`.
    pub fn attachable_in(folder: impl AsRef<Path>) -> Options {
        Options {
            destination: Some(Destination::Folder(folder.as_ref().to_owned())),
            rules: String::new(),
            ..Options::default()
        }
    }

    /// Rules that say which classes are recorded, the last one first:
    /// `net:*,-net:debug_*@info,a:b+stack`. The default is `*`.
    #[must_use]
    pub fn rules(mut self, rules: &str) -> Options {
        self.rules = rules.to_owned();
        self
    }

    /// The size of each thread's ring: `packets` packets of `bytes` bytes, each rounded up to a
    /// power of two. Pages that were never used take no memory. The default is 16 of 262,144.
    #[must_use]
    pub fn ring(mut self, packets: usize, bytes: usize) -> Options {
        self.packets = packets.clamp(2, 1 << 16).next_power_of_two();
        self.packet_bytes = bytes.clamp(4096, 1 << 26).next_power_of_two();
        self
    }

    /// The most threads that record at the same time; events of others are discarded and counted.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Options {
        self.threads = threads.clamp(1, 4096);
        self
    }

    /// Adds a context to each event.
    #[must_use]
    pub fn context(mut self, context: Context) -> Options {
        use crate::layout::context;
        self.contexts |= match context {
            Context::Pid => context::PID,
            Context::Tid => context::TID,
            Context::Cpu => context::CPU,
            Context::Name => context::COMM,
        };
        self
    }

    /// Adds a context of the program's own to each event. `value` runs where events are recorded,
    /// so in signal handlers if they record any.
    #[must_use]
    pub fn own_context(mut self, name: &str, value: fn() -> u64) -> Options {
        self.own.push((name.to_owned(), value));
        self
    }

    /// One of `events` events gets a stack, in classes that a rule with `+sampled` switches on.
    #[must_use]
    pub fn sample(mut self, events: u64) -> Options {
        self.sample = events.max(1);
        self
    }

    /// The longest time until events are on disk.
    #[must_use]
    pub fn flush_every(mut self, time: Duration) -> Options {
        self.flush = time;
        self
    }

    /// Does not prepare for stacks: the start takes less time, and stacks have one frame.
    #[must_use]
    pub fn without_stacks(mut self) -> Options {
        self.stacks = false;
        self
    }
}
