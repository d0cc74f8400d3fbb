//! The files of functions whose calls are sampled.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use backtrail_process::perf::Trigger;

/// Files with probes, as they were before the recording. Probes belong to an inode, so they don't
/// see the calls of a file that takes its place.
#[derive(Debug)]
pub(crate) struct ProbedFiles(Vec<(PathBuf, Identity)>);

/// Device, inode, and time of change in nanoseconds: an inode's number may be used again.
type Identity = (u64, u64, i64, i64);

impl ProbedFiles {
    pub(crate) fn of(trigger: &Trigger) -> ProbedFiles {
        let mut paths: Vec<&Path> = match trigger {
            Trigger::Entries(entries) => entries.iter().map(|entry| &*entry.file).collect(),
            Trigger::Calls(functions, _) => functions.iter().map(|function| &*function.file).collect(),
            Trigger::Clock(_) | Trigger::Waits(_) | Trigger::Counted(_) => Vec::new(),
        };
        paths.dedup();
        let known = paths
            .into_iter()
            .filter_map(|path| Some((path.to_owned(), identity(path)?)));
        ProbedFiles(known.collect())
    }

    /// Whether one of the paths leads to another file now.
    pub(crate) fn are_replaced(&self) -> bool {
        self.0
            .iter()
            .any(|(path, before)| identity(path).is_some_and(|now| now != *before))
    }
}

/// The file's, if there is one.
fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use backtrail_process::perf::Entry;

    #[test]
    fn a_file_that_takes_the_place_of_another_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let [program, other] = ["program", "other"].map(|name| folder.path().join(name));
        for path in [&program, &other] {
            fs::write(path, "x").unwrap();
        }
        let entry = Entry {
            file: program.clone(),
            offset: 0,
        };
        let probed = ProbedFiles::of(&Trigger::Entries(vec![entry]));
        assert!(!probed.are_replaced());
        fs::rename(&other, &program).unwrap();
        assert!(probed.are_replaced());
        fs::remove_file(&program).unwrap();
        assert!(!probed.are_replaced());
        let nothing = ProbedFiles::of(&Trigger::Calls(Vec::new(), Duration::ZERO));
        assert!(!nothing.are_replaced());
    }
}
