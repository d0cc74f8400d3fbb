//! `cargo evidence aarch64-tests`: the workspace's tests, built for AArch64 and run in an emulated
//! machine with Debian's kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use backtrail_testkit::guest::{Cpu, Guest, Results};
use backtrail_testkit::{SKIPPED, place};
use serde_json::Value;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: (&str, &str) = ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
const SUITE: &str = "bookworm";
/// What tests compile with and compare with, as far as an emulated machine runs it in time.
const PACKAGES: [&str; 31] = [
    "dash",
    "bash",
    "coreutils",
    "grep",
    "sed",
    "findutils",
    "tar",
    "gzip",
    "diffutils",
    "mawk",
    "libc-bin",
    "gcc",
    "g++",
    "gdb",
    "binutils",
    "python3",
    "git",
    "xz-utils",
    "zstd",
    "bzip2",
    "perl",
    "make",
    "util-linux",
    "procps",
    "mount",
    "file",
    "pkg-config",
    "patchelf",
    "babeltrace2",
    "elfutils",
    "sqlite3",
];
/// As the tests are built elsewhere.
const FEATURES: &str = "backtrail-tracer/log,backtrail-tracer/tracing";
/// The tests of the command, which are built apart, and take longer than all others.
const COMMAND: &str = "cli command";
/// For each test program, in seconds.
const LONGEST: u32 = 7200;
const LIMIT: Duration = Duration::from_secs(6 * 3600);
const MEMORY_MIB: u32 = 6144;

/// Tests that do not pass there, and why: by test program, and how their names begin.
const BOUND: &[(&str, &str, &str)] = &[
    (
        "args all",
        "conventions::gcc_for_x86_64",
        "calls by the conventions of x86-64",
    ),
    ("capi all", "promises::", RUSTC),
    ("cbf all", "promises::", RUSTC),
    (
        "cfi all",
        "check_real_files::what_is_wrong_is_found_where_it_is",
        "expects return addresses where x86-64 has them, next to the CFA",
    ),
    ("cli command", "link::cargo", RUSTC),
    ("cli command", "sframe_objects::archives", RUSTC),
    ("cli command", "sframe_objects::rust_programs", RUSTC),
    (
        "cli command",
        "book::",
        "pages print what commands print on x86-64, and some commands need cargo",
    ),
    ("sframe all", "promises::", RUSTC),
    (
        "trace it",
        "ring::the_handlers_part_has_no_way_to_panic_or_to_allocate",
        RUSTC,
    ),
    ("unwind all", "promises::", RUSTC),
    (
        "xtask xtask",
        "tidy::tests::the_project_is_tidy",
        "asks git about the checkout, of which only the files are in the guest",
    ),
];
const RUSTC: &str = "compiles with the Rust compiler, which is not in the guest";

const HEAD: &str = "\
# Tests on AArch64

Made by `cargo evidence aarch64-tests`: the workspace's tests, except for those of the command, built for
AArch64 and run as root in an emulated machine with Debian 12's kernel and programs, without a network. A
comparison is *skipped* where what it compares with is not there, as each test says aloud. Those that
cannot pass there are in the second table, and each of them fails: one that passed would end this command
with 1, as would any other that fails. `cargo evidence aarch64-tests 'cli command'` runs those of the
command.
";

/// Options of `cargo evidence aarch64-tests`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only these test programs, such as `cfi all`, and do not write the page. Only so does
    /// `cli command` run, which takes longer than all others.
    program: Vec<String>,
    /// Run only tests whose names contain this.
    #[arg(long)]
    filter: Option<String>,
}

/// A test program.
struct Program {
    name: String,
    executable: PathBuf,
    folder: PathBuf,
}

/// What became of one's tests.
#[derive(Default)]
struct Outcome {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
    /// Whether it ran to its end.
    has_ended: bool,
}

/// Runs the tests. Returns whether those that should pass, and no others, have passed.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let (mut programs, files) = build()?;
    let chosen = |name: &String| match options.program.is_empty() {
        true => name != COMMAND,
        false => options.program.contains(name),
    };
    programs.retain(|program| chosen(&program.name));
    programs.sort_by_key(|program| (program.name == COMMAND, program.name.clone()));
    let missing = |missing: backtrail_testkit::Missing| missing.to_string();
    let mut guest = Guest::new(Cpu::Aarch64, SUITE, "guest-aarch64-suite", &PACKAGES).map_err(missing)?;
    guest.set_memory(MEMORY_MIB);
    for file in sources()?.iter().chain(&files) {
        guest.add(file, &file.to_string_lossy());
    }
    for program in &programs {
        guest.add(&program.executable, &program.executable.to_string_lossy());
        guest.job(&job(&program.name), &script(program, options.filter.as_deref()));
    }
    let results = guest.run(LIMIT).map_err(missing)?;
    let outcomes: BTreeMap<&str, Outcome> = programs
        .iter()
        .map(|program| (program.name.as_str(), outcome(&results, &program.name)))
        .collect();
    let (page, faults) = page(&outcomes);
    print!("{page}");
    for fault in &faults {
        eprintln!("evidence: {fault}");
    }
    for (name, outcome) in &outcomes {
        if !outcome.failed.is_empty() || !outcome.has_ended {
            eprintln!("{}", results.describe(&job(name)));
        }
    }
    if options.program.is_empty() && options.filter.is_none() {
        fs::write(place::workspace().join("docs/aarch64-tests.md"), page).map_err(|error| error.to_string())?;
    }
    Ok(faults.is_empty())
}

