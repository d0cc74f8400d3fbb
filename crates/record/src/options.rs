//! What to record, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use backtrail_process::perf::Trigger;
use backtrail_recording::Dialect;

/// What is recorded.
#[derive(Clone, Debug)]
pub enum Target {
    /// A command that is started for the recording, with its arguments, all its threads and
    /// children.
    Command(Vec<OsString>),
    /// Running processes, with all their threads and everything they start from now on.
    Processes(Vec<i32>),
    /// All processes, or those in some control groups.
    Machine(Machine),
}

/// Processes that are recorded whoever has started them.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Directories of the control groups to which the recording is restricted; groups below these
    /// count too. None: every process is recorded.
    pub groups: Vec<PathBuf>,
    /// A command whose end ends the recording; it is recorded only if it is among the processes.
    pub command: Vec<OsString>,
}

/// Where stacks are walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walk {
    /// In the recorder, from copies of the stacks; but in the kernel for processes with stacks that
    /// are deeper than their copies, if it lets us.
    #[default]
    Auto,
    /// In the recorder, from copies of the stacks.
    Copy,
    /// In the kernel, at the moment of the sample, as far as possible; otherwise from copies.
    Kernel,
}

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// At least what is younger than this.
    Time(Duration),
    /// At most this many bytes.
    Bytes(u64),
}

/// What is written, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// One recording of the whole time.
    #[default]
    Whole,
    /// A folder of recordings, one after the other.
    Rotation {
        /// The time of each.
        every: Duration,
        /// Which of them are kept; older ones, also of earlier recorders, are deleted.
        keep: Option<Keep>,
    },
    /// Nothing until it is asked for: then a recording of what is in memory goes into a folder.
    Snapshots {
        /// What is kept in memory.
        keep: Keep,
        /// Who asks for it.
        requests: Requests,
    },
}

/// What asks for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The end of the recording.
    pub exit: bool,
    /// A signal, by its number.
    pub signal: Option<i32>,
    /// A command for the shell, run again and again, that succeeds.
    pub trigger: Option<OsString>,
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is recorded.
    pub target: Target,
    /// The trace's directory, which must not exist; or the folder of several, which is made if it
    /// does not exist.
    pub output: PathBuf,
    /// What is written, and when.
    pub storage: Storage,
    /// What triggers a sample.
    pub trigger: Trigger,
    /// Bytes of user stack that each sample copies.
    pub stack_bytes: u32,
    /// Where stacks are walked.
    pub walk: Walk,
    /// The trace's dialect.
    pub dialect: Dialect,
    /// The longest time to record.
    pub duration: Option<Duration>,
    /// The folder of converted tables; `None`: the user's cache, `$XDG_CACHE_HOME/backtrail`.
    pub cache: Option<PathBuf>,
    /// Whether files to which no path leads are kept open for whoever names addresses afterwards,
    /// or passed on by [`observe`](crate::observe): those of containers, and deleted ones.
    pub hold_files: bool,
}

/// The default number of samples per second: close to 1,000, but not in step with what programs do
/// a thousand times a second.
pub const DEFAULT_FREQUENCY: u64 = 997;
/// The default limit of stack bytes per sample: nearly all that the kernel can copy (a sample's
/// size is a 16-bit number). The kernel copies no more than there is, so shallow stacks cost no
/// more than with a small limit; deep ones are cut there, except for what frame pointers or watches
/// prove.
pub const DEFAULT_STACK_BYTES: u32 = MAX_STACK_BYTES;
/// The same for samples of calls, of which thousands may come within a millisecond: a smaller copy
/// lets more of them fit into the rings.
pub const DEFAULT_ENTRY_STACK_BYTES: u32 = 8 << 10;
/// The same for samples of waits and of events, which may come in bursts.
pub const DEFAULT_EVENT_STACK_BYTES: u32 = 16 << 10;
/// The largest [`Options::stack_bytes`].
pub const MAX_STACK_BYTES: u32 = 60 << 10;
