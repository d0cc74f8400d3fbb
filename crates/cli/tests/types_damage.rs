//! Two hundred damaged sections: the command says what is wrong, in little memory and time, and
//! never crashes.

use crate::types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::peers::{Machine, Release};
use backtrail_testkit::{command, elf_file};
use types::{Tools, kinds, must};

const EACH: usize = 100;
const LIMIT: Duration = Duration::from_secs(300);
/// KiB of memory that a run may have for its data: the sections inflate to a hundred, and the
/// command itself takes some thousand.
const DATA: usize = 96 << 10;

/// The next of a sequence that is the same in every run (xorshift).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) as usize
}

/// One to eight bytes changed anywhere, now and then a number as large as can be, or the end gone.
fn damaged(section: &[u8], state: &mut u64) -> Vec<u8> {
    let mut bytes = section.to_vec();
    for _ in 0..1 + next(state) % 8 {
        let at = next(state) % bytes.len();
        match next(state) % 4 {
            0 => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
            // Where headers are.
            1 => bytes[at % 64] = next(state) as u8,
            _ => bytes[at] = next(state) as u8,
        }
    }
    if next(state).is_multiple_of(16) {
        bytes.truncate(1 + next(state) % section.len());
    }
    bytes
}

/// Runs `backtrail types …` with little memory; whatever it finds, it must end by itself, and not
/// by a panic.
fn ends_well(arguments: &[&str], files: &[&Path]) {
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        .arg(format!("ulimit -d {DATA}; exec \"$@\""))
        .arg("sh");
    limited
        .arg(env!("CARGO_BIN_EXE_backtrail"))
        .arg("types")
        .args(arguments)
        .args(files);
    let finished = command::run(&mut limited, LIMIT).unwrap();
    let code = finished.status.code();
    assert!(
        matches!(code, Some(0..=2)),
        "{arguments:?} {files:?}: {}",
        finished.describe()
    );
    assert!(
        !finished.stderr.contains("panicked"),
        "{arguments:?} {files:?}: {}",
        finished.stderr
    );
}

#[test]
fn two_hundred_sections() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let objects: Vec<PathBuf> = kinds().iter().map(|source| tools.compile(source)).collect();
    let library = tools.link(&["-shared"], &objects, "library.so");
    let (theirs, ours) = (tools.path("theirs"), tools.path("ours"));
    let library = fs::read(library).unwrap();
    let section = elf_file::section(&library, ".ctf").unwrap();
    fs::write(&theirs, &library[section]).unwrap();
    let mut link = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    link.args(["types", "link", "-q", "--symbols", "--mode", "share-duplicated"]);
    must(link.args(&objects).arg("-o").arg(&ours));
    let mut state = 0x0123_4567_89ab_cdef;
    let mut files = Vec::new();
    for section in [&theirs, &ours] {
        let bytes = fs::read(section).unwrap();
        for number in 0..EACH {
            let file = section.with_extension(number.to_string());
            fs::write(&file, damaged(&bytes, &mut state)).unwrap();
            files.push(file);
        }
    }
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    assert_eq!(paths.len(), 2 * EACH);
    ends_well(&["show"], &paths);
    ends_well(&["show", "--json"], &paths);
    ends_well(&["link", "-q", "-o", "/dev/null", "--jobs", "1"], &paths);
    let print = |path: &&Path| {
        ends_well(&["print", "--asserts"], &[path]);
        ends_well(&["diff", "--all", ours.to_str().unwrap()], &[path]);
    };
    let (some, others) = paths.split_at(EACH);
    std::thread::scope(|scope| {
        scope.spawn(|| some.iter().for_each(print));
        others.iter().for_each(print);
    });
}
