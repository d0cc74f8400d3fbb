//! The workspace's tests, built by cargo and run side by side.
//!
//! `cargo test` runs one test program after the other, but the longest, the command's, mostly waits
//! for programs that it records. So it has a lane of its own, beside all others; and so have the
//! doctests.

use std::fs::{self, File};
use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use backtrail_testkit::place;
use serde_json::Value;

use crate::cargo::{cargo_in, ended, pass_on, pass_on_both};

/// The targets that the command's tests are among. They are not part of `cargo test`.
const COMMAND: [&str; 2] = ["--test", "command"];

/// Features that only tests use: in one build with everything else, as two would be made otherwise.
const FEATURES: [&str; 2] = ["--features", "backtrail-tracer/log,backtrail-tracer/tracing"];

/// After this time, and again after it, what a test program is doing is printed.
const LONG: Duration = Duration::from_secs(900);

/// A test program.
pub(crate) struct Program {
    /// Its package and target, as they are shown.
    name: String,
    executable: PathBuf,
    /// Cargo starts it there.
    folder: PathBuf,
}

/// The compiler that builds the workspace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compiler {
    /// Clippy's, which finds what clippy finds, and fails then. To lint while the tests are built
    /// takes a quarter of the time of linting apart from it, which reads all dependencies again.
    Lints,
    Rustc,
}

impl Compiler {
    /// Sets cargo's environment. All its runs of one test run need the same, or it builds again.
    fn choose(self, cargo: &mut Command) {
        if self == Compiler::Lints {
            // As `cargo clippy` does it: the driver reads its own arguments from the environment.
            cargo
                .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
                .env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__")
                // What would make the next build faster makes this one slower.
                .env("CARGO_INCREMENTAL", "0")
                // The place of a panic is in its message; lines of code take a tenth of a build.
                .env("CARGO_PROFILE_DEV_DEBUG", "0");
        }
    }
}

/// Builds all test programs of the workspace, and the programs and libraries that they use: at
/// once, since without the tests cargo would build these again, with other features.
pub(crate) fn build(compiler: Compiler) -> Result<Vec<Program>, String> {
    let mut programs = build_some(&["--lib", "--bins", "--examples", "--tests"], compiler)?;
    // Those of the command, too, which are not among them.
    for program in build_some(&COMMAND, compiler)? {
        if programs.iter().all(|known| known.executable != program.executable) {
            programs.push(program);
        }
    }
    Ok(programs)
}

fn build_some(only: &[&str], compiler: Compiler) -> Result<Vec<Program>, String> {
    let arguments = ["build", "--workspace", "--message-format", "json-render-diagnostics"];
    let mut cargo = cargo_in(&place::workspace(), &[&arguments, &FEATURES[..], only].concat());
    compiler.choose(&mut cargo);
    // More than there are CPUs: beside other work, each process has its share.
    cargo.env("CARGO_BUILD_JOBS", (3 * cpus()).to_string());
    let built = cargo.stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cargo can't be started: {error}"))?;
    if !built.status.success() {
        return Err(built.status.to_string());
    }
    let messages = built.stdout.split(|&byte| byte == b'\n');
    Ok(messages.filter_map(program).collect())
}

/// The test program that a message of cargo is about.
fn program(message: &[u8]) -> Option<Program> {
    let message: Value = serde_json::from_slice(message).ok()?;
    let (name, executable, folder) = place::test_program(&message)?;
    Some(Program {
        name,
        executable,
        folder,
    })
}

