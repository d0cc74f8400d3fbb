//! The names in files, and their sources.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backtrail_arch::Cpu;
use backtrail_elf::isolation::Lost;
use backtrail_elf::{HeldFile, Symbols};
pub use backtrail_recording::Call;

use crate::modules::File;

/// The symbols of one module's files.
pub(crate) trait ModuleSymbols: Send + Sync {
    /// The lowest address of its segments, rounded down to a page, which is loaded at the module's
    /// base.
    fn base_vaddr(&self) -> u64;

    /// The calls at a stated virtual memory address, innermost first; `None` if nothing is known.
    fn lookup(&self, svma: u64) -> Option<Vec<Call>>;

    /// The start of the function that contains a stated virtual memory address without a name.
    fn start(&self, _svma: u64) -> Option<u64> {
        None
    }

    /// The CPU, and the code from this stated virtual memory address on, up to the end of its
    /// section or to `most` bytes; `None` if it is not in the file.
    fn code(&self, _svma: u64, _most: u64) -> Option<(Cpu, &[u8])> {
        None
    }

    /// Announces addresses that will be looked up, so that their data can be read now.
    fn expect(&self, _svmas: &[u64]) {}

    /// Stores the looked-up names for later.
    fn keep(&self) {}

    /// Whether names are missing because reading them exceeds a limit.
    fn is_limited(&self) -> bool {
        false
    }

    /// The bytes of files that are in memory.
    fn bytes(&self) -> u64 {
        0
    }

    /// A debug file that can't be read.
    fn unreadable(&self) -> Option<&Path> {
        None
    }

    /// Why names are missing that a process without privileges was to look up.
    fn lost(&self) -> Option<Lost> {
        None
    }
}

/// Finds the debug file with a build ID elsewhere, and returns where it is now.
#[derive(Clone)]
pub struct FetchDebugFile(Arc<Fetch>);

type Fetch = dyn Fn(&[u8]) -> Option<PathBuf> + Send + Sync;

impl FetchDebugFile {
    /// Asks this function.
    pub fn new(fetch: impl Fn(&[u8]) -> Option<PathBuf> + Send + Sync + 'static) -> FetchDebugFile {
        FetchDebugFile(Arc::new(fetch))
    }

    /// The file with a build ID; it is checked by whoever uses it.
    pub fn get(&self, build_id: &[u8]) -> Option<PathBuf> {
        (self.0)(build_id)
    }
}

impl fmt::Debug for FetchDebugFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FetchDebugFile")
    }
}

/// A source of modules' symbols.
pub(crate) trait SymbolSource: Send {
    /// The symbols of the file, if it is the one that was recorded.
    fn open(&mut self, file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable>;

    /// Files recorded with this path are at another place.
    fn found_at(&mut self, _path: &str, _place: PathBuf) {}

    /// These files are open, until each has been asked for.
    fn hold(&mut self, _files: Vec<HeldFile>) {}

    /// There is no file for this path, but a module in memory with this lowest address and these
    /// symbols.
    fn found_in_memory(&mut self, _path: &str, _base_vaddr: u64, _symbols: Symbols) {}

    /// Debug files are also searched below the folder with the files of another machine.
    fn search_below(&mut self, _folder: &Path) {}

    /// Debug files that are not on this machine come from here.
    fn fetch_with(&mut self, _fetch: FetchDebugFile) {}

    /// Answers are stored in this folder, and taken from there.
    fn remember_in(&mut self, _folder: PathBuf) {}
}

/// Why a module's symbols cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Unavailable {
    /// There is no file at the path, or it may not be read.
    Missing,
    /// The file at the path has another build id than the recorded one.
    OtherBuild,
    /// The file at the path is not an ELF file, or is damaged.
    Malformed,
    /// Reading the file exceeds a limit.
    Limit,
    /// The file system did not answer in time.
    Late,
    /// The process without privileges that reads files of other users could not read it.
    Isolated(Lost),
    /// It was in another root, which is not known now, or had no name any more.
    Elsewhere,
    /// There never was a file.
    NoFile,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unavailable::Missing => "not found",
            Unavailable::OtherBuild => "the file there has another build ID",
            Unavailable::Malformed => "not readable as an ELF file",
            Unavailable::Limit => "too large or too slow to read",
            Unavailable::Late => "its file system does not answer",
            Unavailable::Isolated(lost) => return lost.fmt(f),
            Unavailable::Elsewhere => "in a container, or deleted",
            Unavailable::NoFile => "not a file",
        })
    }
}
