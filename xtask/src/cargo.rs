//! Cargo's and other programs' runs, with their output.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use backtrail_testkit::SKIPPED;

pub(crate) fn cargo_in(folder: &Path, arguments: &[&str]) -> Command {
    println!("cargo {}", arguments.join(" "));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(folder);
    cargo
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

/// What a command that must succeed prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(format!("{command:?}: {}", output.status)),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}

/// Runs a command, shows its output, and counts what was skipped. What tests say of their failures
/// is part of the error.
pub(crate) fn pass_on_both(command: &mut Command, skipped: &AtomicUsize) -> Result<(), String> {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("it can't be started: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let failures = thread::scope(|scope| {
        scope.spawn(|| pass_on(stderr, io::stderr(), skipped));
        pass_on(stdout, io::stdout(), skipped)
    });
    let status = child.wait().map_err(|error| error.to_string())?;
    ended(status, &failures)
}

/// What came of a command whose tests said this of their failures.
pub(crate) fn ended(status: ExitStatus, failures: &str) -> Result<(), String> {
    match status.success() {
        true => Ok(()),
        false if failures.is_empty() => Err(status.to_string()),
        false => Err(format!("{status}\n{failures}")),
    }
}

/// Copies lines; returns what tests say of their failures, up to a few pages.
pub(crate) fn pass_on(from: Option<impl Read>, mut to: impl Write, skipped: &AtomicUsize) -> String {
    const MOST: usize = 20_000;
    let Some(from) = from else { return String::new() };
    let mut failures = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if line.windows(SKIPPED.len()).any(|part| part == SKIPPED.as_bytes()) {
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        if (!failures.is_empty() || line == b"failures:") && failures.len() < MOST {
            failures.push_str(&String::from_utf8_lossy(&line));
            failures.push('\n');
        }
        // If nobody reads the output any more, the tests still run to their end.
        let _ = to.write_all(&[&line[..], b"\n"].concat()).and_then(|()| to.flush());
    }
    failures
}
