//! Cargo's and other programs' runs, with their output.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use backtrail_testkit::SKIPPED;

pub(crate) fn cargo_in(folder: &Path, arguments: &[&str]) -> Command {
    println!("cargo {}", arguments.join(" "));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(folder);
    cargo
}

/// Runs a command, shows its output, and counts what was skipped.
pub(crate) fn pass_on_both(command: &mut Command, skipped: &AtomicUsize) -> Result<(), String> {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("it can't be started: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| pass_on(stderr, io::stderr(), skipped));
        pass_on(stdout, io::stdout(), skipped);
    });
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(status.to_string())
    }
}

pub(crate) fn pass_on(from: Option<impl Read>, mut to: impl Write, skipped: &AtomicUsize) {
    let Some(from) = from else { return };
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if line.windows(SKIPPED.len()).any(|part| part == SKIPPED.as_bytes()) {
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        // If nobody reads the output any more, the tests still run to their end.
        let _ = to.write_all(&[&line[..], b"\n"].concat()).and_then(|()| to.flush());
    }
}
