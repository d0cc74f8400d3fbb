//! What the tests of adding tables share.
// Every test file is a crate of its own, and none uses all of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{Missing, TempDir, available, elf_file, place, scratch, skip};
use serde_json::{Value, json};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn backtrail() -> Command {
    Command::new(env!("CARGO_BIN_EXE_backtrail"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output and error of `backtrail sframe` with these arguments, which must end with
/// `code`.
#[track_caller]
pub(crate) fn sframe<S: AsRef<OsStr>>(code: i32, arguments: &[S]) -> (String, String) {
    let output: Output = backtrail().arg("sframe").args(arguments).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

pub(crate) fn add(file: &Path, options: &[&str], out: &Path) {
    let mut arguments: Vec<&OsStr> = vec![
        "add".as_ref(),
        "-q".as_ref(),
        file.as_ref(),
        "-o".as_ref(),
        out.as_ref(),
    ];
    arguments.extend(options.iter().map(OsStr::new));
    sframe(0, &arguments);
}

/// Adds in place.
pub(crate) fn add_here(file: &Path) {
    sframe(0, &["add".as_ref(), "-q".as_ref(), file.as_os_str()]);
}

/// What `sframe check` says of a file, in which it must find no mismatch.
#[track_caller]
pub(crate) fn checked(file: &Path) -> Value {
    let (stdout, _) = sframe(0, &["check".as_ref(), "--json".as_ref(), file.as_os_str()]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report[0]["mismatches"], json!([]));
    assert!(report[0]["functions"].as_u64() > Some(0), "{report}");
    report[0].clone()
}

/// A compiler's run; `None`, with a `SKIPPED:` line, if there is none for the machine or it cannot
/// do this.
pub(crate) fn compile(compiler: &str, arguments: &[&str], out: &Path, source: &Path) -> Option<()> {
    let mut compile = Command::new(compiler);
    compile
        .args(["-O2", "-g"])
        .args(arguments)
        .arg("-o")
        .arg(out)
        .arg(source);
    let done = command::run(&mut compile, LIMIT).and_then(|finished| match finished.status.success() {
        true => Ok(()),
        false => Err(Missing(format!("{compiler} {arguments:?}: {}", finished.stderr))),
    });
    available(done)
}

/// The program that looks at itself.
pub(crate) fn inspect() -> PathBuf {
    place::workspace().join("crates/cli/tests/programs/inspect.c")
}

pub(crate) fn run(program: &mut Command) -> Finished {
    command::run(program, LIMIT).unwrap_or_else(|missing| panic!("{missing}"))
}

/// Standard output of a program that is run with a table and without.
#[track_caller]
pub(crate) fn same_output(before: &mut Command, after: &mut Command) -> String {
    let (before, after) = (run(before), run(after));
    assert_eq!(
        (after.code(), &after.stdout, &after.stderr),
        (before.code(), &before.stdout, &before.stderr)
    );
    before.stdout
}

/// Fails where readelf of a release has anything to complain of.
#[track_caller]
pub(crate) fn readelf_is_content(machine: Machine, file: &Path) {
    for release in [Release::V2_44, Release::V2_47] {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let mut readelf = binutils.tool(machine, "readelf").command();
        readelf.arg("-lSW").arg(file);
        let has_section = elf_file::section(&fs::read(file).unwrap(), ".sframe").is_some();
        // Version 3 is unknown to the older one, and neither finds a table without sections.
        if has_section && release == Release::V2_47 {
            readelf.arg("--sframe");
        }
        let finished = run(&mut readelf);
        let complaints: Vec<&str> = finished.stderr.lines().collect();
        assert!(
            complaints.is_empty(),
            "readelf {}: {}",
            release.number(),
            finished.describe()
        );
    }
}

/// What elflint finds, without what it says of every file with a table: it does not know the type
/// of section or segment. That it takes a relocation for one of read-only data where the *size* of
/// its symbol, counted from the relocated place, reaches a read-only segment is a mistake of its
/// own.
pub(crate) fn elflint(file: &Path) -> Option<Vec<String>> {
    let mut elflint = Command::new("eu-elflint");
    let finished = available(command::run(elflint.arg("--gnu-ld").arg(file), LIMIT))?;
    let known = [
        "0x6474e554",
        "has unsupported type 1879048180",
        "read-only section modified",
        "No errors",
    ];
    let all = finished.stdout.lines().chain(finished.stderr.lines());
    let new = all.filter(|line| !known.iter().any(|known| line.contains(known)));
    // Sections and program headers may have other numbers.
    Some(new.map(|line| line.replace(|c: char| c.is_ascii_digit(), "")).collect())
}

/// Everything that holds of a file with a table and of the file before it: its tools, adding again,
/// and taking it out.
#[track_caller]
pub(crate) fn holds(machine: Machine, before: &Path, after: &Path) {
    checked(after);
    readelf_is_content(machine, after);
    if let (Some(before), Some(after)) = (elflint(before), elflint(after)) {
        assert_eq!(before, after);
    }
    once_is_enough_and_can_be_undone(before, after, &[]);
}

/// Adding to `after` changes nothing, and stripping it gives back `before`.
#[track_caller]
pub(crate) fn once_is_enough_and_can_be_undone(before: &Path, after: &Path, options: &[&str]) {
    let folder = backtrail_testkit::scratch();
    let again = folder.path().join("again");
    add(after, options, &again);
    assert!(
        fs::read(&again).unwrap() == fs::read(after).unwrap(),
        "adding twice gives other bytes"
    );
    sframe(
        0,
        &["strip".as_ref(), after.as_os_str(), "-o".as_ref(), again.as_os_str()],
    );
    assert!(
        fs::read(&again).unwrap() == fs::read(before).unwrap(),
        "strip does not give back what was there"
    );
}

/// Program headers of one type, by binutils' readelf.
pub(crate) fn segments(file: &Path, kind: &str) -> usize {
    let finished = run(Command::new("readelf").arg("-lW").arg(file));
    finished
        .stdout
        .lines()
        .filter(|line| line.trim_start().starts_with(kind))
        .count()
}

/// A program with frames of all kinds, or its object file, made with the tables of a release;
/// `None` if this machine is not x86-64.
pub(crate) fn program(release: Option<Release>, flags: &[&str]) -> Option<(TempDir, PathBuf)> {
    let folder = scratch();
    let made = folder.path().join("program");
    let mut gcc = Command::new("gcc");
    if let Some(release) = release {
        gcc.arg("-B")
            .arg(Binutils::get(release)?.for_gcc(Machine::X86_64))
            .arg("-Wa,--gsframe");
    }
    let source = place::workspace().join("crates/cfi/tests/programs/frames.c");
    let status = gcc.args(flags).arg("-o").arg(&made).arg(source).status();
    if !cfg!(target_arch = "x86_64") || !status.is_ok_and(|status| status.success()) {
        skip("no gcc for x86-64");
        return None;
    }
    Some((folder, made))
}
