//! Where a process at one moment, unwind tables and names meet: the stacks of live processes and of cores.
//!
//! [`Looker::stacks`] walks the threads of a [`Snapshot`](backtrail_target::Snapshot); [`Looker::names`] gives their frames
//! names. Between the two lies a [`Process`], which needs no memory any more: addresses, and the modules that they lie in.
//! [`record`] writes and reads it, so that names can be given later and elsewhere. [`input`] opens what may be a core.
#![forbid(unsafe_code)]

mod arguments;
pub mod fold;
#[doc(hidden)]
pub mod fuzz;
pub mod input;
mod modules;
mod names;
mod process;
pub mod record;
mod walk;

pub use arguments::Argument;
pub use modules::Problem;
pub use names::{NamedFrame, NamedThread};
pub use process::{End, Frame, FrameRegisters, How, Process, ThreadStack};

use std::path::PathBuf;

use backtrail_dwarf::tables::Tables;
use backtrail_profile::{Symbolizer, SystemFiles};
use backtrail_target::Snapshot;

use modules::ModuleSet;

/// Where files are.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The executable, in place of the one at the path that the process had it at.
    pub executable: Option<PathBuf>,
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
            modules: ModuleSet::new(Tables::open(None), options.executable.clone()),
            symbolizer: Symbolizer::with_debug_dirs(without_perf_maps(), &options.debug_dirs),
            has_live_names: false,
            options,
        }
    }

    /// The stacks of all threads.
    pub fn stacks(&mut self, snapshot: &Snapshot<'_>) -> Process {
        if snapshot.is_live && !self.has_live_names {
            // Only a process that is there has written the names of its code under its number.
            self.symbolizer = Symbolizer::with_debug_dirs(SystemFiles::default(), &self.options.debug_dirs);
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
        process
    }

    /// The same stacks with names.
    pub fn names(&mut self, process: &Process) -> Vec<NamedThread> {
        names::names(process, &mut self.symbolizer)
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

fn without_perf_maps() -> SystemFiles {
    SystemFiles {
        perf_maps: PathBuf::new(),
        ..SystemFiles::default()
    }
}
