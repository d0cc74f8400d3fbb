//! Notes that a report prints once about its names.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Unavailable;

/// Why names are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// A module's file cannot be used.
    File(Unavailable),
    /// A debug file can't be read, or is another module's.
    DebugFile,
    /// A perf map or a jitdump belongs to another user, or is not a file.
    Foreign,
    /// Perf maps and jitdumps of another user are longer than is read.
    TooMuch,
    /// A jitdump that a recorded program mapped is gone, or is not a jitdump.
    NoJitDump,
    /// The kernel does not reveal addresses.
    NoKallsyms,
    /// The kernel was loaded elsewhere when the recording was made.
    OtherBoot,
}

/// Problems with the names of what they concern.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    concerned: BTreeMap<Trouble, BTreeSet<String>>,
}

/// The most paths named in a sentence; the others are counted.
const NAMED_PATHS: usize = 5;

impl Notes {
    /// Adds a note, once.
    pub(super) fn add(&mut self, trouble: Trouble, concerned: &str) {
        self.concerned.entry(trouble).or_default().insert(concerned.to_string());
    }

    pub(super) fn sentences(&self) -> Vec<String> {
        self.concerned
            .iter()
            .filter_map(|(trouble, concerned)| {
                let paths = enumerate(concerned);
                Some(match trouble {
                    Trouble::File(Unavailable::Missing) => {
                        format!("not found, so shown as module+offset: {paths}")
                    }
                    Trouble::File(Unavailable::OtherBuild) => {
                        format!("other build ids than recorded, so shown as module+offset: {paths}")
                    }
                    Trouble::File(Unavailable::Malformed) => {
                        format!("not readable as ELF files, so shown as module+offset: {paths}")
                    }
                    Trouble::File(Unavailable::Limit) => {
                        format!(
                            "too large or too slow to read, so that names are missing (raise with --read-limits): {paths}"
                        )
                    }
                    Trouble::File(Unavailable::Late) => {
                        format!("not answered for by their file systems, so shown as module+offset: {paths}")
                    }
                    Trouble::File(Unavailable::Isolated(lost)) => {
                        format!("names are missing, {lost}: {paths}")
                    }
                    Trouble::File(Unavailable::Elsewhere) => {
                        format!("files of containers, or deleted ones, that are not known here: {paths}")
                    }
                    // There is nothing that a user could restore.
                    Trouble::File(Unavailable::NoFile) => return None,
                    Trouble::DebugFile => {
                        format!("debug files that cannot be read, so that lines and names are missing: {paths}")
                    }
                    Trouble::Foreign => format!("not used, owned by another user or not a file: {paths}"),
                    Trouble::TooMuch => {
                        format!("not read to the end, the names of code of their user are too long: {paths}")
                    }
                    Trouble::NoJitDump => {
                        format!("not readable, so that code made at run time has no names from it: {paths}")
                    }
                    Trouble::NoKallsyms => "kernel functions have no names: /proc/kallsyms shows no addresses here \
                         (kernel.kptr_restrict)"
                        .to_string(),
                    Trouble::OtherBoot => {
                        "kernel functions have no names: the kernel that runs now is not loaded where \
                         the recorded one was"
                            .to_string()
                    }
                })
            })
            .collect()
    }
}

fn enumerate(concerned: &BTreeSet<String>) -> String {
    let mut text = concerned
        .iter()
        .take(NAMED_PATHS)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if concerned.len() > NAMED_PATHS {
        text.push_str(&format!(" and {} more", concerned.len() - NAMED_PATHS));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_one_sentence() {
        let mut notes = Notes::default();
        for number in (0..7).chain(0..7) {
            notes.add(Trouble::File(Unavailable::Missing), &format!("/lib/{number}"));
        }
        notes.add(Trouble::File(Unavailable::NoFile), "[stack]");
        notes.add(Trouble::File(Unavailable::OtherBuild), "/bin/a");
        assert_eq!(
            notes.sentences(),
            [
                "not found, so shown as module+offset: /lib/0, /lib/1, /lib/2, /lib/3, /lib/4 and 2 more",
                "other build ids than recorded, so shown as module+offset: /bin/a",
            ]
        );
    }
}
