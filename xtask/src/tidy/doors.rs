//! Files of others are opened in one place.

use super::text::without_text;

/// The crates that read files which others name or write.
pub(super) const ROOMS: [&str; 12] = [
    "cfi",
    "crash-names",
    "debuginfo",
    "elf",
    "process",
    "profile",
    "record",
    "recording",
    "stacks",
    "trace",
    "trace-net",
    "trace-rfc",
];

/// Files that open others in their own way, and why they may.
const OWN_WAY: [(&str, &str); 14] = [
    ("crates/elf/src/door.rs", "the door"),
    ("crates/elf/src/door/", "the door"),
    ("crates/trace/src/regular.rs", "the door of traces, below `elf`"),
    ("crates/trace/src/write/", "creates new files"),
    ("crates/trace-net/src/receive.rs", "creates new files"),
    ("crates/trace-net/src/parcel/store.rs", "creates new files"),
    ("crates/trace-rfc/src/convert/repack.rs", "creates new files"),
    ("crates/cfi/src/cache/", "the cache's own files"),
    ("crates/cfi/src/source.rs", "maps memory, no file"),
    ("crates/profile/src/symbolize/remembered.rs", "the cache's own files"),
    (
        "crates/profile/src/symbolize/run_time.rs",
        "checks owner and kind itself",
    ),
    ("crates/stacks/src/crash/folder.rs", "the reports' own files"),
    ("crates/process/src/perf/probes.rs", "the kernel's files below tracefs"),
    ("crates/process/src/proc.rs", "the kernel's files below /proc and /sys"),
];

/// What opens or maps a file.
const OPENS: [&str; 6] = [
    "File::open(",
    "fs::read(",
    "read_to_string(",
    "OpenOptions",
    "memmap2",
    "Mmap",
];

/// Files of the kernel itself, by the text on the line that opens them.
const KERNELS: [&str; 4] = ["\"/proc/", "\"/sys/", "\"/dev/urandom\"", "kallsyms"];

/// The lines that open files of others without `elf::door`.
pub(super) fn findings(name: &str, text: &str) -> Vec<String> {
    let room = name.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
    let is_ours = |(room, file): (&str, &str)| ROOMS.contains(&room) && !is_test(file);
    if !room.is_some_and(is_ours) || OWN_WAY.iter().any(|(place, _)| name.starts_with(place)) {
        return Vec::new();
    }
    let product = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    let opens = |line: &str| {
        let code = without_text(line);
        !code.trim_start().starts_with("use ") && OPENS.iter().any(|open| code.contains(open))
    };
    let found = product
        .enumerate()
        .filter(|(_, line)| opens(line) && !KERNELS.iter().any(|kernel| line.contains(kernel)));
    found
        .map(|(index, _)| format!("{name}:{}: opens a file past the door (backtrail_elf::door)", index + 1))
        .collect()
}

fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("tests/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_past_the_door_are_seen() {
        let found = |name: &str, line: &str| !findings(name, line).is_empty();
        for line in [
            "let file = File::open(path)?;",
            "let bytes = std::fs::read(&path)?;",
            "let text = fs::read_to_string(path);",
            "let file = fs::OpenOptions::new().read(true);",
            "let map = unsafe { Mmap::map(&file)? };",
        ] {
            assert!(found("crates/profile/src/planted.rs", line), "{line}");
            assert!(!found("crates/cli/src/planted.rs", line), "{line}");
            assert!(!found("crates/elf/src/door.rs", line), "{line}");
            assert!(
                !found("crates/profile/src/planted.rs", &format!("#[cfg(test)]\n{line}")),
                "{line}"
            );
        }
        assert!(!found("crates/profile/src/planted.rs", "fs::read(\"/proc/self/maps\")"));
        assert!(!found("crates/profile/src/planted.rs", "// File::open(path)"));
        assert!(!found(
            "crates/profile/src/planted.rs",
            "use std::fs::{File, OpenOptions};"
        ));
    }
}
