//! `cargo evidence sframe-check`: compares tables with `.eh_frame` at every pc: those of GNU as and
//! ld, and ours for real files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{Missing, command, place, scratch, skip};
use serde_json::Value;

/// The promised fraction of code that version 3 covers.
const COVERED: f64 = 0.9998;

/// Files that cannot reach it: OpenSSL's assembly keeps the caller's stack pointer in memory, eight
/// bytes from the CFA, and no version of SFrame can express `*(rsp+16)+8`.
const INEXPRESSIBLE: [&str; 2] = ["node", "libcrypto.so.3"];

/// No check takes longer.
const LIMIT: Duration = Duration::from_secs(300);

/// The result of `sframe check` for a file.
struct Report {
    functions: u64,
    rows: u64,
    pcs: u64,
    uncovered: u64,
    skipped: BTreeMap<String, u64>,
    mismatches: Vec<Value>,
    seconds: f64,
}

impl Report {
    fn coverage(&self) -> f64 {
        1.0 - self.uncovered as f64 / self.pcs.max(1) as f64
    }

    fn reasons(&self) -> String {
        let reasons = self.skipped.iter().map(|(reason, count)| format!("{reason} {count}"));
        reasons.collect::<Vec<_>>().join(", ")
    }
}

fn check(binary: &Path, options: &[&str], file: &Path) -> Result<Report, String> {
    let mut check = Command::new(binary);
    check.args(["sframe", "check", "--json"]).args(options).arg(file);
    let finished = command::run(&mut check, LIMIT).map_err(|missing| missing.to_string())?;
    if !matches!(finished.code(), 0 | 1) {
        return Err(format!("{}: {}", file.display(), finished.describe()));
    }
    let all: Value = serde_json::from_str(&finished.stdout).map_err(|error| error.to_string())?;
    let told = &all[0];
    let number = |name: &str| told[name].as_u64().unwrap_or_default();
    let skipped = told["skipped"].as_object().into_iter().flatten();
    Ok(Report {
        functions: number("functions"),
        rows: number("rows"),
        pcs: number("pcs"),
        uncovered: number("uncovered_bytes"),
        skipped: skipped
            .map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or_default()))
            .collect(),
        mismatches: told["mismatches"].as_array().cloned().unwrap_or_default(),
        seconds: finished.wall.as_secs_f64(),
    })
}

