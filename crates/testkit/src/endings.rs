//! Recordings that end badly: what was written before must be readable.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::command::{self, Finished, Signal};
use crate::recorder::{Backtrail, bytes_in};
use crate::{Missing, program, scratch};

const LIMIT: Duration = Duration::from_secs(120);

/// A program that works for some seconds.
///
/// # Errors
/// [`Missing`] without a C compiler.
pub fn worker() -> Result<PathBuf, Missing> {
    program::SPIN.build()
}

/// Kills the recorder this long after its start. Everything that was in the trace then must be
/// there, and valid.
///
/// # Errors
/// What is wrong.
pub fn killed(backtrail: &Backtrail, program: &Path, after: Duration) -> Result<(), String> {
    let folder = scratch();
    let trace = folder.path().join("trace");
    let spin = [program.as_os_str(), "30".as_ref()];
    let running = command::start(&mut backtrail.record(&trace, &["-F", "5000"], &spin), LIMIT);
    let running = running.map_err(|missing| missing.to_string())?;
    sleep(after);
    let before = bytes_in(&trace);
    running.signal(Signal::KILL);
    sleep(Duration::from_millis(20));
    running.signal_group(Signal::KILL);
    running.finish();
    let bytes = bytes_in(&trace);
    if bytes < before {
        return Err(format!("{before} bytes were written, and {bytes} are left"));
    }
    valid(backtrail, &trace)
}

/// Records into a file system of this size.
///
/// # Errors
/// What is wrong; `Ok(None)` if no file system can be mounted here.
pub fn full(backtrail: &Backtrail, program: &Path, kibibytes: u32) -> Result<Option<()>, String> {
    let Some(disk) = SmallDisk::new(kibibytes) else {
        return Ok(None);
    };
    let trace = disk.path().join("trace");
    let spin = [program.as_os_str(), "0.4".as_ref()];
    let done = command::run(&mut backtrail.record(&trace, &["-F", "5000"], &spin), LIMIT);
    let done = done.map_err(|missing| missing.to_string());
    done.and_then(|done| {
        let is_full = done.stderr.contains("No space left on device");
        let lines = done.stderr.lines().count();
        if done.timed_out || done.stderr.contains("panicked") || lines > 2 || (lines > 0 && !is_full) {
            return Err(format!("{kibibytes} KiB: {}", done.describe()));
        }
        match trace.join("metadata").exists() {
            true => valid(backtrail, &trace),
            // Nothing was recorded.
            false => Ok(()),
        }
    })
    .map(Some)
}

/// A file system in memory that is soon full. It ends with this value.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// One of this size; `None` if none can be mounted here.
    pub fn new(kibibytes: u32) -> Option<SmallDisk> {
        let disk = SmallDisk { folder: scratch() };
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={kibibytes}k"));
        let mounted = command::run(mount.arg("none").arg(disk.path()), LIMIT);
        mounted.is_ok_and(|mounted| mounted.code() == 0).then_some(disk)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = command::run(Command::new("umount").arg("-l").arg(self.path()), LIMIT);
    }
}

/// Stops the recorder for a while, which loses samples but nothing else.
///
/// # Errors
/// What is wrong.
pub fn stopped(backtrail: &Backtrail, program: &Path) -> Result<(), String> {
    let folder = scratch();
    let trace = folder.path().join("trace");
    let spin = [program.as_os_str(), "3".as_ref()];
    let running = command::start(&mut backtrail.record(&trace, &[], &spin), LIMIT);
    let running = running.map_err(|missing| missing.to_string())?;
    for _ in 0..3 {
        sleep(Duration::from_millis(400));
        running.signal(Signal::STOP);
        sleep(Duration::from_millis(400));
        running.signal(Signal::CONT);
    }
    let done = running.finish();
    if done.code() != 0 {
        return Err(done.describe());
    }
    valid(backtrail, &trace)
}

/// A trace that was begun must be valid, and a report of it must be possible.
fn valid(backtrail: &Backtrail, trace: &Path) -> Result<(), String> {
    if !trace.join("metadata").exists() {
        return Ok(());
    }
    for verb in [&["trace", "check"][..], &["report"]] {
        let mut check = backtrail.command(verb);
        let done: Finished = command::run(check.arg(trace), LIMIT).map_err(|missing| missing.to_string())?;
        // There may be no sample yet.
        let is_empty = verb[0] == "report" && done.stderr.contains("no sample");
        if done.code() != 0 && !is_empty {
            return Err(done.describe());
        }
    }
    Ok(())
}
