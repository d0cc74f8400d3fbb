//! Finds separate debug files and dwz's supplementary files, as GDB's manual describes ("Debugging
//! Information in Separate Files").

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::budget::Budget;
use crate::door::{self, RegularFile, Root};
use crate::image::{AltLink, File};

const SYSTEM_DEBUG: &str = "/usr/lib/debug";

/// Directories that are searched for debug files.
///
/// All paths are those that the traced program would use; `root` is prepended to them
/// (`/proc/PID/root` for a process in another mount namespace), and symbolic links are followed
/// inside it.
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
        self.by_debuglink(path, link.name, link.crc, file.budget())
    }

    /// `DIR/.build-id/xx/yyyy.debug` in the debug directories, if that file has this build id.
    pub fn by_build_id(&self, build_id: &[u8]) -> Option<PathBuf> {
        let relative = build_id_path(build_id)?;
        let candidates = self.dirs.iter().map(|dir| self.rooted(&dir.join(&relative)));
        candidates.into_iter().find(|path| self.has_build_id(path, build_id))
    }

    /// The file called `name` in the module's directory, in `.debug` there, or in its directory
    /// under each debug directory, if its CRC-32 is `crc`. Candidates that are too long for the
    /// budget are left out.
    pub fn by_debuglink(&self, module: &Path, name: &[u8], crc: u32, budget: &Budget) -> Option<PathBuf> {
        let candidates = self.linked(module, name);
        candidates
            .into_iter()
            .find(|path| self.crc(path, budget).is_ok_and(|found| found == crc))
    }

    /// The candidates for a link to a file called `name`.
    fn linked(&self, module: &Path, name: &[u8]) -> Vec<PathBuf> {
        let name = Path::new(OsStr::from_bytes(name));
        // A link is a file name. Directories in it could lead anywhere.
        let mut components = name.components();
        let plain = matches!(
            (components.next(), components.next()),
            (Some(Component::Normal(_)), None)
        );
        if !plain {
            return Vec::new();
        }
        let dir = module.parent().unwrap_or(Path::new("/"));
        let beside = [dir.join(name), dir.join(".debug").join(name)];
        let below = self.dirs.iter().map(|debug| debug.join(relative(dir)).join(name));
        let candidates = beside.into_iter().chain(below).map(|path| self.rooted(&path));
        let module = self.rooted(module);
        candidates.filter(|path| *path != module).collect()
    }

    /// A file that should be the debug file of the module at `path`, but can't be read, may not be
    /// read, or is not one.
    pub fn unreadable(&self, path: &Path, file: &File<'_>) -> Option<PathBuf> {
        let by_build_id = file.build_id().and_then(build_id_path);
        let by_build_id =
            by_build_id.map(|relative| self.dirs.iter().map(move |dir| self.rooted(&dir.join(&relative))));
        let mut by_build_id = by_build_id.into_iter().flatten();
        let is_other =
            |path: &PathBuf| !self.is_missing(path) && !self.has_build_id(path, file.build_id().unwrap_or_default());
        let linked = || {
            self.linked(path, file.debuglink()?.name)
                .into_iter()
                .find(|path| !self.is_missing(path) && self.open(path).is_err())
        };
        by_build_id.find(is_other).or_else(linked)
    }

    fn is_missing(&self, path: &Path) -> bool {
        let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        self.open(path).is_err_and(|error| missing.contains(&error.kind()))
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
            .find(|path| self.has_build_id(path, link.build_id))
            .or_else(|| self.by_build_id(link.build_id))
    }

    /// Opens a file that was found by this search.
    ///
    /// # Errors
    /// Those of [`door::open`].
    pub fn open(&self, path: &Path) -> io::Result<RegularFile> {
        let below = |folder: &Path| path.strip_prefix(folder).ok().map(Path::to_path_buf);
        if self.root != Path::new("/") {
            let inside = below(&self.root).unwrap_or_else(|| path.to_path_buf());
            return Root::at(&self.root)?.open(&inside);
        }
        // Our user named these folders, so the links to them may lead anywhere.
        match self.dirs.iter().find_map(|dir| Some((dir, below(dir)?))) {
            Some((dir, rest)) => door::open_below(dir, &rest),
            None => door::open(path),
        }
    }

    fn rooted(&self, path: &Path) -> PathBuf {
        self.root.join(relative(path))
    }

    fn has_build_id(&self, path: &Path, build_id: &[u8]) -> bool {
        let contents = self.open(path).and_then(|file| file.contents(&Budget::new()));
        contents.is_ok_and(|file| File::of(&file).is_ok_and(|file| file.build_id() == Some(build_id)))
    }

    /// CRC-32 of a whole file, read in pieces.
    fn crc(&self, path: &Path, budget: &Budget) -> io::Result<u32> {
        let too_large = |limit| io::Error::new(io::ErrorKind::FileTooLarge, limit);
        let file = self.open(path)?;
        budget.allows_whole_file(file.metadata().len()).map_err(too_large)?;
        let mut crc = crc32fast::Hasher::new();
        let (mut buffer, mut done) = (vec![0; 256 << 10], 0);
        while done < file.metadata().len() {
            budget.step(buffer.len() as u64 / BYTES_OF_A_STEP).map_err(too_large)?;
            let got = file.read_at(done, &mut buffer)?;
            if got == 0 {
                break;
            }
            crc.update(&buffer[..got]);
            done += got as u64;
        }
        Ok(crc.finalize())
    }
}

/// Bytes of a checksum that take as long as one step of other kinds.
const BYTES_OF_A_STEP: u64 = 16;

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    Some(PathBuf::from(format!(".build-id/{first:02x}/{}.debug", hex(rest))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where collections of programs from other machines have the one with a build ID, from their
/// folder: perf's cache, which `perf archive` packs, and that of debuginfod's clients.
pub fn program_by_build_id(build_id: &[u8]) -> Vec<PathBuf> {
    let Some((first, rest)) = build_id.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return Vec::new();
    };
    let of_perf = format!(".build-id/{first:02x}/{}/elf", hex(rest));
    let paths = [
        format!(".debug/{of_perf}"),
        of_perf,
        format!("{}/executable", hex(build_id)),
    ];
    paths.map(PathBuf::from).to_vec()
}

/// Where the program with a path and a build ID is below the folder with the files of another
/// machine.
pub fn program_below(folder: &Path, path: &Path, build_id: &[u8]) -> PathBuf {
    let mut collected = program_by_build_id(build_id).into_iter().map(|path| folder.join(path));
    let found = collected.find(|path| path.is_file());
    found.unwrap_or_else(|| folder.join(relative(path)))
}
