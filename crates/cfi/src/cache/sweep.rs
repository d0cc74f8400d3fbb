//! What is in a cache, and what goes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType};

use super::folder::{Folder, Refused, TEMPORARY};

/// The most bytes that all entries take together.
pub const MOST_BYTES: u64 = 256 << 20;
/// What is left after entries are removed: the next ones do not remove others at once.
const AFTER_SWEEP: u64 = MOST_BYTES / 8 * 7;
/// A process looks at all entries at its first write, and whenever it has written this much.
const GROWTH: u64 = MOST_BYTES / 16;
/// No write takes this long: its process was killed.
const LEFT_OVER: Duration = Duration::from_secs(600);
/// What the smallest file takes on the disk.
const BLOCK: u64 = 4096;

/// What a process has written since it last looked at all entries.
#[derive(Debug, Default)]
pub(super) struct Growth {
    bytes: AtomicU64,
    looked: AtomicBool,
}

impl Growth {
    /// Whether it is time to look, after `more` bytes.
    pub(super) fn is_due(&self, more: u64) -> bool {
        let grown = self.bytes.fetch_add(more, Ordering::Relaxed) + more;
        let is_due = !self.looked.swap(true, Ordering::Relaxed) || grown >= GROWTH;
        if is_due {
            self.bytes.store(0, Ordering::Relaxed);
        }
        is_due
    }
}

/// The entries of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// The kinds of entries, which are the names of subfolders; with number and bytes.
    pub kinds: Vec<(String, u64, u64)>,
    /// The number of all entries.
    pub entries: u64,
    /// The bytes of all entries.
    pub bytes: u64,
}

struct Entry {
    kind: usize,
    name: String,
    used: SystemTime,
    bytes: u64,
}

struct Listing {
    kinds: Vec<(String, Folder)>,
    entries: Vec<Entry>,
}

/// Lists the entries of all versions of this program. What it has not made stays.
fn list(base: &Folder) -> Result<Listing, Refused> {
    let mut listing = Listing {
        kinds: Vec::new(),
        entries: Vec::new(),
    };
    for name in names(base)? {
        if !["sframe-v", "names-v", "files-v"]
            .iter()
            .any(|kind| name.starts_with(kind))
        {
            continue;
        }
        let Ok(folder) = base.subfolder(&name, false) else {
            continue;
        };
        let kind = listing.kinds.len();
        for name in names(&folder)? {
            let Ok(stat) = rustix::fs::statat(folder.fd(), &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode).is_file() {
                let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
                listing.entries.push(Entry {
                    kind,
                    name,
                    used: UNIX_EPOCH + Duration::new(seconds, stat.st_mtime_nsec as u32),
                    bytes: u64::try_from(stat.st_size).unwrap_or(0),
                });
            }
        }
        listing.kinds.push((name, folder));
    }
    Ok(listing)
}

fn names(folder: &Folder) -> Result<Vec<String>, Refused> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder.fd())? {
        if let Ok(name) = entry?.file_name().to_str()
            && !name.starts_with('.')
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

impl Listing {
    fn remove(&self, entry: &Entry) -> io::Result<()> {
        let (_, folder) = &self.kinds[entry.kind];
        match rustix::fs::unlinkat(folder.fd(), &entry.name, AtFlags::empty()) {
            // Another process was faster.
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        for (kind, (name, _)) in self.kinds.iter().enumerate() {
            let of_kind = || self.entries.iter().filter(|entry| entry.kind == kind);
            let (entries, bytes) = (of_kind().count() as u64, of_kind().map(|entry| entry.bytes).sum());
            contents.kinds.push((name.clone(), entries, bytes));
            contents.entries += entries;
            contents.bytes += bytes;
        }
        contents.kinds.sort();
        contents
    }
}

pub(super) fn contents(base: &Folder) -> Result<Contents, Refused> {
    Ok(list(base)?.contents())
}

pub(super) fn clear(base: &Folder) -> Result<Contents, Refused> {
    let listing = list(base)?;
    for entry in &listing.entries {
        listing.remove(entry)?;
    }
    for (name, _) in &listing.kinds {
        // It stays if another process has just written to it.
        let _ = rustix::fs::unlinkat(base.fd(), name.as_str(), AtFlags::REMOVEDIR);
    }
    Ok(listing.contents())
}

/// Removes what killed processes have left, and, if all entries are too large, those that were not
/// used for the longest time.
pub(super) fn sweep(base: &Folder) -> Result<(), Refused> {
    sweep_to(base, MOST_BYTES, AFTER_SWEEP)
}

fn sweep_to(base: &Folder, most: u64, after: u64) -> Result<(), Refused> {
    let mut listing = list(base)?;
    let now = SystemTime::now();
    let is_left_over = |entry: &Entry| {
        entry.name.ends_with(TEMPORARY) && now.duration_since(entry.used).is_ok_and(|age| age > LEFT_OVER)
    };
    for entry in listing.entries.iter().filter(|entry| is_left_over(entry)) {
        listing.remove(entry)?;
    }
    listing.entries.retain(|entry| !is_left_over(entry));
    let on_disk = |entry: &Entry| entry.bytes.next_multiple_of(BLOCK).max(BLOCK);
    let mut bytes: u64 = listing.entries.iter().map(on_disk).sum();
    if bytes <= most {
        return Ok(());
    }
    listing.entries.sort_by_key(|entry| entry.used);
    for entry in &listing.entries {
        if bytes <= after {
            break;
        }
        listing.remove(entry)?;
        bytes -= on_disk(entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first_and_left_overs_go() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let base = Folder::open(folder.path(), false).unwrap();
        let old = SystemTime::now() - Duration::from_secs(100_000);
        for kind in ["sframe-v8", "names-v2", "other"] {
            let kind = base.subfolder(kind, true).unwrap();
            for number in 0..10_u64 {
                kind.write(&number.to_string(), &[0; 5000]).unwrap();
            }
        }
        for number in 0..10 {
            for kind in ["sframe-v8", "names-v2"] {
                let file = File::options()
                    .write(true)
                    .open(folder.path().join(kind).join(number.to_string()));
                file.unwrap().set_modified(old + Duration::from_secs(number)).unwrap();
            }
        }
        let left = folder.path().join("names-v2/1.7-0.tmp");
        File::create(&left).unwrap().set_modified(old).unwrap();
        let writing = folder.path().join("names-v2/2.7-0.tmp");
        File::create(&writing).unwrap();

        sweep_to(&base, 1 << 20, 1 << 19).unwrap();
        assert_eq!(contents(&base).unwrap().entries, 21);
        assert!(!left.exists() && writing.exists());
        // Each takes two blocks.
        sweep_to(&base, 100_000, 10 * 8192).unwrap();
        assert!(contents(&base).unwrap().bytes <= 10 * 8192);
        for number in 0..10 {
            let is_there = |kind: &str| folder.path().join(kind).join(number.to_string()).exists();
            // Of those with the number 5 one may be left.
            assert!(number == 5 || is_there("sframe-v8") == (number > 5), "{number}");
            assert!(is_there("other"));
        }
        // An entry that is read is used.
        let kind = base.subfolder("names-v2", false).unwrap();
        kind.read("9", 5000).unwrap();
        sweep_to(&base, 20_000, 4 * 4096).unwrap();
        assert!(folder.path().join("names-v2/9").exists() && !folder.path().join("sframe-v8/9").exists());
        assert_eq!(clear(&base).unwrap().kinds.len(), 2);
        assert_eq!(contents(&base).unwrap(), Contents::default());
    }
}