/// Checks everything, prints the tables and writes the page.
pub(crate) fn run() -> Result<(), String> {
    let binary = place::release("backtrail", "backtrail")?;
    let folder = scratch();
    let mut broken = Vec::new();
    let mut page = format!(
        "# Tables checked against .eh_frame\n\n\
         Made by `cargo evidence sframe-check`, with `backtrail sframe check`, which compares CFA, return address\n\
         and frame pointer at every pc. Promised: no mismatch in tables that `sframe build` makes; version 3\n\
         covers at least {:.2} % of the code; in files that GNU ld 2.44 and 2.47 link for x86-64, a mismatch in\n\
         `.plt.got` and nothing else.\n\n\
         ## Tables of GNU as and ld\n\n\
         One program (`crates/cfi/tests/programs/frames.c`) with `gcc -Wa,--gsframe`. Start files and the code\n\
         that the C library adds are not covered, because they were made without tables.\n\n\
         | binutils | machine | flags | functions | rows | covered | not covered: pieces | mismatches |\n\
         |---|---|---|---|---|---|---|---|\n",
        COVERED * 100.0
    );
    gnu_tables(&binary, folder.path(), &mut page, &mut broken)?;
    page.push_str(
        "\n## Tables built from .eh_frame\n\n\
         Mismatches are those of all three versions. *Seconds* is the time for building the version 3 table and\n\
         checking it, including the start of the command. Pieces that version 3 does not cover are listed with\n\
         their reasons.\n\n\
         | file | MB | functions | rows | covered: V3 | V2 | V1 | not covered by V3: pieces | mismatches | seconds |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    built_tables(&binary, folder.path(), &mut page, &mut broken)?;
    page.push_str(
        "\nnode and libcrypto contain OpenSSL's assembly, which keeps the caller's stack pointer in memory, eight\n\
         bytes from the CFA. No version's rows can express `*(rsp+16)+8`, since a version 3 row adds before it\n\
         reads. Those pieces have no rows, so coverage of these two files is below the promise.\n",
    );
    print!("{page}");
    fs::write(place::workspace().join("docs/sframe-check.md"), &page).map_err(|error| error.to_string())?;
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

const MACHINES: [(Machine, &str, &[&[&str]]); 3] = [
    (Machine::X86_64, "x86-64", &[&["-O2"], &["-O2", "-fPIC", "-shared"]]),
    (
        Machine::Aarch64,
        "AArch64",
        &[
            &["-O2", "-mbranch-protection=pac-ret+leaf+b-key"],
            &["-O2", "-mbig-endian", "-ffreestanding", "-nostdlib", "-shared", "-fPIC"],
        ],
    ),
    (Machine::S390x, "s390x", &[&["-O2"]]),
];

fn gnu_tables(binary: &Path, folder: &Path, page: &mut String, broken: &mut Vec<String>) -> Result<(), String> {
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        for (machine, name, variants) in MACHINES {
            // Its tables are made from 2.45 on.
            if machine == Machine::S390x && release != Release::V2_47 {
                continue;
            }
            for flags in variants {
                let what = format!("{} | {name} | `{}`", release.number(), flags.join(" "));
                let options = [&["-Wa,--gsframe"], *flags].concat();
                let made = match compile(machine, Some(&binutils), &options, folder) {
                    Ok(made) => made,
                    Err(missing) => {
                        skip(format!("{what}: {missing}"));
                        continue;
                    }
                };
                let report = check(binary, &[], &made)?;
                let found: Vec<String> = report.mismatches.iter().map(mismatch).collect();
                let expected = machine == Machine::X86_64 && release != Release::V2_40;
                let known = |found: &Value| found["sframe"] == "rsp+16" && found["eh_frame"] == "rsp+8";
                if !report.mismatches.iter().all(known) || report.mismatches.len() != usize::from(expected) {
                    broken.push(format!("{what}: {found:?}"));
                }
                let _ = writeln!(
                    page,
                    "| {what} | {} | {} | {} | {} | {} |",
                    report.functions,
                    report.rows,
                    percent(report.coverage()),
                    report.reasons(),
                    if found.is_empty() {
                        "none".into()
                    } else {
                        found.join("; ")
                    },
                );
            }
        }
    }
    Ok(())
}

fn mismatch(found: &Value) -> String {
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    format!("{}: {} for {}", text("what"), text("sframe"), text("eh_frame"))
}

/// Compiles the program with frames of every kind.
fn compile(machine: Machine, with: Option<&Binutils>, flags: &[&str], folder: &Path) -> Result<PathBuf, Missing> {
    let gcc = match machine {
        Machine::X86_64 if cfg!(target_arch = "x86_64") => "gcc".to_owned(),
        _ => format!("{}-gcc", machine.triplet()),
    };
    let made = folder.join("made");
    let mut gcc = Command::new(gcc);
    if let Some(binutils) = with {
        gcc.arg("-B").arg(binutils.for_gcc(machine));
    }
    gcc.args(flags).arg("-o").arg(&made);
    gcc.arg(place::workspace().join("crates/cfi/tests/programs/frames.c"));
    done(gcc, made)
}

fn done(mut command: Command, made: PathBuf) -> Result<PathBuf, Missing> {
    let finished = command::run(&mut command, LIMIT)?;
    match finished.status.success() {
        true => Ok(made),
        false => Err(Missing(finished.describe())),
    }
}

const GO: &str = r#"package main

/*
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void sort(int *numbers, int count) { qsort(numbers, count, sizeof *numbers, compare); }
*/
import "C"
import "fmt"

func main() {
	numbers := []C.int{3, 1, 2}
	C.sort(&numbers[0], 3)
	fmt.Println(numbers)
}
"#;

fn go_with_cgo(folder: &Path) -> Result<PathBuf, Missing> {
    let (source, made) = (folder.join("main.go"), folder.join("a Go program with cgo"));
    fs::write(&source, GO).map_err(|error| Missing(error.to_string()))?;
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&made).arg(&source);
    go.env("CGO_ENABLED", "1")
        .env("GOFLAGS", "-mod=mod")
        .env("GOCACHE", folder.join("cache"))
        .current_dir(folder);
    done(go, made)
}

