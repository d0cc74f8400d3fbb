//! Names for stacks that had none, or no lines, when they were added.
//!
//! What was added stays as it is. A stack whose frames get names is a new stack, with rows in all
//! tables as if it had been added so; a row of `named_stacks` connects the two. That row is written
//! last, into the partition that has all that it leads to, and counts where that is read. Several
//! runs may write different rows for a stack: the one with the most names counts, so no run undoes
//! another.

mod content;
mod lookup;
mod naming;

use std::path::PathBuf;

use backtrail_elf::Uploads;
use backtrail_profile::FetchDebugFile;

use crate::add::Added;
use crate::error::StoreError;
use crate::partition::Partition;
use crate::place::Store;
use crate::tables::{NAMED_STACKS, STACKS};
use content::Content;
use lookup::Wanted;
use naming::{Names, Naming};

/// Where names may come from, beside the recorded paths and `/usr/lib/debug`.
#[derive(Clone, Debug, Default)]
pub struct SymbolSources {
    /// Folders of programs and debug files, under any names.
    pub folders: Vec<PathBuf>,
    /// Asked for debug files that are nowhere else.
    pub fetch: Option<FetchDebugFile>,
}

/// What was found out about a file with code, at the addresses that lacked a name or lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleNames {
    /// The path, as the process saw it.
    pub path: String,
    /// The build ID in hexadecimal; empty without one.
    pub build_id: String,
    /// Distinct addresses that had no name, or no line.
    pub addresses: u64,
    /// How many of them have a name now.
    pub named: u64,
    /// How many of them have a line now.
    pub lines: u64,
    /// Why nothing can be read from its file, in a few words.
    pub trouble: Option<String>,
}

/// What was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbolized {
    /// The files whose code lacked names or lines, by path.
    pub modules: Vec<ModuleNames>,
    /// Stacks that got names, counted in each partition.
    pub stacks: u64,
    /// Files that were written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A compaction replaces files while they are read: then they are read again, up to this often.
const ATTEMPTS: u32 = 20;

impl Store {
    /// Looks up names and lines for the frames that have none, by the build IDs of their files, and
    /// adds them. Any number of runs and of writers may do so at once; one that finds nothing new
    /// writes nothing.
    ///
    /// # Errors
    ///
    /// If the store or one of the folders cannot be read, or the store not be written. What was
    /// added until then stays, and is whole.
    pub fn symbols(&self, sources: &SymbolSources) -> Result<Symbolized, StoreError> {
        let uploads = Uploads::below(&sources.folders).map_err(|(folder, error)| StoreError::File(folder, error))?;
        let partitions = self.partitions(&STACKS)?;
        let mut wanted = Wanted::default();
        for partition in &partitions {
            wanted.add(&Content::read(self, partition)?);
        }
        let mut names = Names::default();
        for partition in &partitions {
            names.take(&Content::read(self, partition)?, |place| wanted.contains(place));
        }
        let mut symbolized = Symbolized {
            modules: lookup::look_up(&wanted, sources, &uploads, &mut names),
            ..Symbolized::default()
        };
        for partition in &partitions {
            self.name_partition(partition, &names, &mut symbolized)?;
        }
        Ok(symbolized)
    }

    /// Names the stacks of a partition. What others write meanwhile is read again, so that the last
    /// of several runs leaves the names of all.
    fn name_partition(
        &self,
        partition: &Partition,
        names: &Names,
        symbolized: &mut Symbolized,
    ) -> Result<(), StoreError> {
        loop {
            let content = Content::read(self, partition)?;
            let Some(naming) = Naming::of(&content, names) else {
                return Ok(());
            };
            let mut added = Added::default();
            retried(|| self.add_partition(partition, &naming.tables, None, &naming.name, &mut added))?;
            symbolized.stacks += naming.stacks;
            symbolized.files += added.files;
            symbolized.bytes += added.bytes;
            if !retried(|| self.has_part(&NAMED_STACKS, partition, &naming.name))? {
                // Retention has just removed the partition.
                return Ok(());
            }
        }
    }
}

/// Does it again if a file was replaced meanwhile.
fn retried<T>(mut act: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 1..ATTEMPTS {
        match act() {
            Err(StoreError::File(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    act()
}