/// Builds all: the test programs, and what they start or link with.
fn build() -> Result<(Vec<Program>, Vec<PathBuf>), String> {
    let (mut programs, mut files) = (BTreeMap::new(), BTreeSet::new());
    for what in [
        &["--lib", "--bins", "--examples", "--tests"][..],
        &["--test", "command"],
    ] {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--workspace", "--message-format", "json-render-diagnostics"])
            .args(["--features", FEATURES, "--target", TARGET])
            .args(what)
            .env(LINKER.0, LINKER.1)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .current_dir(place::workspace())
            .stderr(Stdio::inherit());
        let built = cargo.output().map_err(|error| error.to_string())?;
        if !built.status.success() {
            return Err(format!("cargo build: {}", built.status));
        }
        for message in built.stdout.split(|&byte| byte == b'\n') {
            let message: Value = serde_json::from_slice(message).unwrap_or_default();
            match place::test_program(&message) {
                Some((name, executable, folder)) => {
                    let program = Program {
                        name: name.clone(),
                        executable,
                        folder,
                    };
                    programs.insert(name, program);
                }
                None => files.extend(products(&message)),
            }
        }
    }
    Ok((programs.into_values().collect(), files.into_iter().collect()))
}

/// Programs and libraries of the workspace that a message of cargo is about.
fn products(message: &Value) -> Vec<PathBuf> {
    let is_ours = || {
        Path::new(message["manifest_path"].as_str()?)
            .starts_with(place::workspace())
            .then_some(())
    };
    let files = message["filenames"].as_array().filter(|_| is_ours().is_some());
    let files = files.into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from);
    let is_linked = |file: &PathBuf| {
        file.extension()
            .is_none_or(|extension| extension == "so" || extension == "a")
    };
    files.filter(|file| is_linked(file) && file.exists()).collect()
}

/// The files of the checkout, which tests read.
fn sources() -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(place::workspace())
        .output();
    let listed = listed.map_err(|error| format!("git can't be started: {error}"))?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let files = names.split('\0').filter(|name| !name.is_empty());
    let files = files.map(|name| place::workspace().join(name));
    Ok(files.filter(|file| file.is_file()).collect())
}

fn job(name: &str) -> String {
    name.replace(' ', "-")
}

fn script(program: &Program, filter: Option<&str>) -> String {
    format!(
        "mkdir -p {temporary}\ncd {folder}\nexport CARGO_MANIFEST_DIR=$PWD {}=\n\
         timeout {LONGEST} {} --test-threads 2 --show-output {}",
        place::ALL_BUILT,
        program.executable.display(),
        filter.unwrap_or_default(),
        folder = program.folder.display(),
        temporary = place::target().join(TARGET).join("tmp").display(),
    )
}

fn outcome(results: &Results, name: &str) -> Outcome {
    if results.status(&job(name)).is_none() {
        return Outcome::default();
    }
    let printed = results.text(&job(name), "stdout");
    let tests = || printed.lines().filter_map(|line| line.strip_prefix("test "));
    let failed = tests().filter_map(|test| test.strip_suffix(" ... FAILED"));
    Outcome {
        passed: tests().filter(|test| test.ends_with(" ... ok")).count(),
        skipped: results.text(&job(name), "stderr").matches(SKIPPED).count(),
        failed: failed.map(str::to_owned).collect(),
        has_ended: printed.contains("\ntest result: "),
    }
}

/// The page, and what is not as it should be.
fn page(outcomes: &BTreeMap<&str, Outcome>) -> (String, Vec<String>) {
    let mut page = format!("{HEAD}\n{}\n\n", crate::machine());
    let mut faults = Vec::new();
    page += "| tests | passed | skipped comparisons | fail, see below |\n|---|---|---|---|\n";
    for (name, outcome) in outcomes {
        let Outcome { passed, skipped, .. } = outcome;
        let is_bound = |test: &String| {
            BOUND
                .iter()
                .any(|(of, prefix, _)| of == name && test.starts_with(prefix))
        };
        let (bound, others): (Vec<_>, Vec<_>) = outcome.failed.iter().partition(|test| is_bound(test));
        _ = writeln!(page, "| {name} | {passed} | {skipped} | {} |", bound.len());
        faults.extend(others.iter().map(|test| format!("{name}: {test} failed")));
        if !outcome.has_ended {
            faults.push(format!("{name} did not run to its end"));
        }
    }
    page += "\n| tests | begin with | why they fail there |\n|---|---|---|\n";
    for (name, prefix, why) in BOUND {
        _ = writeln!(page, "| {name} | `{prefix}` | {why} |");
        let fails = outcomes
            .get(name)
            .is_none_or(|outcome| outcome.failed.iter().any(|test| test.starts_with(prefix)));
        if !fails {
            faults.push(format!("{name}: {prefix} does not fail"));
        }
    }
    (page, faults)
}