/// Runs all tests that a compiler has built; returns what failed.
pub(crate) fn run(programs: &[Program], compiler: Compiler, skipped: &AtomicUsize) -> Vec<String> {
    let (command, others): (Vec<&Program>, Vec<&Program>) =
        programs.iter().partition(|program| program.name == "cli command");
    let cpus = cpus();
    let failed = Mutex::new(Vec::new());
    let note = |name: &str, done: Result<(), String>| {
        if let Err(error) = done {
            let mut failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            failed.push(format!("{name}: {error}"));
        }
    };
    thread::scope(|scope| {
        // Many of its tests wait: for programs that they record, and for each other's recordings.
        scope.spawn(|| {
            for program in command {
                note(&program.name, program.show(5 * cpus, skipped));
            }
        });
        // Little of it runs side by side.
        scope.spawn(|| note("doctests", doctests(compiler, skipped)));
        // More than there are CPUs: some of their tests take long, and would run alone at the end.
        for program in others {
            note(&program.name, program.show(2 * cpus, skipped));
        }
    });
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

fn doctests(compiler: Compiler, skipped: &AtomicUsize) -> Result<(), String> {
    let started = Instant::now();
    let arguments = [&["test", "--workspace", "--doc"][..], &FEATURES].concat();
    let mut cargo = cargo_in(&place::workspace(), &arguments);
    compiler.choose(&mut cargo);
    let done = pass_on_both(&mut cargo, skipped);
    println!("doctests ({} s)", started.elapsed().as_secs());
    done
}

impl Program {
    /// What passing tests print is shown, because some report there what they skipped.
    fn command(&self, threads: usize) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .args(["--show-output", "--test-threads", &threads.to_string()])
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env(place::ALL_BUILT, "")
            .current_dir(&self.folder);
        command
    }

    /// Runs it, and shows its output when it has ended, in one piece. It goes through a file, not
    /// through a pipe: a process that a test left behind would hold that open, and never end it.
    fn show(&self, threads: usize, skipped: &AtomicUsize) -> Result<(), String> {
        let started = Instant::now();
        let path = place::target().join("tests").join(&self.name).with_extension("log");
        let (status, output) = self.run_into(&path, threads).map_err(|error| error.to_string())?;
        let mut shown = Vec::new();
        let failures = pass_on(Some(output), &mut shown, skipped);
        // If nobody reads the output any more, the tests still run to their end.
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "\n{} ({} s)", self.name, started.elapsed().as_secs());
        let _ = out.write_all(&shown);
        ended(status, &failures)
    }

    fn run_into(&self, path: &Path, threads: usize) -> io::Result<(ExitStatus, File)> {
        path.parent().map(fs::create_dir_all).transpose()?;
        let output = File::create(path)?;
        let mut command = self.command(threads);
        let mut child = command.stdout(output.try_clone()?).stderr(output).spawn()?;
        let pid = child.id();
        let (end, has_ended) = mpsc::channel::<()>();
        let status = thread::scope(|scope| {
            scope.spawn(move || {
                while has_ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                    let log = fs::read_to_string(path).unwrap_or_default();
                    let (tests, started) = (unfinished(&log), started_by(pid));
                    println!("{} still runs: {tests:?}, with {started:?}", self.name);
                }
            });
            let status = child.wait();
            drop(end);
            status
        });
        Ok((status?, File::open(path)?))
    }
}

/// The tests of which a test program has said that they take long, and not yet that they have
/// ended.
fn unfinished(log: &str) -> Vec<&str> {
    let tests = || log.lines().filter_map(|line| line.strip_prefix("test "));
    let slow = tests().filter_map(|test| test.strip_suffix(" has been running for over 60 seconds"));
    slow.filter(|slow| !tests().any(|test| test.starts_with(&format!("{slow} ... "))))
        .collect()
}

/// The command lines of a process's descendants.
fn started_by(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    // Each number is followed by a space.
    let children: String = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let of = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        iter::once(format!("{pid} {line}")).chain(started_by(pid))
    };
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_take_long_are_named_until_they_end() {
        let log = "test a::b has been running for over 60 seconds\ntest a::c ... ok\n";
        assert_eq!(unfinished(log), ["a::b"]);
        assert!(unfinished(&format!("{log}test a::b ... FAILED\n")).is_empty());
    }

    #[test]
    fn what_a_test_has_started_is_found() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("there is a sleep");
        // The kernel's list may lack children while others end.
        let is_found = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            started_by(std::process::id())
                .iter()
                .any(|line| line.ends_with(" sleep 600 "))
        });
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        assert!(is_found);
    }
}
