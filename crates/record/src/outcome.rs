//! How a recording went.

use std::time::Duration;

use backtrail_recording::Stop;

use crate::error::Incomplete;

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