/// The files that the promise for our tables covers, and some more.
fn files(folder: &Path) -> Vec<(String, Result<PathBuf, Missing>)> {
    let mut files = Vec::new();
    let mut add = |name: &str, found: Result<PathBuf, Missing>| files.push((name.to_owned(), found));
    for program in ["bash", "git", "python3", "gdb", "node", "cc1plus"] {
        add(program, which(program));
    }
    for library in [
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "libstdc++.so.6",
        "libcrypto.so.3",
        "libLLVM-14.so.1",
    ] {
        add(
            library,
            in_one_of(&["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"], library),
        );
    }
    let sysroot = asked("rustc", &["--print", "sysroot"]).map(|folder| folder.join("lib"));
    for library in ["librustc_driver-", "libLLVM.so."] {
        let found = sysroot.clone().and_then(|folder| starting_with(&folder, library));
        add(&format!("rustc's {library}*"), found);
    }
    add("a Go program with cgo", go_with_cgo(folder));
    for (triplet, name) in [("aarch64-linux-gnu", "AArch64"), ("s390x-linux-gnu", "s390x")] {
        for library in ["libc.so.6", "libgcc_s.so.1", "libstdc++.so.6"] {
            let found = in_one_of(&[&format!("/usr/{triplet}/lib")], library);
            add(&format!("{library} of {name}"), found);
        }
    }
    files
}

fn built_tables(binary: &Path, folder: &Path, page: &mut String, broken: &mut Vec<String>) -> Result<(), String> {
    let mut row = |name: &str, file| built_row(binary, name, file, page, broken);
    for (name, file) in files(folder) {
        row(&name, file)?;
    }
    for (name, flags) in [
        ("cross-built AArch64 program", &["-O2"][..]),
        (
            "the same, signed with key B",
            &["-O2", "-mbranch-protection=pac-ret+leaf+b-key"],
        ),
        (
            "the same, big-endian",
            &["-O2", "-mbig-endian", "-ffreestanding", "-nostdlib", "-shared", "-fPIC"],
        ),
        ("the same, relocatable", &["-O2", "-c", "-ffunction-sections"]),
    ] {
        row(name, compile(Machine::Aarch64, None, flags, folder))?;
    }
    row(
        "cross-built s390x program",
        compile(Machine::S390x, None, &["-O2"], folder),
    )
}

/// The row of a file whose tables we have built.
fn built_row(
    binary: &Path,
    name: &str,
    file: Result<PathBuf, Missing>,
    page: &mut String,
    broken: &mut Vec<String>,
) -> Result<(), String> {
    let file = match file {
        Ok(file) => file,
        Err(missing) => {
            skip(format!("{name}: {missing}"));
            return Ok(());
        }
    };
    eprintln!("checking {name}");
    let reports = ["3", "2", "1"].map(|version| check(binary, &["--built", version], &file));
    let [third, second, first] = reports;
    let (third, second, first) = (third?, second?, first?);
    let mismatches: usize = [&third, &second, &first]
        .map(|report| report.mismatches.len())
        .iter()
        .sum();
    if mismatches > 0 {
        broken.push(format!("{name}: {mismatches} mismatches"));
    }
    if third.coverage() < COVERED && !INEXPRESSIBLE.contains(&name) {
        broken.push(format!("{name}: {} covered", percent(third.coverage())));
    }
    let _ = writeln!(
        page,
        "| {name} | {:.1} | {} | {} | {} | {} | {} | {} | {mismatches} | {:.2} |",
        fs::metadata(&file).map_or(0.0, |metadata| metadata.len() as f64 / 1e6),
        third.functions,
        third.rows,
        percent(third.coverage()),
        percent(second.coverage()),
        percent(first.coverage()),
        third.reasons(),
        third.seconds,
    );
    Ok(())
}

/// Never rounded up: 100 % means all.
fn percent(share: f64) -> String {
    match share {
        1.0 => "100 %".into(),
        _ => format!("{:.3} %", (share * 1e5).floor() / 1e3),
    }
}

/// The output of a command, as a path.
fn asked(program: &str, arguments: &[&str]) -> Result<PathBuf, Missing> {
    let finished = command::run(Command::new(program).args(arguments), LIMIT)?;
    Ok(PathBuf::from(finished.stdout.trim()))
}

fn which(program: &str) -> Result<PathBuf, Missing> {
    if program == "cc1plus" {
        return present(asked("gcc", &["-print-prog-name=cc1plus"])?);
    }
    // The distribution's program, not somebody's wrapper.
    in_one_of(&["/usr/bin", "/bin", "/usr/local/bin"], program)
}

fn in_one_of(folders: &[&str], name: &str) -> Result<PathBuf, Missing> {
    let found = folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| Missing(format!("there is no {name}")))
}

fn starting_with(folder: &Path, start: &str) -> Result<PathBuf, Missing> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.map(|entry| entry.path()).find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(start))
    });
    found.ok_or_else(|| Missing(format!("there is no {start}*")))
}

fn present(path: PathBuf) -> Result<PathBuf, Missing> {
    match path.is_file() {
        true => Ok(path),
        false => Err(Missing(format!("there is no {}", path.display()))),
    }
}
