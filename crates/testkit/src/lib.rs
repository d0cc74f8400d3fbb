//! Test programs, byte notation, and the tools that results are compared with.
//!
//! For tests, benchmarks and chores only: nothing that is shipped depends on it. It uses the
//! command line and the JSON of `backtrail`, as any script would, and none of the formats' own
//! code: it builds and reads everything by its own means.
//!
//! A thing that a machine lacks (a compiler, permission to sample) is [`Missing`], never a failure:
//! [`available`] turns it into a line that starts with `SKIPPED:`, written past the test runner's
//! capture so that nobody overlooks it.

pub mod browser;
pub mod command;
pub mod crashes;
pub mod debugger;
pub mod elf_file;
pub mod endings;
pub mod faults;
pub mod gdb_arguments;
pub mod guest;
pub mod lists;
pub mod lossy;
pub mod mounted;
pub mod objdump_types;
pub mod packages;
pub mod peers;
pub mod perf;
pub mod place;
pub mod program;
pub mod raw;
pub mod reached;
pub mod readers;
pub mod recorder;
pub mod stat;
pub mod text;
pub mod workload;

pub use tempfile::TempDir;

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// Something that this machine lacks, and what it was needed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The start of a line about a skipped test; `cargo xtask test` counts these lines.
pub const SKIPPED: &str = "SKIPPED:";

/// Waits until no other test, of any process, holds the lock of this name, and holds it until the
/// file is dropped.
///
/// # Panics
/// If the target directory cannot be written.
pub fn alone(name: &str) -> File {
    let file = lock_file(name);
    file.lock().expect("a local file can be locked");
    file
}

/// Waits until no other test, of any process, has the lock of this name for itself, and shares it
/// until the file is dropped.
///
/// # Panics
/// If the target directory cannot be written.
pub fn beside_others(name: &str) -> File {
    let file = lock_file(name);
    file.lock_shared().expect("a local file can be locked");
    file
}

fn lock_file(name: &str) -> File {
    let path = place::target().join(format!("{name}.lock"));
    File::create(path).expect("the target directory can be written")
}

/// The CPU time that the calling thread has used, which a busy machine does not change.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Reports that this test checks nothing here, and why.
///
/// The line goes to standard error directly: the test runner would keep back `eprintln!` if the
/// test passes.
pub fn skip(reason: impl fmt::Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    // If standard error is closed, there is nobody to report to.
    let _ = writeln!(std::io::stderr(), "\n{SKIPPED} {test}: {reason}");
}

/// The value, or a line that says what is skipped.
pub fn available<T>(wanted: Result<T, Missing>) -> Option<T> {
    wanted.inspect_err(|missing| skip(missing)).ok()
}

/// A temporary directory that is removed with the value.
///
/// # Panics
/// If it cannot be created: no test works without one.
pub fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("backtrail-")
        .tempdir()
        .expect("a temporary directory can be made")
}
