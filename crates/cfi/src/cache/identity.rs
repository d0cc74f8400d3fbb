//! Names of entries, and what identifies a file without reading it.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An entry's name: a hash of everything that the entry was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; 32]);

impl Name {
    /// The hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name with this hash, as another entry stored it.
    pub fn from_bytes(bytes: [u8; 32]) -> Name {
        Name(bytes)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Makes a [`Name`].
pub struct Namer(blake3::Hasher);

impl Namer {
    /// `purpose` says what is made of the input, and in which version: the same input has another
    /// name for another purpose.
    pub fn new(purpose: &str) -> Namer {
        Namer(blake3::Hasher::new_derive_key(purpose))
    }

    /// Adds bytes; their number must follow from what was added before, or be added.
    pub fn add(&mut self, bytes: &[u8]) -> &mut Namer {
        self.0.update(bytes);
        self
    }

    /// Adds numbers.
    pub fn numbers(&mut self, numbers: &[u64]) -> &mut Namer {
        for number in numbers {
            self.0.update(&number.to_le_bytes());
        }
        self
    }

    /// The name of what was added.
    pub fn name(&self) -> Name {
        Name(*self.0.finalize().as_bytes())
    }
}

/// Identifies a file in its current state, without reading it: device, inode, length, and the times
/// of the last change of its contents and of the inode.
///
/// Nobody can make another file with the same identity. The kernel sets the last of these times at
/// each change, to the current time. But who makes a file system can write any number into it, and
/// device numbers are given to one mounted file system after another. So only files have an
/// identity that are on the file systems of the system itself (`SYSTEM`): users cannot mount
/// others there. Owner and mode don't matter: the owner of a file can, at most, change it unnoticed
/// through a mapping, and what is remembered is then wrong for this file of theirs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity([u64; 7]);

/// Folders on the system's own file systems.
const SYSTEM: [&str; 6] = ["/", "/usr", "/opt", "/var", "/home", "/nix/store"];

/// Files that were changed this recently may change again without a new time: the kernel's clock
/// for files has ticks of some milliseconds.
const SETTLED: Duration = Duration::from_secs(2);

impl FileIdentity {
    /// The identity of an open regular file, of which this is known. `None` if it is not on a file
    /// system of the system, or was changed just now.
    pub fn of(metadata: &Metadata) -> Option<FileIdentity> {
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(metadata.ctime()).ok()?);
        let age = SystemTime::now().duration_since(changed).ok()?;
        let is_usable = metadata.is_file() && age > SETTLED && system_devices().contains(&metadata.dev());
        is_usable.then(|| {
            FileIdentity([
                metadata.dev(),
                metadata.ino(),
                metadata.len(),
                metadata.mtime() as u64,
                metadata.mtime_nsec() as u64,
                metadata.ctime() as u64,
                metadata.ctime_nsec() as u64,
            ])
        })
    }

    /// Its numbers, for a [`Namer`].
    pub fn numbers(&self) -> &[u64] {
        &self.0
    }
}

fn system_devices() -> &'static [u64] {
    static DEVICES: OnceLock<Vec<u64>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let device = |path: &&str| {
            let metadata = std::fs::symlink_metadata(path).ok()?;
            (metadata.is_dir() && metadata.uid() == 0).then(|| metadata.dev())
        };
        SYSTEM.iter().filter_map(device).collect()
    })
}
