//! Where a process at one moment, unwind tables and names meet: the stacks of live processes and of
//! cores.
//!
//! [`Looker::look`] walks the threads of a running process, [`Looker::stacks`] those of a
//! [`Snapshot`], of a core for one; [`Looker::names`] gives their frames names. Between the two
//! lies a [`Process`], which needs no memory any more: addresses, and the modules that they lie in.
//! [`record`] writes and reads it, so that names can be given later and elsewhere. [`input`] opens
//! what may be a core.
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
pub mod fold;
#[doc(hidden)]
pub mod fuzz;
mod go;
pub mod input;
mod modules;
mod names;
mod process;
pub mod record;
mod space;
mod walk;

pub use modules::Problem;
pub use names::{NamedFrame, NamedThread};
pub use process::{Argument, End, Frame, FrameRegisters, How, Process, ThreadStack};

use std::path::PathBuf;

use backtrail_cfi::cache;
use backtrail_cfi::tables::Tables;
use backtrail_process::Snapshot;
use backtrail_process::live::{self, Hold};
use backtrail_profile::{Symbolizer, SystemFiles};

use modules::ModuleSet;

/// Where files are.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The executable, in place of the one at the path that the process had it at.
    pub executable: Option<PathBuf>,
    /// The folder that a core's paths count from, where they are not this machine's.
    pub sysroot: Option<PathBuf>,
    /// Folders with separate debug files, beside `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// Keep the registers of each frame ([`ThreadStack::registers`]).
    pub registers: bool,
    /// Find what functions were called with ([`ThreadStack::arguments`]).
    pub arguments: bool,
}

/// Walks and names the stacks of processes; files and tables are kept from one look to the next.
pub struct Looker {
    modules: ModuleSet,
    symbolizer: Symbolizer,
    has_live_names: bool,
    options: Options,
}

impl Looker {
    /// Looks with these options.
    pub fn new(options: Options) -> Looker {
        Looker {
            modules: ModuleSet::new(Tables::open(None), options.executable.clone(), options.sysroot.clone()),
            symbolizer: symbolizer(without_perf_maps(), &options),
            has_live_names: false,
            options,
        }
    }

    /// The stacks of all threads of a process, and the process itself where it shall be held: it
    /// stands still until that is dropped.
    ///
    /// It stands still while its registers and stacks are copied. If that is not enough, because a
    /// stack is deeper, or leads into other memory or into code made at run time, or because
    /// arguments point to other memory, it stands still once more, until its stacks are walked:
    /// what it has later is not what it had.
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
        // Tables and names of what is met are known by now, so that this takes no longer than the
        // walks.
        match live::capture(pid, true) {
            Ok((snapshot, _held)) => Ok((self.stacks(&snapshot), None)),
            // It has ended meanwhile.
            Err(_) => Ok((process, None)),
        }
    }

    /// The stacks of all threads.
    pub fn stacks(&mut self, snapshot: &Snapshot<'_>) -> Process {
        if snapshot.is_live && !self.has_live_names {
            // Only a process that is there has written the names of its code under its number.
            self.symbolizer = symbolizer(SystemFiles::default(), &self.options);
            self.has_live_names = true;
        }
        let wants = walk::Wants {
            registers: self.options.registers,
            arguments: self.options.arguments,
        };
        let process = walk::stacks(snapshot, &self.modules, wants);
        for (path, place) in self.modules.places() {
            self.symbolizer.found_at(&path, place);
        }
        for (path, base_vaddr, symbols) in self.modules.in_memory() {
            self.symbolizer.found_in_memory(&path, base_vaddr, symbols);
        }
        process
    }

    /// Copies bytes of memory from `address` on, as [`Snapshot::read`] does, and returns how many
    /// came. What a core has left out because a file has it comes from that file.
    pub fn read(&self, snapshot: &Snapshot<'_>, address: u64, buffer: &mut [u8]) -> usize {
        self.modules.read(snapshot, address, buffer)
    }

    /// The same stacks with names.
    pub fn names(&mut self, process: &Process) -> Vec<NamedThread> {
        let named = names::names(process, &mut self.symbolizer);
        self.symbolizer.keep();
        named
    }

    /// What kept files from being used, so far.
    pub fn problems(&self) -> Vec<Problem> {
        self.modules.problems()
    }

    /// What should be known about the names, one sentence each.
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
