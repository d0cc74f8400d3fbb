//! Files that their recorded paths do not lead to: those of processes with another root, such as
//! containers, and those that have no name any more.
//!
//! Each gets a number, which recordings contain, so that nobody takes another file with this path
//! for it. It stays open until the recording has its names: a container may end before. So does a
//! file of this root without a build ID, by which one could see that it was replaced.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use backtrail_cfi::cache::Namer;
use backtrail_elf::door::{self, RegularFile, Root};
use backtrail_elf::{FileBytes, HeldFile, Image};
use backtrail_process::proc;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::process::{Resource, getrlimit};

use crate::spares::Spares;

/// The most descriptors for open files and roots, if the limit of the process allows this many.
const MOST_OPEN: u64 = 4096;
/// The part of the process's limit that they may take: sampling needs descriptors too.
const SHARE: u64 = 4;
/// The most files that are distinguished: a program can make new ones for ever.
const MOST_NUMBERS: usize = 1 << 16;
/// The number of all files beyond these, which are not kept open.
const TOO_MANY: u32 = u32::MAX;

/// The numbers of files, and the open ones.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    numbers: FxHashMap<Identity, u32>,
    last: u32,
    /// Paths in this root of files with number 0.
    here: FxHashSet<Identity>,
    wanted: Wanted,
    held: FxHashMap<Identity, HeldFile>,
    roots: FxHashMap<RootIdentity, Arc<Root>>,
    not_held: u64,
    /// Files with a build ID that their paths lead to, and to which those may not lead for long.
    spares: Spares,
}

/// What becomes of open files.
#[derive(Default)]
pub(crate) enum Wanted {
    /// They stay open.
    #[default]
    Kept,
    /// Nobody wants them: only their numbers.
    Nobody,
    /// Somebody gets each one, once, before anything is recorded that names it.
    By(Box<dyn FnMut(HeldFile)>),
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wanted::Kept => "Kept",
            Wanted::Nobody => "Nobody",
            Wanted::By(_) => "By",
        })
    }
}

/// What two files must share to be one, as a hash: thousands of files are remembered.
type Identity = [u8; 16];

/// Device and inode of a root directory, and the link to its mount namespace.
type RootIdentity = ((u64, u64), PathBuf);

/// A file that a process has mapped.
pub(crate) struct MappedFile {
    file: RegularFile,
    /// Whether neither root nor our own user decides what is in it.
    pub(crate) is_foreign: bool,
}

impl MappedFile {
    /// A file of which this is known.
    pub(crate) fn known(file: RegularFile, is_foreign: bool) -> MappedFile {
        MappedFile { file, is_foreign }
    }

    /// `None` if it has another build ID than the recorded one.
    pub(crate) fn new(file: RegularFile, build_id: &[u8]) -> Option<MappedFile> {
        let contents = FileBytes::from_file(file.file().try_clone().ok()?).ok()?;
        let image = Image::of(&contents).ok();
        let found = image.as_ref().and_then(|image| image.build_id());
        let is_same = found.unwrap_or_default() == build_id;
        let is_foreign = contents.foreign_owner().is_some();
        is_same.then_some(MappedFile { file, is_foreign })
    }

    /// Whether a path leads here to this very file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        door::open(path).is_ok_and(|file| identity(file.metadata()) == identity(self.file.metadata()))
    }

    fn identity(&self, path: &str, build_id: &[u8]) -> Identity {
        let metadata = self.file.metadata();
        // Copies of a file in the layers of many containers, which root has put there, share length
        // and time of change, beside the build ID. Users choose build IDs and times freely.
        match self.is_foreign || build_id.is_empty() {
            false => {
                let numbers = [metadata.mtime(), metadata.mtime_nsec()].map(i64::cast_unsigned);
                identity(path, build_id, &[&[metadata.len()], &numbers[..]].concat())
            }
            true => {
                let numbers = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
                let file = [metadata.len(), metadata.dev(), metadata.ino()];
                identity(path, build_id, &[&file, &numbers[..]].concat())
            }
        }
    }
}

