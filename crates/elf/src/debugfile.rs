//! Finds separate debug files and dwz's supplementary files, as GDB's manual describes ("Debugging
//! Information in Separate Files").

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::image::{AltLink, File};
use crate::map::{MappedFile, open_regular};

const SYSTEM_DEBUG: &str = "/usr/lib/debug";

/// Directories that are searched for debug files.
///
/// All paths are those that the traced program would use; `root` is prepended to them
/// (`/proc/PID/root` for a process in another mount namespace). Symbolic links with absolute
/// targets are followed from the caller's own root.
#[derive(Clone, Debug)]
pub struct Search {
    root: PathBuf,
    dirs: Vec<PathBuf>,
}

impl Default for Search {
    fn default() -> Self {
        Search::new()
    }
}

impl Search {
    /// Searches the machine's own `/usr/lib/debug`.
    pub fn new() -> Search {
        Search {
            root: PathBuf::from("/"),
            dirs: vec![PathBuf::from(SYSTEM_DEBUG)],
        }
    }

    /// The same search under another root.
    #[must_use]
    pub fn with_root(mut self, root: impl Into<PathBuf>) -> Search {
        self.root = root.into();
        self
    }

    /// Also searches `dir`, before the previous directories.
    #[must_use]
    pub fn with_dir(mut self, dir: impl Into<PathBuf>) -> Search {
        self.dirs.insert(0, dir.into());
        self
    }

    /// The debug file of the module at `path`: found by its build id, otherwise by its
    /// `.gnu_debuglink`. Verified: it has the same build id, or the CRC in the link.
    pub fn debug_file(&self, path: &Path, file: &File<'_>) -> Option<PathBuf> {
        if let Some(build_id) = file.build_id()
            && let Some(found) = self.by_build_id(build_id)
        {
            return Some(found);
        }
        let link = file.debuglink()?;
        self.by_debuglink(path, link.name, link.crc)
    }

    /// `DIR/.build-id/xx/yyyy.debug` in the debug directories, if that file has this build id.
    pub fn by_build_id(&self, build_id: &[u8]) -> Option<PathBuf> {
        let relative = build_id_path(build_id)?;
        let candidates = self.dirs.iter().map(|dir| self.rooted(&dir.join(&relative)));
        candidates.into_iter().find(|path| has_build_id(path, build_id))
    }

    /// The file called `name` in the module's directory, in `.debug` there, or in its directory
    /// under each debug directory, if its CRC-32 is `crc`.
    pub fn by_debuglink(&self, module: &Path, name: &[u8], crc: u32) -> Option<PathBuf> {
        let name = Path::new(OsStr::from_bytes(name));
        // A link is a file name. Directories in it could lead anywhere.
        let mut components = name.components();
        let plain = matches!(
            (components.next(), components.next()),
            (Some(Component::Normal(_)), None)
        );
        if !plain {
            return None;
        }
        let dir = module.parent().unwrap_or(Path::new("/"));
        let beside = [dir.join(name), dir.join(".debug").join(name)];
        let below = self.dirs.iter().map(|debug| debug.join(relative(dir)).join(name));
        let candidates = beside.into_iter().chain(below).map(|path| self.rooted(&path));
        let module = self.rooted(module);
        candidates
            .filter(|path| *path != module)
            .find(|path| crc_of_file(path).is_ok_and(|found| found == crc))
    }

    /// The supplementary file of `link`, which was found in the file at `debug_path`: by its path,
    /// otherwise by its build id in the `.dwz` and `.build-id` folders of each debug directory. Its
    /// build id is verified.
    pub fn supplementary(&self, debug_path: &Path, link: &AltLink<'_>) -> Option<PathBuf> {
        let named = Path::new(OsStr::from_bytes(link.path));
        let dir = debug_path.parent().unwrap_or(Path::new("/"));
        let beside = if named.is_absolute() {
            self.rooted(named)
        } else {
            // The debug file's path comes from this search and already includes the root.
            dir.join(named)
        };
        let in_dwz = named.file_name().into_iter().flat_map(|name| {
            let dirs = self.dirs.iter();
            dirs.map(move |dir| self.rooted(&dir.join(".dwz").join(name)))
        });
        let mut candidates = std::iter::once(beside).chain(in_dwz);
        candidates
            .find(|path| has_build_id(path, link.build_id))
            .or_else(|| self.by_build_id(link.build_id))
    }

    fn rooted(&self, path: &Path) -> PathBuf {
        self.root.join(relative(path))
    }
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!(".build-id/{first:02x}/{rest}.debug")))
}

fn has_build_id(path: &Path, build_id: &[u8]) -> bool {
    let Ok(file) = MappedFile::open(path) else {
        return false;
    };
    File::parse(file.bytes()).is_ok_and(|file| file.build_id() == Some(build_id))
}

/// CRC-32 of a whole file, read in pieces.
fn crc_of_file(path: &Path) -> io::Result<u32> {
    let mut file = open_regular(path)?;
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crc.finalize()),
            len => crc.update(&buffer[..len]),
        }
    }
}
