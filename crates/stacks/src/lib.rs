//! Stacks of live processes and of cores: combines a process at one moment, unwind tables, and
//! names.
//!
//! [`Looker::look`] walks the threads of a running process, [`Looker::stacks`] those of a
//! [`Snapshot`], for example of a core; [`Looker::names`] names their frames. The result of a walk
//! is a [`Process`], which no longer needs memory: addresses, and the modules that contain them.
//! [`record`] writes and reads it, so that names can be added later and elsewhere. [`input`] opens
//! possible cores.
#![forbid(unsafe_code)]
//!
//! ```no_run
//! use backtrail_stacks::{Looker, Options};
//!
//! let mut looker = Looker::new(Options::default());
//! let (process, _) = looker.look(4711, false)?;
//! for thread in looker.names(&process) {
//!     println!("thread {}", thread.tid);
//!     for frame in thread.frames {
//!         println!("  {:#x} {}", frame.pc, frame.function);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arguments;
pub mod calls;
pub mod crash;
pub mod fold;
pub mod input;
#[doc(hidden)]
pub mod internals;
pub mod json;
mod modules;
mod names;
mod process;
pub mod record;
pub mod shown;
mod space;
mod walk;

pub use modules::Problem;
pub use names::{NamedFrame, NamedThread};
pub use process::{Argument, End, Frame, FrameRegisters, Hidden, How, Process, ThreadStack};

use std::path::PathBuf;

use backtrail_cfi::announced::Function;
use backtrail_cfi::cache;
use backtrail_cfi::tables::Tables;
use backtrail_process::Snapshot;
use backtrail_process::live::{self, Hold};
use backtrail_profile::{Symbolizer, SystemFiles};

use modules::ModuleSet;
pub use shown::Shown;

/// Options of a [`Looker`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The executable, instead of the file at the path that the process used.
    pub executable: Option<PathBuf>,
    /// Folder that a core's paths are relative to, if they are not this machine's.
    pub sysroot: Option<PathBuf>,
    /// Folders with separate debug files, in addition to `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// Keep the registers of each frame ([`ThreadStack::registers`]).
    pub registers: bool,
    /// Find the arguments of functions ([`ThreadStack::arguments`]).
    pub arguments: bool,
    /// How much of their values is shown.
    pub shown: Shown,
}

/// Walks and names the stacks of processes. Files and tables are kept between calls.
pub struct Looker {
    modules: ModuleSet,
    symbolizer: Symbolizer,
    has_live_names: bool,
    /// Functions that the last process announced to debuggers.
    announced: Vec<Function>,
    options: Options,
}

impl Looker {
    /// A looker with these options.
    pub fn new(options: Options) -> Looker {
        Looker {
            modules: ModuleSet::new(Tables::open(None), options.executable.clone(), options.sysroot.clone()),
            symbolizer: symbolizer(without_perf_maps(), &options),
            has_live_names: false,
            announced: Vec::new(),
            options,
        }
    }

    /// The stacks of all threads of a process. If `hold` is set, also the process, stopped until
    /// this value is dropped.
    ///
    /// The process is stopped while its registers and stacks are copied. If that is not enough,
    /// because a stack is deeper, or leads into other memory or into code made at run time, or
    /// because arguments point to other memory, it is stopped again until its stacks are walked,
    /// since its memory may have changed in between.
    ///
    /// # Errors
    /// As [`live::capture`].
    pub fn look(&mut self, pid: u32, hold: bool) -> Result<(Process, Option<Hold>), live::Error> {
        let (snapshot, held) = live::capture(pid, hold)?;
        let process = self.stacks(&snapshot);
        let is_enough = !process.threads.iter().any(|thread| thread.lacked_memory);
        if held.is_some() || is_enough {
            return Ok((process, held));
        }
        // Tables and names of everything met are known by now, so this takes no longer than the
        // walks.
        match live::capture(pid, true) {
            Ok((snapshot, _held)) => Ok((self.stacks(&snapshot), None)),
            // It has ended in the meantime.
            Err(_) => Ok((process, None)),
        }
    }

    /// The stacks of all threads of a snapshot.
    pub fn stacks(&mut self, snapshot: &Snapshot<'_>) -> Process {
        if snapshot.is_live && !self.has_live_names {
            // Only a running process has written the names of its code under its number.
            self.symbolizer = symbolizer(SystemFiles::default(), &self.options);
            self.has_live_names = true;
        }
        let wants = walk::Wants {
            registers: self.options.registers,
            arguments: self.options.arguments.then_some(&self.options.shown),
        };
        let (process, announced) = walk::stacks(snapshot, &self.modules, wants);
        self.announced = announced;
        for (path, place) in self.modules.places() {
            self.symbolizer.found_at(&path, place);
        }
        for (path, base_vaddr, symbols) in self.modules.in_memory() {
            self.symbolizer.found_in_memory(&path, base_vaddr, symbols);
        }
        process
    }

    /// Copies memory from `address` on, like [`Snapshot::read`], and returns the number of bytes.
    /// Memory that a core omits because a file contains it is read from that file.
    pub fn read(&self, snapshot: &Snapshot<'_>, address: u64, buffer: &mut [u8]) -> usize {
        self.modules.read(snapshot, address, buffer)
    }

    /// The message that the C library keeps for debuggers when it aborts a program: of a failed
    /// assertion, or of damage that it found in the heap or on the stack.
    pub fn abort_message(&self, snapshot: &Snapshot<'_>) -> Option<String> {
        self.modules.abort_message(snapshot)
    }

    /// The same stacks with names.
    pub fn names(&mut self, process: &Process) -> Vec<NamedThread> {
        let named = names::names(process, &self.announced, &mut self.symbolizer);
        self.symbolizer.keep();
        named
    }

    /// Problems that have kept files from being used so far.
    pub fn problems(&self) -> Vec<Problem> {
        self.modules.problems()
    }

    /// Notes about the names, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.symbolizer.notes()
    }
}

fn symbolizer(system: SystemFiles, options: &Options) -> Symbolizer {
    let symbolizer = Symbolizer::with_debug_dirs(system, &options.debug_dirs);
    match cache::folder() {
        Some(folder) => symbolizer.remembering(folder),
        None => symbolizer,
    }
}

fn without_perf_maps() -> SystemFiles {
    SystemFiles {
        perf_maps: PathBuf::new(),
        ..SystemFiles::default()
    }
}
