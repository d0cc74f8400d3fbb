//! `backtrail collect` and `backtrail crashes`, beside gdb and eu-stack.

use crate::stack;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{TempDir, available, debugger, program, readers, scratch};
use serde_json::{Value, json};

use stack::{LIMIT, same, thread};

/// A folder of reports.
struct Crashes {
    folder: TempDir,
}

impl Crashes {
    fn new() -> Crashes {
        Crashes { folder: scratch() }
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("crashes")
    }

    /// Passes this core to a collector, as the kernel does.
    fn collect(&self, core: &Path, options: &[&str], crash: &[&str]) -> Finished {
        // Commands of tests have no standard input.
        let mut run = Command::new("sh");
        run.args(["-c", "core=$1; shift; exec \"$0\" \"$@\" < \"$core\""]);
        run.arg(env!("CARGO_BIN_EXE_backtrail")).arg(core).arg("collect");
        run.arg("--folder").arg(self.place()).args(options).args(crash);
        command::run(&mut run, LIMIT).expect("the binary is there")
    }

    fn crashes(&self, arguments: &[&str]) -> Finished {
        let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        run.arg("crashes").args(arguments).arg("--folder").arg(self.place());
        command::run(&mut run, LIMIT).expect("the binary is there")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let finished = self.crashes(&[arguments, &["--json"]].concat());
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        serde_json::from_str(&finished.stdout).expect("it prints JSON")
    }
}

/// A core of a program that has ended in this way.
fn crashed(program: &program::Program, threads: &str, how: &str) -> Option<(TempDir, PathBuf, PathBuf)> {
    let built = available(program.build())?;
    let folder = scratch();
    let command = [built.as_os_str(), threads.as_ref(), how.as_ref()];
    let core = available(debugger::crashed(&folder, &command))?;
    Some((folder, built, core))
}

/// No process has this number.
const NOBODY: &str = "4194303";

#[test]
fn a_report_has_the_frames_that_gdb_has() {
    let Some((_folder, built, core)) = crashed(&program::PARKED, "5", "crash") else {
        return;
    };
    let crashes = Crashes::new();
    let words = [NOBODY, "0", "0", "11", "951827696", "parked", "--core=9TB"];
    let finished = crashes.collect(&core, &["--core"], &words);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let list = crashes.json(&["list"]);
    let summary = &list["crashes"][0];
    assert_eq!(summary["id"], format!("20000229-123456-{NOBODY}"));
    assert_eq!(
        (&summary["signal"], &summary["function"]),
        (&"SIGSEGV".into(), &"bad_read".into())
    );
    assert_eq!(
        (&summary["complete"], &list["groups"][0]["count"]),
        (&true.into(), &1.into())
    );

    let report = crashes.json(&["show", "last"]);
    let threads = report["threads"].as_array().expect("threads");
    let ours: BTreeMap<_, _> = threads.iter().map(thread).collect();
    if let Some(gdb) = available(debugger::gdb(&[built.as_os_str(), core.as_os_str()])) {
        same(&ours, &gdb, "a report");
    }
    assert_eq!(report["signal"]["code"], 1, "{report}");
    let build_id = &threads[0]["frames"][0]["build_id"];
    let modules = report["modules"].as_array().expect("modules");
    assert!(
        modules.iter().any(|module| module["build_id"] == *build_id),
        "{modules:?}"
    );
    let pc = &report["registers"][0]["registers"]["pc"];
    assert_eq!(*pc, threads[0]["frames"][0]["pc"]);

    // The core that was kept is one for others too.
    let kept = crashes.place().join(format!("0/20000229-123456-{NOBODY}.core"));
    if let Some(gdb) = available(debugger::gdb(&[built.as_os_str(), kept.as_os_str()])) {
        same(&ours, &gdb, "the core that was kept");
    }
    if let Some(eu) = available(debugger::eu_stack(&[
        "--core".as_ref(),
        kept.as_os_str(),
        "-e".as_ref(),
        built.as_os_str(),
    ])) {
        assert_eq!(eu.len(), ours.len(), "eu-stack has other threads");
    }
    let shown = crashes.crashes(&["show", "last"]);
    assert!(shown.stdout.contains("bad_read"), "{}", shown.describe());
    assert!(crashes.crashes(&["clear", "last"]).stdout.contains("removed 1"));
    assert!(!kept.exists());
}

