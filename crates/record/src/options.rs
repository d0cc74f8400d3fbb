//! What to record, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use backtrail_process::perf::Trigger;
use backtrail_recording::Dialect;

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
    /// Bytes of user stack that each sample copies.
    pub stack_bytes: u32,
    /// The trace's dialect.
    pub dialect: Dialect,
    /// When to stop at the latest.
    pub duration: Option<Duration>,
    /// Where converted tables are kept; `None`: in the user's cache, `$XDG_CACHE_HOME/backtrail`.
    pub cache: Option<PathBuf>,
}

/// Samples a second where the user does not say: close to 1,000, but not in step with what programs
/// do a thousand times a second.
pub const DEFAULT_FREQUENCY: u64 = 997;
/// Bytes of stack copied with each sample, at most: nearly all that the kernel can do (a sample's
/// size is a 16-bit number). It copies no more than there is, so shallow stacks cost no more than
/// with a small limit; deep ones are cut there, but for what frame pointers or watches prove.
pub const DEFAULT_STACK_BYTES: u32 = MAX_STACK_BYTES;
/// The same where samples are calls of functions, of which thousands may come within a millisecond:
/// so many more fit into the rings.
pub const DEFAULT_ENTRY_STACK_BYTES: u32 = 8 << 10;
/// The largest [`Options::stack_bytes`].
pub const MAX_STACK_BYTES: u32 = 60 << 10;
