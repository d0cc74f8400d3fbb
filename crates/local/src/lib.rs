//! Backtraces of the calling thread, safe in signal handlers, and crash reports.
//!
//! [`Backtrace::capture`] works anywhere: in a signal handler, on any stack, in any thread. The
//! first walk of a call site reads call frame information; [`init`] makes the unwind table of every
//! loaded module beforehand, which makes it faster and gives addresses the names of their modules.
//! [`crash::install`] makes fatal signals write a report.
//!
//! ```
//! backtrail_local::init()?;
//! let backtrace = backtrail_local::Backtrace::capture();
//! assert!(backtrace.addresses().len() > 1);
//! println!("{backtrace}");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Requirements
//! x86-64 or AArch64 Linux. With a C library that lacks `_dl_find_object` (glibc before 2.35), call
//! [`init`] first, and again after `dlopen`, or use [`InitOptions::follow`].
#![allow(unsafe_code)]

mod arrivals;
pub mod crash;
mod follow;
mod frames;
pub mod handler;
pub mod loaded;
pub mod lookups;
pub mod memory;
mod register;
pub mod symbol;
pub mod walks;

pub use handler::capture::Backtrace;

use std::io;
use std::path::PathBuf;

/// Options of [`init_with`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InitOptions {
    /// A folder that keeps tables for the next start.
    pub cache: Option<PathBuf>,
    /// Whether a thread makes the tables of libraries that are loaded later. A backtrace through
    /// such a library is complete a moment after the first. A forked child does not have the
    /// thread; initialising there starts it.
    pub follow: bool,
    /// What that thread also does whenever it has looked for modules. Not called in a forked child
    /// before [`follow_in_child`].
    pub then: Option<fn()>,
}

impl InitOptions {
    /// Keeps tables in `folder`.
    #[must_use]
    pub fn with_cache(mut self, folder: impl Into<PathBuf>) -> InitOptions {
        self.cache = Some(folder.into());
        self
    }

    /// Follows libraries that are loaded later.
    #[must_use]
    pub fn following(mut self) -> InitOptions {
        self.follow = true;
        self
    }

    /// Follows libraries that are loaded later, and calls `act` in the thread that does.
    #[must_use]
    pub fn following_then(mut self, act: fn()) -> InitOptions {
        self.then = Some(act);
        self.following()
    }
}

/// Lists the loaded modules, without making tables, which takes some microseconds a module, and
/// some milliseconds for a static program without `PT_GNU_EH_FRAME`. Does nothing after [`init`].
/// For constructors of libraries; not for signal handlers.
pub fn prepare() {
    register::modules_without_tables();
}

/// Makes the unwind tables of all loaded modules. Call it again after `dlopen`. Not for signal
/// handlers.
///
/// # Errors
/// There is no memory for another table.
pub fn init() -> io::Result<()> {
    init_with(InitOptions::default())
}

/// [`init`] with options.
///
/// # Errors
/// As [`init`]; or the thread that follows libraries cannot be started.
pub fn init_with(options: InitOptions) -> io::Result<()> {
    register::modules(options.cache).map_err(io::Error::from_raw_os_error)?;
    if !options.follow {
        return Ok(());
    }
    if let Some(act) = options.then {
        follow::act_then(act);
    }
    follow::start().map_err(io::Error::from_raw_os_error)
}

/// Starts the thread that follows libraries in a forked child, which does not have its parent's.
/// For functions of `pthread_atfork`; not for signal handlers.
///
/// # Errors
/// The thread cannot be started.
pub fn follow_in_child() -> io::Result<()> {
    follow::start().map_err(io::Error::from_raw_os_error)
}

/// Registers code made at run time, at `start`, that keeps frame pointers. Not for signal handlers.
///
/// # Errors
/// `EINVAL` for an empty range, `EEXIST` if a part of it is registered already.
pub fn register_code(start: *const u8, bytes: usize) -> io::Result<()> {
    register::add_code(start.addr() as u64, bytes as u64).map_err(io::Error::from_raw_os_error)
}

/// Undoes [`register_code`]. Not for signal handlers.
///
/// # Errors
/// `ENOENT` if no registered code begins at `start`.
pub fn withdraw_code(start: *const u8) -> io::Result<()> {
    register::remove_code(start.addr() as u64).map_err(io::Error::from_raw_os_error)
}
