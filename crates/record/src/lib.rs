//! Samples programs and writes their stacks as a trace.
//!
//! A recording is made in one thread: the kernel samples into a ring for each CPU; each sample's
//! stack is unwound as soon as it is taken out, with SFrame rows, and goes into the trace as a
//! stack, not as a copy of stack memory. Names are not looked up here.
//!
//! ```no_run
//! use backtrail_record::{DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, Dialect, Options, Target, Trigger, record};
//!
//! let outcome = record(&Options {
//!     target: Target::Command(vec!["sha256sum".into(), "/usr/bin/python3".into()]),
//!     output: "recording".into(),
//!     trigger: Trigger::Clock(DEFAULT_FREQUENCY),
//!     stack_bytes: DEFAULT_STACK_BYTES,
//!     dialect: Dialect::V1_8,
//!     duration: None,
//!     cache: None,
//! })?;
//! println!("{} samples, {} lost", outcome.samples, outcome.lost);
//! # Ok::<(), backtrail_record::Error>(())
//! ```

mod arena;
mod chain;
mod command;
mod environment;
mod error;
mod holes;
mod modules;
mod options;
mod outcome;
mod process;
mod session;
mod spaces;
mod stack;
mod view;
mod walks;
mod watch;

pub use backtrail_process::perf::{Entry, Trigger};
pub use backtrail_recording::{Dialect, Stop};
pub use error::{Error, Incomplete};
pub use options::{
    DEFAULT_ENTRY_STACK_BYTES, DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, MAX_STACK_BYTES, Options, Target,
};
pub use outcome::{ModuleProblem, Outcome, Warning};

/// Records until the command ends, the processes end, the time is over, or a signal asks to stop.
///
/// # Errors
/// Where recording could not begin: nothing was started then, and no trace is left behind. What
/// goes wrong later ends the recording early and is told by [`Outcome::incomplete`]; the trace is
/// whole up to there.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    session::run(options)
}
