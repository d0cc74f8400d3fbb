//! Permission to sample, and `perf`, which recordings are compared with.

use std::path::Path;
use std::process::Command;
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
    let mut script = Command::new("perf");
    script
        .args(["script", "--no-inline", "--max-stack", "20000", "-F", "ip,sym", "-i"])
        .arg(data);
    Ok(count(&command::run(&mut script, Duration::from_secs(900))?.stdout))
}

fn count(script: &str) -> Stacks {
    let mut stacks = Stacks::default();
    for stack in script.split("\n\n").filter(|stack| !stack.trim().is_empty()) {
        stacks.samples += 1;
        // In a stripped program `_start` itself has no name; the C library's part of the start,
        // just before it, has.
        stacks.complete += u64::from(stack.trim_end().lines().rev().take(2).any(is_start));
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
            count(script),
            Stacks {
                samples: 4,
                complete: 2
            }
        );
        assert_eq!(count(""), Stacks::default());
    }
}
