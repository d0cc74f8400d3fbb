//! The samples of a recording with their names: the one model that every format is written from.

use backtrail_profile::{Location, Measure};
use backtrail_recording::{Origin, Stop};

/// A process under one name. A process that starts another program is listed again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name when the samples were taken.
    pub name: String,
}

/// A thread under one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Index of its process in [`Samples::processes`].
    pub process: u32,
    /// Its number.
    pub tid: u32,
    /// Its name when the samples were taken.
    pub name: String,
}

/// A file with code, at whatever address each process mapped it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeFile {
    /// Path, as the process saw it.
    pub path: String,
    /// Build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// Address of its first byte: 0, unless it is linked for fixed addresses or is the kernel.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
}

/// An entry of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Code at an address.
    Code {
        /// The address in its file, or in memory if there is no file. If the frame is a caller, it
        /// is within the call.
        address: u64,
        /// Index in [`Samples::files`].
        file: Option<u32>,
        /// Index in [`Samples::locations`].
        location: u32,
    },
    /// A remark in brackets, such as `[incomplete: no_table]`.
    Marker(String),
}

/// A node of the tree of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The caller's node, which comes before this one; that of the first node is itself.
    pub parent: u32,
    /// Index in [`Samples::frames`]; without meaning in the first node.
    pub frame: u32,
}

/// How a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ending {
    /// The reason; `None` if only the leaf is known.
    pub stop: Option<Stop>,
    /// Whether outer frames were read from the running process after the sample.
    pub live: bool,
}

impl Ending {
    /// The reason's name in JSON.
    pub fn name(self) -> &'static str {
        self.stop.map_or("stack_lost", Stop::name)
    }
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When, in nanoseconds of the recording's clock.
    pub time: u64,
    /// Index in [`Samples::threads`].
    pub thread: u32,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// The innermost node of its stack.
    pub node: u32,
    /// Index in [`Samples::endings`].
    pub ending: u8,
    /// What it counts for, in [`Samples::measure`].
    pub weight: u64,
}

/// The samples of a recording.
#[derive(Debug, Default)]
pub struct Samples {
    /// The command and the machine.
    pub origin: Origin,
    /// Processes in the order of their first samples.
    pub processes: Vec<Process>,
    /// Threads in the order of their first samples.
    pub threads: Vec<Thread>,
    /// Files with code that ran.
    pub files: Vec<CodeFile>,
    /// The names of code.
    pub locations: Vec<Location>,
    /// The distinct entries of stacks.
    pub frames: Vec<Frame>,
    /// The tree of stacks, callers first.
    pub nodes: Vec<Node>,
    /// The ways in which stacks end.
    pub endings: Vec<Ending>,
    /// All samples in time order.
    pub rows: Vec<Row>,
    /// What the weights of samples are, if they are not all 1.
    pub measure: Option<Measure>,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Bytes of the recording on disk.
    pub trace_bytes: u64,
    /// Remarks about names that are missing, one sentence each.
    pub notes: Vec<String>,
}

impl Samples {
    /// Calls from the innermost outwards, until and without the first node.
    pub fn stack(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let node = self.nodes[at as usize];
            (at != 0).then(|| {
                at = node.parent;
                node.frame
            })
        })
    }

    /// The process of a thread.
    pub fn process_of(&self, thread: u32) -> &Process {
        &self.processes[self.threads[thread as usize].process as usize]
    }

    /// Times of the first and the last sample.
    pub fn times(&self) -> Option<(u64, u64)> {
        let first = self.rows.iter().map(|row| row.time).min()?;
        let last = self.rows.iter().map(|row| row.time).max()?;
        Some((first, last))
    }

    /// Nanoseconds of CPU time between two samples, if a clock triggered them.
    pub fn period(&self) -> Option<u64> {
        if self.measure.is_some() {
            return None;
        }
        Some(1_000_000_000 / self.origin.frequency?)
    }
}
