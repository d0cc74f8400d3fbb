//! Samples programs and writes their stacks as a trace.
//!
//! A recording is made in one thread: the kernel writes samples into a ring per CPU; each sample's
//! stack is unwound with SFrame rows as soon as it is read, and the trace contains the stack, not a
//! copy of stack memory. Names are not looked up here.
//!
//! ```no_run
//! use backtrail_record::{
//!     DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, Dialect, Options, Storage, Target, Trigger, Walk, record,
//! };
//!
//! let outcome = record(&Options {
//!     target: Target::Command(vec!["sha256sum".into(), "/usr/bin/python3".into()]),
//!     output: "recording".into(),
//!     storage: Storage::Whole,
//!     trigger: Trigger::Clock(DEFAULT_FREQUENCY),
//!     stack_bytes: DEFAULT_STACK_BYTES,
//!     dialect: Dialect::V1_8,
//!     walk: Walk::Auto,
//!     duration: None,
//!     cache: None,
//!     hold_files: false,
//! })?;
//! println!("{} samples, {} lost", outcome.samples, outcome.lost);
//! # Ok::<(), backtrail_record::Error>(())
//! ```

mod announced;
mod arena;
mod aside;
mod calls;
mod chain;
mod command;
mod copying;
mod deep;
mod elf_module;
mod elsewhere;
mod environment;
mod error;
mod file_problems;
mod folder;
mod goroutines;
mod groups;
mod holes;
mod import;
mod kernel;
mod kernel_module;
mod kernel_tables;
mod left;
mod maker;
mod memory_image;
mod modules;
mod numbers;
mod options;
mod outcome;
mod probed;
mod process;
mod session;
mod spaces;
mod spares;
mod stack;
mod store;
mod tasks;
mod view;
mod waits;
mod walks;
mod watch;

use backtrail_cfi::announced::AnnouncedAt;
use backtrail_elf::HeldFile;
pub use backtrail_process::perf::{CountedEvent, Entry, Exit, ExitKind, SampledEvent, TracedFunction, Trigger};
use backtrail_process::sys::SignalSource;
use backtrail_recording::Observer;
pub use backtrail_recording::{Dialect, Item, Stop};
pub use calls::CallCounts;
pub use error::{Error, Incomplete};
pub use import::{ImportError, ImportOptions, Imported, import};
pub use options::{
    DEFAULT_ENTRY_STACK_BYTES, DEFAULT_EVENT_STACK_BYTES, DEFAULT_FREQUENCY, DEFAULT_STACK_BYTES, Keep,
    MAX_STACK_BYTES, Machine, Options, Requests, Storage, Target, Walk,
};
pub use outcome::{ModuleProblem, NameSources, Occasion, Outcome, Progress, Warning};
use session::Observing;

/// Records until the command or the processes end, the time is over, or a signal asks to stop.
///
/// # Errors
/// If recording could not start: then nothing was started, and no trace is left behind. A later
/// error ends the recording early and is reported in [`Outcome::incomplete`]; the trace is complete
/// up to there.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    record_each(options, &mut |_| ())
}

/// The same, and says what has happened meanwhile. `progress` must return soon, because nothing is
/// read from the kernel until then.
///
/// # Errors
/// As [`record`].
pub fn record_each(options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Outcome, Error> {
    let asking = match &options.storage {
        Storage::Snapshots { requests, .. } => requests.signal,
        _ => None,
    };
    let signals = SignalSource::with(asking.as_slice()).map_err(Error::Signals)?;
    session::run(options, &signals, None, progress)
}

/// Samples in the same way, but writes no trace: each item goes to `observer`, as soon as it is
/// known. If [`Options::hold_files`] is set, `files` gets each file that no path leads to, before
/// the first item that names it. `functions` gets each function that a process made at run time and
/// announced, before the first sample in it. `signals` are collected by the caller, so that one
/// that comes before or after the call does not end the program. [`Options::output`] and
/// [`Options::dialect`] have no meaning. A command's output is discarded, and the call returns when
/// the time is over, even if the command runs on.
///
/// # Errors
/// As [`record`].
pub fn observe(
    options: &Options,
    signals: &SignalSource,
    observer: impl FnMut(&Item<'_>) + 'static,
    files: impl FnMut(HeldFile) + 'static,
    functions: impl FnMut(AnnouncedAt) + 'static,
) -> Result<Outcome, Error> {
    let observing = Observing {
        observer: Observer::new(observer),
        files: Box::new(files),
        functions: Box::new(functions),
    };
    session::run(options, signals, Some(observing), &mut |_| ())
}
