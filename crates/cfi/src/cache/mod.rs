//! Results are stored in files for later runs.
//!
//! An entry is named by the BLAKE3 hash of everything that it was made from, so no file can claim
//! another file's entry. Entries are only read from and written to folders that belong to this
//! user and that nobody else can write to (`Folder`). All entries together are limited
//! ([`MOST_BYTES`]): those that were not used for the longest time are removed first.

mod folder;
mod identity;
mod sweep;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use folder::Refused;
pub use identity::{FileIdentity, Name, Namer};
pub use sweep::{Contents, MOST_BYTES};

use folder::Folder;

/// The user's cache folder: `$XDG_CACHE_HOME/backtrail`, or `~/.cache/backtrail`. The XDG base
/// directory specification says to ignore a relative path in the variable.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    base.map(|base| base.join("backtrail"))
}

/// A cache: a folder with a subfolder for each kind of entries. It is opened at its first use, and
/// created at the first write.
#[derive(Clone, Debug)]
pub struct Cache {
    path: PathBuf,
    opened: Arc<OnceLock<Folder>>,
    grown: Arc<sweep::Growth>,
}

impl Cache {
    /// The cache in the folder at `path`.
    pub fn new(path: PathBuf) -> Cache {
        Cache {
            path,
            opened: Arc::default(),
            grown: Arc::default(),
        }
    }

    fn folder(&self, create: bool) -> Result<&Folder, Refused> {
        if let Some(folder) = self.opened.get() {
            return Ok(folder);
        }
        let folder = Folder::open(&self.path, create)?;
        Ok(self.opened.get_or_init(|| folder))
    }

    /// The entry of this name, if it exists and has at most `most` bytes.
    pub fn read(&self, kind: &str, name: &Name, most: u64) -> Option<Vec<u8>> {
        let folder = self.folder(false).ok()?.subfolder(kind, false).ok()?;
        folder.read(&name.to_string(), most)
    }

    /// Writes an entry completely or not at all; an older one of this name is replaced.
    ///
    /// # Errors
    /// If the folder is not [usable](Refused), or the file can't be written.
    pub fn write(&self, kind: &str, name: &Name, content: &[u8]) -> io::Result<()> {
        if content.len() as u64 > MOST_BYTES / 4 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let base = self.folder(true)?;
        base.subfolder(kind, true)?.write(&name.to_string(), content)?;
        if self.grown.is_due(content.len() as u64) {
            sweep::sweep(base)?;
        }
        Ok(())
    }

    /// Counts the entries. `None` if the folder does not exist.
    ///
    /// # Errors
    /// If the folder is not usable.
    pub fn contents(&self) -> Result<Option<Contents>, Refused> {
        match self.folder(false) {
            Ok(folder) => Ok(Some(sweep::contents(folder)?)),
            Err(Refused::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Removes all entries, and returns what they were. `None` if the folder does not exist.
    ///
    /// # Errors
    /// If the folder is not usable.
    pub fn clear(&self) -> Result<Option<Contents>, Refused> {
        match self.folder(false) {
            Ok(folder) => Ok(Some(sweep::clear(folder)?)),
            Err(Refused::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
