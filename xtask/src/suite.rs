//! The workspace's tests, built by cargo and run side by side.
//!
//! `cargo test` runs one test program after the other, but the longest, the command's, mostly waits
//! for programs that it records. So it has a lane of its own, beside all others.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Instant;

use backtrail_testkit::place;
use serde_json::Value;

use crate::cargo::{cargo_in, pass_on, pass_on_both};

/// The targets that the command's tests are among. They are not part of `cargo test`.
pub(crate) const COMMAND: [&str; 2] = ["--test", "all"];

/// A test program.
pub(crate) struct Program {
    /// Its package and target, as they are shown.
    name: String,
    executable: PathBuf,
    /// Cargo starts it there.
    folder: PathBuf,
}

/// Builds all test programs of the workspace, and the programs and libraries that they use: at
/// once, since without the tests cargo would build these again, with other features.
pub(crate) fn build() -> Result<Vec<Program>, String> {
    let mut programs = build_some(&["--lib", "--bins", "--examples", "--tests"])?;
    // Those of the command, too, which are not among them.
    for program in build_some(&COMMAND)? {
        if programs.iter().all(|known| known.executable != program.executable) {
            programs.push(program);
        }
    }
    Ok(programs)
}

fn build_some(only: &[&str]) -> Result<Vec<Program>, String> {
    let arguments = ["build", "--workspace", "--message-format", "json-render-diagnostics"];
    let mut cargo = cargo_in(&place::workspace(), &[&arguments, only].concat());
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
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some(Program {
        name,
        executable,
        folder,
    })
}

/// Runs all tests; returns what failed.
pub(crate) fn run(programs: &[Program], skipped: &AtomicUsize) -> Vec<String> {
    let (command, others): (Vec<&Program>, Vec<&Program>) =
        programs.iter().partition(|program| program.name == "cli all");
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    let failed = Mutex::new(Vec::new());
    let note = |name: &str, done: Result<(), String>| {
        if let Err(error) = done {
            let mut failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            failed.push(format!("{name} ({error})"));
        }
    };
    thread::scope(|scope| {
        // Many of its tests wait: for programs that they record, and for each other's recordings.
        scope.spawn(|| {
            for program in command {
                let done = pass_on_both(&mut program.command(2 * cpus), skipped);
                note(&program.name, done);
            }
        });
        for program in others {
            note(&program.name, program.show(cpus, skipped));
        }
        for arguments in [
            &["test", "--workspace", "--doc"][..],
            // With these features for all, everything above the tracer would be built twice. After
            // `--`, as cargo builds no examples for a filter before it.
            &[
                "test",
                "--package",
                "backtrail-tracer",
                "--features",
                "log,tracing",
                "--",
                "layers",
            ],
        ] {
            let started = Instant::now();
            let done = pass_on_both(&mut cargo_in(&place::workspace(), arguments), skipped);
            println!("{} s", started.elapsed().as_secs());
            note(&arguments.join(" "), done);
        }
    });
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
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

    /// Runs it, and shows its output when it has ended, in one piece.
    fn show(&self, threads: usize, skipped: &AtomicUsize) -> Result<(), String> {
        let started = Instant::now();
        let output = self.command(threads).output().map_err(|error| error.to_string())?;
        let mut shown = Vec::new();
        for part in [&output.stdout, &output.stderr] {
            pass_on(Some(&part[..]), &mut shown, skipped);
        }
        // If nobody reads the output any more, the tests still run to their end.
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "\n{} ({} s)", self.name, started.elapsed().as_secs());
        let _ = out.write_all(&shown);
        match output.status.success() {
            true => Ok(()),
            false => Err(output.status.to_string()),
        }
    }
}
