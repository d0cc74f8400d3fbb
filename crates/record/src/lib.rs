//! Samples programs and writes their stacks as a trace.
//!
//! A recording is made in one thread: the kernel samples into a ring for each CPU; each sample's stack is unwound as
//! soon as it is taken out, with SFrame rows, and goes into the trace as a stack, not as a copy of stack memory.
//! Names are not looked up here.

mod arena;
mod command;
mod environment;
mod error;
mod modules;
mod session;
mod spaces;
mod stack;
mod walks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use backtrail_recording::{Dialect, Stop};
pub use backtrail_target::perf::{Entry, Trigger};
pub use error::{Error, Incomplete};

/// What is recorded.
#[derive(Clone, Debug)]
pub enum Target {
    /// A command that is started for the purpose, with its arguments, all its threads and children.
    Command(Vec<OsString>),
    /// Processes that run already, with all their threads and what they start from now on.
    Processes(Vec<i32>),
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is recorded.
    pub target: Target,
    /// The trace's directory; it must not exist.
    pub output: PathBuf,
    /// What makes a sample.
    pub trigger: Trigger,
    /// Bytes of user stack that each sample copies; what lies deeper is read from the process.
    pub stack_bytes: u32,
    /// The trace's dialect.
    pub dialect: Dialect,
    /// When to stop at the latest.
    pub duration: Option<Duration>,
    /// Where converted tables are kept; `None`: in the user's cache, `$XDG_CACHE_HOME/backtrail`.
    pub cache: Option<PathBuf>,
}

/// Samples a second where the user does not say: close to 1,000, but not in step with what programs do a thousand times a second.
pub const DEFAULT_FREQUENCY: u64 = 997;
/// Bytes of stack copied with each sample, at most: nearly all that the kernel can do (a sample's size is a 16-bit
/// number). It copies no more than there is, so shallow stacks cost no more than with a small limit; of deep ones, what
/// is not copied has to be read from the process afterwards, when the frames may have changed.
pub const DEFAULT_STACK_BYTES: u32 = MAX_STACK_BYTES;
/// The same where samples are calls of functions, of which thousands may come within a millisecond: so many more fit into the rings.
pub const DEFAULT_ENTRY_STACK_BYTES: u32 = 8 << 10;
/// The largest [`Options::stack_bytes`].
pub const MAX_STACK_BYTES: u32 = 60 << 10;

/// A file whose unwind table could not be made, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleProblem {
    /// The file.
    pub path: String,
    /// What is wrong with it, and where.
    pub reason: String,
}

/// How a recording went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Samples in the trace.
    pub samples: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// How often each stop was met, by [`Stop`]'s number.
    pub stops: [u64; Stop::ALL.len()],
    /// Frames of all samples.
    pub frames: u64,
    /// Bytes of the trace.
    pub trace_bytes: u64,
    /// How often the kernel paused sampling because it took too much time.
    pub throttled: u64,
    /// Whether time in the kernel was sampled.
    pub kernel: bool,
    /// CPU time that recording took, conversion of tables included; the sampled program's is not in it.
    pub cpu_time: Duration,
    /// Files without a whole table. Stacks that reach into them may end there.
    pub problems: Vec<ModuleProblem>,
    /// What ended the recording before its time, if anything did.
    pub incomplete: Option<Incomplete>,
    /// The command's exit status as a shell tells it (128 + number for a signal); 0 where no command was started.
    pub exit_status: i32,
}

/// Records until the command ends, the processes end, the time is over, or a signal asks to stop.
///
/// # Errors
/// Where recording could not begin: nothing was started then, and no trace is left behind. What goes wrong later ends
/// the recording early and is told by [`Outcome::incomplete`]; the trace is whole up to there.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    session::run(options)
}
