//! The examples, run as their users run them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::scratch;

fn example(name: &str, arguments: &[&str]) -> Finished {
    let finished = run(name, arguments);
    assert!(finished.status.success(), "{name}: {}", finished.describe());
    finished
}

/// Where cargo has put the examples: beside this test.
fn run(name: &str, arguments: &[&str]) -> Finished {
    let test = std::env::current_exe().unwrap();
    let folder: PathBuf = test.parent().unwrap().parent().unwrap().join("examples");
    let mut run = Command::new(folder.join(name));
    run.args(arguments);
    command::run(&mut run, Duration::from_secs(60)).unwrap()
}

#[test]
#[cfg(feature = "local")]
fn own_backtrace() {
    let lines = example("own_backtrace", &[]).stdout;
    assert!(
        lines.lines().count() > 3 && lines.contains("own_backtrace(+0x"),
        "{lines}"
    );
}

/// The thread that overflows has only the small alternate stack of Rust's threads.
#[test]
#[cfg(feature = "local")]
fn crash_reports() {
    let died = run("crash_reports", &[]);
    // Rust's own handler ends the program after the report.
    assert_eq!(died.code(), 128 + 6, "{}", died.describe());
    let lines = |start: &str| died.stderr.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (lines("panic: "), lines("crash: SIGSEGV"), lines("crash: ")),
        (1, 1, 1),
        "{}",
        died.describe()
    );
    assert!(died.stderr.contains("only this thread ends"), "{}", died.describe());
    assert_eq!(lines("end: the outermost frame"), 1, "{}", died.describe());
}

#[test]
fn compact_backtrace() {
    let text = example("compact_backtrace", &[]).stdout;
    assert_eq!(text, "11 bytes\nPc(4198400) 1 times\nRa(4198416) 301 times\n");
}

#[test]
fn write_and_read_a_trace() {
    let folder = scratch();
    let directory = folder.path().join("trace");
    let text = example("write_and_read_a_trace", &[directory.to_str().unwrap()]).stdout;
    assert_eq!(text, "app:read: 512 bytes\n");
}
