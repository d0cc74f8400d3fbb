//! `cargo evidence sframe-add`: adds tables to programs that run before and after, and to all of
//! the system's files.

mod programs;
pub(crate) mod system;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{place, scratch};
use serde_json::Value;

/// No command takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// The command under test.
struct Backtrail(PathBuf);

/// The results for a file that got a table.
struct Added {
    bytes_before: u64,
    bytes_after: u64,
    table: u64,
    fdes: u64,
    uncovered: u64,
    seconds: f64,
}

impl Backtrail {
    fn run(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Finished {
        let mut sframe = Command::new(&self.0);
        sframe.arg("sframe");
        for argument in arguments {
            sframe.arg(argument);
        }
        command::run(&mut sframe, LIMIT).expect("it was just built")
    }

    /// Adds a table, and checks it. The error says why there is none, or what is wrong with it.
    fn add(&self, before: &Path, after: &Path) -> Result<Added, Refusal> {
        let added = self.run(&[&"add", &"-q", &before, &"-o", &after]);
        if added.code() != 0 {
            return Err(Refusal::Reason(reason(&added.stderr)));
        }
        let wrong = |what: String| Refusal::Wrong(format!("{}: {what}", before.display()));
        let checked = self.run(&[&"check", &"--json", &after]);
        let report: Value = serde_json::from_str(&checked.stdout).map_err(|_| wrong(checked.describe()))?;
        let report = &report[0];
        if checked.code() != 0 || report["mismatches"].as_array().is_none_or(|found| !found.is_empty()) {
            return Err(wrong(checked.describe()));
        }
        let sizes = self.run(&[&"size", &"--json", &after]);
        let sizes: Value = serde_json::from_str(&sizes.stdout).unwrap_or_default();
        let len = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(Added {
            bytes_before: len(before),
            bytes_after: len(after),
            table: number(&sizes[0]["present"]),
            fdes: number(&report["functions"]),
            uncovered: number(&report["uncovered_bytes"]),
            seconds: added.wall.as_secs_f64(),
        })
    }

    /// Checks that adding again changes nothing, and that removing restores the file.
    fn is_reversible(&self, before: &Path, after: &Path, spare: &Path) -> Result<(), String> {
        let same =
            |one: &Path, other: &Path| matches!((fs::read(one), fs::read(other)), (Ok(one), Ok(other)) if one == other);
        self.run(&[&"add", &"-q", &after, &"-o", &spare]);
        if !same(after, spare) {
            return Err(format!("{}: adding twice gives other bytes", before.display()));
        }
        self.run(&[&"strip", &after, &"-o", &spare]);
        if !same(before, spare) {
            return Err(format!("{}: strip does not give back what was there", before.display()));
        }
        Ok(())
    }
}

/// Why a file got no table.
enum Refusal {
    /// It can't have one.
    Reason(String),
    /// Something is broken here.
    Wrong(String),
}

/// The reason in an error line, without the file's name and without numbers.
fn reason(stderr: &str) -> String {
    let line = stderr
        .lines()
        .find(|line| line.starts_with("backtrail: "))
        .unwrap_or(stderr);
    let what = line.splitn(3, ": ").nth(2).unwrap_or(line);
    let what = what.split(" at offset").next().unwrap_or(what);
    let words = what.split_whitespace().map(|word| {
        if word.chars().all(|c| c.is_ascii_digit()) {
            "N"
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Adds tables everywhere, prints the results and writes the page.
pub(crate) fn run() -> Result<(), String> {
    let backtrail = Backtrail(place::release("backtrail", "backtrail")?);
    let folder = scratch();
    let mut broken = Vec::new();
    let mut page = format!(
        "# Tables added to linked files\n\n\
         Made by `cargo evidence sframe-add`, with `backtrail sframe add`. Every file is a copy.\n\n{}\n\n",
        crate::machine()
    );
    programs::table(&backtrail, folder.path(), &mut page, &mut broken);
    system::table(&backtrail, folder.path(), &mut page, &mut broken);
    print!("{page}");
    fs::write(place::workspace().join("docs/sframe-add.md"), &page).map_err(|error| error.to_string())?;
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

/// Adds a line to the page.
fn line(page: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = page.write_fmt(line);
    page.push('\n');
}