#[test]
fn a_small_core_has_the_stacks() {
    let Some((_folder, built, core)) = crashed(&program::PARKED, "5", "crash") else {
        return;
    };
    let crashes = Crashes::new();
    let finished = crashes.collect(&core, &["--core=64KiB"], &[NOBODY, "0", "0", "11", "0"]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let kept = crashes.place().join(format!("0/19700101-000000-{NOBODY}.core"));
    let (small, whole) = (fs::metadata(&kept).unwrap().len(), fs::metadata(&core).unwrap().len());
    // Headers and notes come with them.
    assert!(small < 128 << 10 && small < whole, "{small} of {whole} bytes");
    let frames = |core: &Path| {
        let finished = stack::stack(&[core.to_str().expect("text"), "--json"]);
        let threads = stack::threads(&finished);
        let first = threads.into_values().next().expect("a thread");
        first.frames.iter().map(|frame| frame.pc).collect::<Vec<_>>()
    };
    assert_eq!(frames(&kept), frames(&core), "{built:?}");
}

#[test]
fn equal_stacks_are_one_line_wherever_the_program_is_mapped() {
    let crashes = Crashes::new();
    for how in ["crash", "crash", "null"] {
        let Some((_folder, _, core)) = crashed(&program::PARKED, "1", how) else {
            return;
        };
        assert_eq!(crashes.collect(&core, &[], &[NOBODY, "0"]).code(), 0);
    }
    let list = crashes.json(&["list"]);
    let groups = list["groups"].as_array().expect("groups");
    let mut counts: Vec<u64> = groups.iter().filter_map(|group| group["count"].as_u64()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "{list}");
    let bases = list["crashes"].as_array().expect("crashes").iter().map(|crash| {
        let report = crashes.json(&["show", crash["id"].as_str().expect("an ID")]);
        report["modules"][0]["base"].to_string()
    });
    let bases: Vec<String> = bases.collect();
    assert_ne!(bases[0], bases[1], "the kernel maps programs at random places");
}

#[test]
fn damaged_and_cut_cores_are_reported() {
    let Some((folder, _, core)) = crashed(&program::PARKED, "1", "crash") else {
        return;
    };
    let bytes = fs::read(&core).unwrap();
    let file = folder.path().join("damaged");
    for len in [0, 3, 64, 500, 4000, 20_000, bytes.len() / 2] {
        fs::write(&file, &bytes[..len.min(bytes.len())]).unwrap();
        let crashes = Crashes::new();
        let finished = crashes.collect(&file, &[], &[NOBODY, "0", "0", "6", "0", "name"]);
        assert_eq!(finished.code(), 0, "{len}: {}", finished.describe());
        let report = crashes.json(&["show", "last"]);
        assert_eq!(report["signal"]["name"], "SIGABRT", "{len}");
        assert_eq!(report["name"], "name", "{len}");
    }
    let mut headers = bytes.clone();
    headers[40..2000].fill(0xff);
    fs::write(&file, &headers).unwrap();
    assert_eq!(Crashes::new().collect(&file, &["--core"], &[NOBODY]).code(), 0);
}

#[test]
fn more_than_the_rate_is_counted() {
    let folder = scratch();
    let core = folder.path().join("none");
    fs::write(&core, b"").unwrap();
    let crashes = Crashes::new();
    for _ in 0..5 {
        let finished = crashes.collect(&core, &["--rate", "2"], &[NOBODY, "1000"]);
        assert_eq!(finished.code(), 0, "{}", finished.describe());
    }
    let list = crashes.json(&["list"]);
    assert_eq!(list["crashes"].as_array().expect("crashes").len(), 2);
    assert_eq!(
        (&list["skipped"][0]["uid"], &list["skipped"][0]["count"]),
        (&1000.into(), &3.into())
    );
    let text = crashes.crashes(&["list"]);
    assert!(
        text.stdout.contains("more than the rate of user 1000: 3"),
        "{}",
        text.describe()
    );
}

#[test]
fn what_is_wrong_is_reported() {
    let crashes = Crashes::new();
    let none = crashes.crashes(&["list"]);
    assert!(
        none.code() == 2 && none.stderr.contains("core_pattern"),
        "{}",
        none.describe()
    );
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let run = command::run(run.arg("collect").arg(OsStr::new("%P")), LIMIT).unwrap();
    assert!(
        run.code() == 2 && run.stderr.contains("core_pattern"),
        "{}",
        run.describe()
    );
}

/// Crashes in one of two functions; a password is among the arguments.
const LOGIN: &[u8] = b"#include <stdlib.h>
#ifdef REBUILT
__attribute__((noinline)) int depth(int n) { volatile int k[9]; for (int i = 0; i < 9; i++) k[i] = i * n; return k[1]; }
#else
__attribute__((noinline)) int depth(int n) { return n; }
#endif
volatile int left;
__attribute__((noinline)) void deny(const char *user) { left = *(volatile char *)(long)left + *user; left++; }
__attribute__((noinline)) void check(const char *user, const char *password)
{
    if (password[0] == 'h')
        abort();
    deny(user);
    left++;
}
__attribute__((noinline)) void login(const char *user, const char *password, int n)
{
    if (n > 0)
        login(user, password, n - 1);
    else
        check(user, password);
    left++;
}
int main(int argc, char **argv) { login(\"mike\", argv[2], depth(argc)); }
";

/// Rebuilt, mapped elsewhere, with a deeper recursion: it is the same crash.
#[test]
#[cfg(feature = "store")]
fn a_store_counts_crashes_by_function_and_keeps_no_secret() {
    let folder = scratch();
    let run = |command: &mut Command| {
        let finished = available(command::run(command.current_dir(folder.path()), LIMIT))?;
        assert!(finished.status.success(), "{}", finished.describe());
        Some(finished.stdout)
    };
    let backtrail = || Command::new(env!("CARGO_BIN_EXE_backtrail"));
    fs::write(folder.path().join("login.c"), LOGIN).unwrap();
    let crashes = Crashes::new();
    let mut time = 951_827_696;
    for build in ["-UREBUILT", "-DREBUILT"] {
        let mut gcc = Command::new("gcc");
        let built = run(gcc.args(["-g", "-O1", "-Wl,--build-id", build, "-o", "login", "login.c"]));
        if built.is_none() {
            return;
        }
        run(backtrail().args(["sframe", "add", "-q", "--args", "login"]));
        let program = folder.path().join("login");
        for (secret, more) in [("hunter2", ""), ("hunter2", "x"), ("", "")] {
            let place = scratch();
            let words = ["--password", secret, more].map(OsStr::new);
            let count = if more.is_empty() { 2 } else { 3 };
            let command = [&[program.as_os_str()], &words[..count]].concat();
            let Some(core) = available(debugger::crashed(&place, &command)) else {
                return;
            };
            let number = if secret.is_empty() { "11" } else { "6" };
            time += 1;
            let words = [NOBODY, "0", "0", number, &time.to_string(), "login"];
            assert_eq!(crashes.collect(&core, &[], &words).code(), 0);
        }
    }
    let reports = crashes.place();
    run(backtrail().args(["store", "add", "-q", "--to", "fleet"]).arg(&reports));
    let Some(packages) = available(readers::python("duckdb")) else {
        return;
    };
    let ask = |question| {
        let mut query = backtrail();
        query.args(["store", "query", "fleet", question, "--json"]);
        let answer = run(query.env("PYTHONPATH", &packages)).expect("the binary is there");
        assert!(!answer.contains("hunter2"), "{answer}");
        serde_json::from_str::<Value>(&answer).expect("it is JSON")
    };
    let top = ask("top-crashes");
    let groups = top.as_array().expect("rows").iter();
    let groups = groups.map(|row| json!([row["crashed_in"], row["signal"], row["crashes"], row["builds"]]));
    let group = |function, signal, crashes| json!([function, signal, crashes, 2]);
    assert_eq!(
        groups.collect::<Vec<Value>>(),
        [group("check", "SIGABRT", 4), group("deny", "SIGSEGV", 2)],
        "{top}"
    );
    let each = ask("crashes").to_string();
    assert!(each.contains("mike") && each.contains("password=<"), "{each}");
}
