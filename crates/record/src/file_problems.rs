//! What is wrong with the files of recorded programs, and how many samples that concerns.

use std::cmp::Reverse;
use std::io;
use std::path::Path;

use backtrail_elf::ErrorKind;

use crate::ModuleProblem;

/// The most problems that are kept until the end: a program can make any number of them.
pub(crate) const MOST_PROBLEMS: usize = 1000;

/// What was wrong with files whose unwind tables were needed.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    kept: Vec<ModuleProblem>,
    /// Files with problems that were not kept.
    further: u64,
    /// The last sample that each of `kept` counts: a stack may reach into a file several times.
    counted: Vec<u64>,
}

impl Problems {
    /// Adds a problem of a file, and returns its number. `first`: that of the module's first one.
    pub(crate) fn add(&mut self, path: &str, reason: String, first: Option<usize>) -> usize {
        let same = |problem: &ModuleProblem| problem.path == path && problem.reason == reason;
        if let Some(known) = self.kept.iter().position(same) {
            return known;
        }
        // A hostile program can make new ones for ever.
        if self.kept.len() >= MOST_PROBLEMS {
            self.further += u64::from(first.is_none());
            return usize::MAX;
        }
        self.counted.push(u64::MAX);
        self.kept.push(ModuleProblem {
            path: path.to_owned(),
            reason,
            is_missing: false,
            samples: 0,
            cut: 0,
        });
        self.kept.len() - 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Nothing of the file with this problem could be used.
    pub(crate) fn set_missing(&mut self, number: usize) {
        if let Some(problem) = self.kept.get_mut(number) {
            problem.is_missing = true;
        }
    }

    /// Counts a sample for the file with this problem, unless it has been counted.
    pub(crate) fn count_sample(&mut self, number: usize, sample: u64, is_cut: bool) {
        let (Some(problem), Some(counted)) = (self.kept.get_mut(number), self.counted.get_mut(number)) else {
            return;
        };
        if *counted != sample {
            *counted = sample;
            problem.samples += 1;
            problem.cut += u64::from(is_cut);
        }
    }

    /// Files with problems, those of most samples first, and how many more there were.
    pub(crate) fn into_sorted(mut self) -> (Vec<ModuleProblem>, u64) {
        self.kept.sort_by_key(|problem| Reverse((problem.samples, problem.cut)));
        (self.kept, self.further)
    }
}

/// Whether a mapping's path is that of memory which a process shares, and fills itself.
fn is_memory(path: &str) -> bool {
    ["/memfd:", "/SYSV", "/anon_hugepage", "/dev/"]
        .iter()
        .any(|start| path.starts_with(start))
}

/// Why a module's file could not be used, from the least to the most that is known.
pub(crate) enum Missing {
    NotFound,
    Unreadable(io::Error),
    /// Another file has its path; neither has a build ID to compare.
    Replaced,
    /// The build ID that was found; empty without.
    OtherBuild(Vec<u8>),
    NoImage(backtrail_elf::Error),
}

impl Missing {
    pub(crate) fn of(error: io::Error) -> Missing {
        match error.kind() {
            io::ErrorKind::NotFound => Missing::NotFound,
            _ => Missing::Unreadable(error),
        }
    }

    /// Whether nothing is wrong: a program may put its code into memory that it has mapped twice,
    /// which has a path, and is no ELF file.
    pub(crate) fn is_expected(&self, path: &str) -> bool {
        let is_damaged = matches!(self, Missing::NoImage(error) if error.kind != ErrorKind::NotElf);
        is_memory(path) && !is_damaged
    }

    /// Another candidate has failed for this reason.
    pub(crate) fn is_rather(&mut self, other: Missing) {
        let rank = |missing: &Missing| match missing {
            Missing::NotFound => 0,
            Missing::Unreadable(_) => 1,
            Missing::Replaced => 2,
            Missing::OtherBuild(_) => 3,
            Missing::NoImage(_) => 4,
        };
        if rank(&other) >= rank(self) {
            *self = other;
        }
    }

    pub(crate) fn describe(&self, recorded: &[u8], sysroot: Option<&Path>) -> String {
        match self {
            Missing::NotFound => match sysroot {
                Some(sysroot) => format!("not found below {}", sysroot.display()),
                None => "not found".to_owned(),
            },
            Missing::Unreadable(error) => format!("the file cannot be read: {error}"),
            Missing::Replaced => "another file has replaced it since".to_owned(),
            Missing::OtherBuild(found) => {
                let wanted = hex(recorded);
                match found.as_slice() {
                    [] => format!("build ID mismatch: {wanted} was recorded, this file has none"),
                    found => format!("build ID mismatch: {wanted} was recorded, this file has {}", hex(found)),
                }
            }
            Missing::NoImage(error) => error.to_string(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_counted_and_bounded() {
        let mut problems = Problems::default();
        let first = problems.add("/a", "not found".to_owned(), None);
        assert_eq!(problems.add("/a", "not found".to_owned(), Some(first)), first);
        let second = problems.add("/b", "damaged".to_owned(), None);
        for sample in [1, 1, 2] {
            problems.count_sample(second, sample, sample == 2);
        }
        problems.count_sample(first, 2, false);
        for number in 0..MOST_PROBLEMS {
            let path = number.to_string();
            let number = problems.add(&path, String::new(), None);
            problems.count_sample(number, 9, true);
            problems.add(&path, "another reason".to_owned(), Some(number));
        }
        let (sorted, further) = problems.into_sorted();
        assert_eq!(sorted.len(), MOST_PROBLEMS);
        assert!(further > 0 && further <= MOST_PROBLEMS as u64);
        let top = &sorted[0];
        assert_eq!((&*top.path, top.samples, top.cut), ("/b", 2, 1));
    }

    #[test]
    fn what_is_known_best_is_the_reason() {
        let mut missing = Missing::NotFound;
        missing.is_rather(Missing::OtherBuild(vec![0xab]));
        missing.is_rather(Missing::NotFound);
        assert_eq!(
            missing.describe(&[0x12, 0x34], None),
            "build ID mismatch: 1234 was recorded, this file has ab"
        );
        assert_eq!(
            Missing::NotFound.describe(&[0x12, 0x34], Some(Path::new("/x"))),
            "not found below /x"
        );
    }
}
