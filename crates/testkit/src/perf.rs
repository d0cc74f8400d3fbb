//! Permission to sample, and `perf`, which recordings are compared with.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Missing, command, program};

/// Checks that this user, in this container, may sample its own processes.
///
/// Uses a small program of its own, not `backtrail`: a recorder that always fails must not look
/// like a machine that forbids sampling.
///
/// # Errors
/// [`Missing`] with the kernel's answer.
pub fn sampling_permitted() -> Result<(), Missing> {
    let probe = program::PERF_PROBE.build()?;
    let finished = command::run(&mut Command::new(probe), Duration::from_secs(20))?;
    if finished.status.success() {
        Ok(())
    } else {
        Err(Missing(format!(
            "sampling is not permitted here: {}",
            finished.stdout.trim()
        )))
    }
}

/// `perf record` at the software clock, not yet started; `call_graph` as perf has it, or none.
pub fn record(data: &Path, frequency: u32, call_graph: Option<&str>, recorded: &[String]) -> Command {
    let mut command = Command::new("perf");
    command
        .args(["record", "-q", "-e", "cpu-clock", "-F", &frequency.to_string(), "-o"])
        .arg(data);
    if let Some(form) = call_graph {
        command.args(["--call-graph", form]);
    }
    command.arg("--").args(recorded);
    command
}

/// The output of `perf script` for a perf.data file, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Samples.
    pub samples: u64,
    /// Those whose outermost frame is a program's or a thread's start.
    pub complete: u64,
}

/// The functions in which stacks begin, in the C library and in the dynamic loader.
const STARTS: [&str; 8] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "_dl_start_user",
    "__clone",
    "__clone3",
    "clone",
    "clone3",
];

/// Counts the samples of a perf.data file and those with a complete stack, as unwound by perf.
///
/// # Errors
/// [`Missing`] if there is no perf.
pub fn stacks(data: &Path) -> Result<Stacks, Missing> {
    let mut script = Command::new("timeout");
    script
        .args(["900", "perf", "script"])
        .args(["--no-inline", "--max-stack", "20000", "-F", "ip,sym", "-i"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let missing = |error: io::Error| Missing(format!("perf script: {error}"));
    let mut script = script.spawn().map_err(missing)?;
    let lines = script.stdout.take().map(|output| BufReader::new(output).split(b'\n'));
    let lines = lines.into_iter().flatten().map_while(Result::ok);
    // Where perf goes round in a loop, each stack has twenty thousand lines.
    let stacks = count(lines.map(|line| String::from_utf8_lossy(&line).into_owned()));
    match script.wait().map_err(missing)?.code() {
        Some(127) => Err(Missing("there is no perf".to_owned())),
        _ => Ok(stacks),
    }
}

/// An empty line ends a stack.
fn count(lines: impl Iterator<Item = String>) -> Stacks {
    let mut stacks = Stacks::default();
    // In a stripped program `_start` itself has no name; the C library's part of the start, just
    // before it, has.
    let mut outermost: [Option<String>; 2] = [None, None];
    for line in lines.chain([String::new()]) {
        if !line.trim().is_empty() {
            outermost = [outermost[1].take(), Some(line)];
        } else if outermost[1].is_some() {
            stacks.samples += 1;
            stacks.complete += u64::from(outermost.iter().flatten().any(|line| is_start(line)));
            outermost = [None, None];
        }
    }
    stacks
}

/// Whether a line `ADDRESS NAME` is in a function in which stacks begin.
fn is_start(line: &str) -> bool {
    let symbol = line.split_whitespace().nth(1).unwrap_or("");
    // `__libc_start_main@@GLIBC_2.34`, `clone3+0x2c`
    let name = symbol.split(['@', '+']).next().unwrap_or("");
    STARTS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_complete_where_they_reach_a_start() {
        let script = "\t  293870 leaf\n\t  1 main\n\t  2 __libc_start_main@@GLIBC_2.34\n\t  3 _start\n\n\t  5 leaf\n\t 6 middle\n\n\
                      \t 7 work\n\t 8 start_thread\n\t 9 clone3\n\n\t ffff [unknown]\n\n";
        assert_eq!(
            count(script.lines().map(str::to_owned)),
            Stacks {
                samples: 4,
                complete: 2
            }
        );
        assert_eq!(count(std::iter::empty()), Stacks::default());
    }
}