/// The hash of a path, a build ID and other numbers.
fn identity(path: &str, build_id: &[u8], numbers: &[u64]) -> Identity {
    let lengths = [path.len(), build_id.len(), numbers.len()].map(|length| length as u64);
    let mut namer = Namer::new("backtrail file elsewhere");
    namer
        .numbers(&lengths)
        .add(path.as_bytes())
        .add(build_id)
        .numbers(numbers);
    let name = namer.name();
    let (identity, _) = name.bytes().as_chunks::<16>();
    identity.first().copied().unwrap_or_default()
}

impl Elsewhere {
    /// The number of a file that a process has mapped, which is kept open from now on. `is_here`:
    /// its path leads to it in this root, now.
    pub(crate) fn number(
        &mut self,
        path: &str,
        build_id: &[u8],
        mapped: &MappedFile,
        (pid, is_here): (u32, bool),
    ) -> u32 {
        let identity = mapped.identity(path, build_id);
        let known = self.numbers.get(&identity).copied();
        if known.is_none() && self.numbers.len() >= MOST_NUMBERS {
            self.not_held += u64::from(!matches!(self.wanted, Wanted::Nobody));
            return TOO_MANY;
        }
        let number = known.unwrap_or_else(|| self.next_number(path, is_here));
        let open = |root| HeldFile {
            path: path.to_owned(),
            build_id: build_id.to_owned(),
            elsewhere: number,
            file: Arc::clone(mapped.file.file()),
            root,
        };
        match &mut self.wanted {
            Wanted::By(take) if known.is_none() => take(open(root_of(pid).map(|(_, root)| Arc::new(root)))),
            Wanted::Kept if !self.held.contains_key(&identity) => match self.has_room() {
                true => {
                    let root = self.root(pid);
                    self.held.insert(identity, open(root));
                }
                false => self.not_held += u64::from(known.is_none()),
            },
            _ => {}
        }
        self.numbers.insert(identity, number);
        number
    }

    fn next_number(&mut self, path: &str, is_here: bool) -> u32 {
        if is_here && self.here.insert(identity(path, &[], &[])) {
            return 0;
        }
        self.last += 1;
        self.last
    }

    pub(crate) fn want(&mut self, wanted: Wanted) {
        self.wanted = wanted;
    }

    fn has_room(&self) -> bool {
        let limit = getrlimit(Resource::Nofile).current;
        let most = limit.map_or(MOST_OPEN, |limit| MOST_OPEN.min(limit / SHARE));
        // Its root may be a new one.
        ((self.held.len() + self.roots.len() + 2) as u64) <= most
    }

    fn root(&mut self, pid: u32) -> Option<Arc<Root>> {
        let (identity, root) = root_of(pid)?;
        let known = self.roots.entry(identity).or_insert_with(|| Arc::new(root));
        Some(Arc::clone(known))
    }

    /// Whether a file with number 0 is to be kept open too.
    pub(crate) fn wants_spare(&self, module: u32) -> bool {
        matches!(self.wanted, Wanted::Kept) && self.spares.want(module)
    }

    pub(crate) fn keep_spare(&mut self, module: u32, path: &str, build_id: &[u8], mapped: &MappedFile) {
        self.spares.keep(module, path, build_id, &mapped.file);
    }

    /// Gives back space of files that were removed.
    pub(crate) fn give_back(&mut self) {
        self.spares.give_back();
    }

    /// The open files that no path leads to.
    pub(crate) fn held(&self) -> Vec<HeldFile> {
        self.held.values().chain(self.spares.needed()).cloned().collect()
    }

    /// Closes all files. Those that are met again are opened again, under the same numbers.
    pub(crate) fn release(&mut self) {
        self.held.clear();
        self.roots.clear();
        self.spares.clear();
    }

    /// Files that could not be kept open, because there were too many.
    pub(crate) fn not_held(&self) -> u64 {
        self.not_held
    }
}

/// Whether a process sees the same files as we do; `None` if it has ended.
pub(crate) fn is_at_home(pid: u32) -> Option<bool> {
    static OURS: OnceLock<Option<RootIdentity>> = OnceLock::new();
    let ours = OURS.get_or_init(|| root_of(std::process::id()).map(|(identity, _)| identity));
    Some(Some(root_of(pid)?.0) == *ours)
}

fn root_of(pid: u32) -> Option<(RootIdentity, Root)> {
    let root = Root::of_process(pid).ok()?;
    let identity = (root.identity().ok()?, proc::mount_namespace(pid).ok()?);
    Some((identity, root))
}
