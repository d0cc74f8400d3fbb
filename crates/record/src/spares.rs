//! Files that their recorded paths lead to, kept open in case they are removed or replaced before
//! the recording has its names: programs that tests build, updates of services.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{env, fs};

use backtrail_elf::HeldFile;
use backtrail_elf::door::RegularFile;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::process::{Resource, getrlimit};

/// The most descriptors, and the part of the process's limit that they may take.
const MOST_OPEN: usize = 2048;
const SHARE: u64 = 8;
/// The most bytes of removed files, whose space the file system gives back only when they are
/// closed.
const MOST_REMOVED: u64 = 1 << 30;

/// Open files by the number of their module.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    files: FxHashMap<u32, HeldFile>,
    /// Modules whose files are not kept open.
    refused: FxHashSet<u32>,
}

impl Spares {
    /// Whether this file is to be kept open: it is not yet, and there is room.
    pub(crate) fn want(&self, module: u32) -> bool {
        let limit = getrlimit(Resource::Nofile).current;
        let most = limit.map_or(MOST_OPEN, |limit| MOST_OPEN.min((limit / SHARE) as usize));
        self.files.len() < most && !self.files.contains_key(&module) && !self.refused.contains(&module)
    }

    /// Keeps a file open, unless that could keep somebody from unmounting its file system.
    pub(crate) fn keep(&mut self, module: u32, path: &str, build_id: &[u8], file: &RegularFile) {
        if !is_lasting(file.metadata().dev()) {
            self.refused.insert(module);
            return;
        }
        let held = HeldFile {
            path: path.to_owned(),
            build_id: build_id.to_owned(),
            elsewhere: 0,
            file: Arc::clone(file.file()),
            root: None,
        };
        self.files.insert(module, held);
    }

    /// Those that their paths do not lead to any more.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &HeldFile> {
        self.files.values().filter(|held| {
            let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
            let there = fs::metadata(&held.path).map(identity).ok();
            there.is_none() || there != held.file.metadata().map(identity).ok()
        })
    }

    /// Closes the largest removed files, if all together take much space.
    pub(crate) fn give_back(&mut self) {
        let removed = |(module, held): (&u32, &HeldFile)| {
            let metadata = held.file.metadata().ok()?;
            (metadata.nlink() == 0).then_some((metadata.len(), *module))
        };
        let mut removed: Vec<_> = self.files.iter().filter_map(removed).collect();
        removed.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut bytes: u64 = removed.iter().map(|(bytes, _)| bytes).sum();
        while bytes > MOST_REMOVED
            && let Some((largest, module)) = removed.pop()
        {
            bytes -= largest;
            self.files.remove(&module);
            self.refused.insert(module);
        }
    }

    /// Closes all.
    pub(crate) fn clear(&mut self) {
        self.files.clear();
    }
}

/// Whether nobody unmounts a file system while we run: there are the root, our own folder, or those
/// for temporary and the user's files.
fn is_lasting(device: u64) -> bool {
    static LASTING: OnceLock<Vec<u64>> = OnceLock::new();
    let find = || {
        let folders = [
            Some(PathBuf::from("/")),
            Some(env::temp_dir()),
            env::current_dir().ok(),
            env::var_os("HOME").map(PathBuf::from),
        ];
        let device = |folder: &Path| fs::metadata(folder).ok().map(|metadata| metadata.dev());
        folders.iter().flatten().filter_map(|folder| device(folder)).collect()
    };
    LASTING.get_or_init(find).contains(&device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_largest_removed_files_are_given_back() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let mut spares = Spares::default();
        // Without contents, they take no space.
        for (module, bytes, is_removed) in [(0, 3, false), (1, 2, true), (2, 3, true), (3, 1, true)] {
            let path = folder.path().join(module.to_string());
            File::create(&path).unwrap().set_len(bytes * MOST_REMOVED / 4).unwrap();
            let file = RegularFile::try_from(File::open(&path).unwrap()).unwrap();
            assert!(spares.want(module));
            spares.keep(module, path.to_str().unwrap(), b"id", &file);
            if is_removed {
                fs::remove_file(&path).unwrap();
            }
        }
        spares.give_back();
        let mut needed: Vec<&HeldFile> = spares.needed().collect();
        needed.sort_by(|one, other| one.path.cmp(&other.path));
        let kept: Vec<_> = needed.iter().map(|held| held.path.rsplit('/').next()).collect();
        assert_eq!(kept, [Some("1"), Some("3")]);
        assert!(!spares.want(0) && !spares.want(2));
    }
}
