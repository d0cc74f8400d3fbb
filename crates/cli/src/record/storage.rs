//! `--rotate`, `--keep`, `--snapshot-on` and `--trigger`: several recordings in a folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use backtrail_record::{Keep, NameSources, Requests, Storage};
use clap::{Args, ValueHint};
use rustix::process::{Pid, Signal, setpriority_process};

use crate::error::{Failure, say, shown};
use crate::name_sources;
use crate::times::{duration, measure};

/// What a snapshot has unless `--keep` says otherwise.
const DEFAULT_SNAPSHOT: Keep = Keep::Time(Duration::from_secs(30));
/// Recordings that may wait for their symbols; others go without.
const MOST_WAITING: usize = 64;

#[derive(Args)]
#[command(next_help_heading = "Several recordings")]
pub(crate) struct Division {
    /// Write a recording for each TIME (as 30s, 10min, 1h), one after the other, into the folder
    /// that -o names.
    #[arg(long, value_name = "TIME", value_parser = time)]
    rotate: Option<Duration>,
    /// Keep the recordings of the last TIME, or BYTES of them (as 500MB, 2GiB), and delete the
    /// oldest. With --snapshot-on or --trigger: keep that much in memory [default: everything, or
    /// 30s in memory].
    #[arg(long, value_name = "TIME|BYTES", value_parser = keep)]
    keep: Option<Keep>,
    /// Keep samples in memory, and write them into the folder that -o names when recording ends
    /// (exit), or when a signal arrives (SIGUSR1, SIGUSR2). Repeatable.
    #[arg(long, value_name = "exit|SIGNAL", value_parser = request, conflicts_with = "rotate")]
    snapshot_on: Vec<Request>,
    /// Keep samples in memory, and write them whenever COMMAND succeeds, which the shell runs
    /// again and again.
    #[arg(long, value_name = "COMMAND", conflicts_with = "rotate", value_hint = ValueHint::CommandString)]
    trigger: Option<OsString>,
    /// After each recording, when it has its names, have the shell run COMMAND, in which "$1" is
    /// the recording's directory.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    then: Option<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Exit,
    Signal(i32),
}

impl Division {
    pub(super) fn storage(&self) -> Result<Storage, Failure> {
        if let Some(every) = self.rotate {
            let keep = self.keep;
            return Ok(Storage::Rotation { every, keep });
        }
        let requests = Requests {
            exit: self.snapshot_on.contains(&Request::Exit),
            signal: self.snapshot_on.iter().find_map(|request| match request {
                Request::Signal(number) => Some(*number),
                Request::Exit => None,
            }),
            trigger: self.trigger.clone(),
        };
        let given = |request: &&Request| matches!(request, Request::Signal(number) if requests.signal != Some(*number));
        if self.snapshot_on.iter().any(|request| given(&request)) {
            return Err(Failure::new("--snapshot-on takes one signal"));
        }
        if requests != Requests::default() {
            let keep = self.keep.unwrap_or(DEFAULT_SNAPSHOT);
            return Ok(Storage::Snapshots { keep, requests });
        }
        let several = [("--keep", self.keep.is_some()), ("--then", self.then.is_some())];
        match several.iter().find(|(_, is_given)| *is_given) {
            None => Ok(Storage::Whole),
            Some((option, _)) => Err(Failure::new(format!("{option} is for several recordings"))
                .help("add --rotate TIME or --snapshot-on exit")),
        }
    }

    /// What is done with each recording that is complete.
    pub(super) fn finishing(&self, names: bool) -> Finishing {
        Finishing {
            work: Work {
                names,
                then: self.then.clone(),
                sampling_is_over: Arc::default(),
            },
            thread: None,
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let expected = || "not a time, as 500ms, 30s, 10min, 1h, 7d".to_owned();
    let time = duration(text).ok_or_else(expected)?;
    Some(time)
        .filter(|time| *time >= Duration::from_millis(1))
        .ok_or_else(expected)
}

/// The shortest time of calls, which may be very short.
pub(super) fn min_duration(text: &str) -> Result<Duration, String> {
    let expected = || "not a time, as 0s, 500ns, 250us, 1ms, 2s".to_owned();
    let is_zero = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) == "0";
    match is_zero {
        true => duration(&text.replacen('0', "1", 1)).map(|_| Duration::ZERO),
        false => duration(text),
    }
    .ok_or_else(expected)
}

/// A time or a number of bytes, with its unit.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    let expected = || "neither a time, as 30s, 10min, 1h, nor a size, as 500MB, 2GiB".to_owned();
    let (number, unit) = measure(text).ok_or_else(expected)?;
    let factor: f64 = match unit {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1_048_576.0,
        "G" | "GiB" => 1_073_741_824.0,
        "T" | "TiB" => 1_099_511_627_776.0,
        _ => return time(text).map(Keep::Time).map_err(|_| expected()),
    };
    match number * factor {
        bytes if (4096.0..1e18).contains(&bytes) => Ok(Keep::Bytes(bytes as u64)),
        _ => Err("less than 4 KiB, or more than any disk has".to_owned()),
    }
}

fn request(text: &str) -> Result<Request, String> {
    match text.strip_prefix("SIG").unwrap_or(text) {
        "exit" => Ok(Request::Exit),
        "USR1" => Ok(Request::Signal(Signal::USR1.as_raw())),
        "USR2" => Ok(Request::Signal(Signal::USR2.as_raw())),
        _ => Err("not exit, SIGUSR1 or SIGUSR2".to_owned()),
    }
}

/// Finishes recordings that are complete, one after the other, in processes of their own: their
/// memory is not the recorder's.
pub(super) struct Finishing {
    work: Work,
    thread: Option<(SyncSender<Written>, JoinHandle<()>)>,
}

/// What is done with a recording.
#[derive(Clone)]
struct Work {
    /// Whether it gets names.
    names: bool,
    /// The command that is run then.
    then: Option<OsString>,
    /// Whether there are no more samples that it may disturb.
    sampling_is_over: Arc<AtomicBool>,
}

impl Finishing {
    /// Finishes a recording soon, with names also from these sources.
    pub(super) fn add(&mut self, recording: &Path, sources: NameSources) {
        if !self.work.names && self.work.then.is_none() {
            return;
        }
        // Made here, so that it blocks the signals that the recorder collects.
        let (sender, _) = self.thread.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel(MOST_WAITING);
            let work = self.work.clone();
            (sender, thread::spawn(move || work.finish_all(&receiver)))
        });
        if sender.try_send((recording.to_owned(), sources)).is_err() {
            let place = shown(recording);
            say!("backtrail: warning: {place}: left as it is: {MOST_WAITING} earlier recordings are waiting");
        }
    }

    /// Waits until all are finished, when sampling is over.
    pub(super) fn finish(self) {
        self.work.sampling_is_over.store(true, Ordering::Relaxed);
        if let Some((sender, thread)) = self.thread {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// A complete recording, and what its names come from besides files with paths.
type Written = (PathBuf, NameSources);

impl Work {
    fn finish_all(&self, recordings: &Receiver<Written>) {
        for (recording, sources) in recordings {
            if self.names {
                warn(&recording, "no symbols were added", self.pack(&recording, &sources));
            }
            // It may have been deleted meanwhile, as the oldest one.
            if let Some(command) = self.then.as_ref().filter(|_| recording.exists()) {
                warn(
                    &recording,
                    "the command of --then failed",
                    self.then(command, &recording),
                );
            }
        }
    }

    /// Runs the command for a recording. Returns how it ended if it failed.
    fn then(&self, command: &OsStr, recording: &Path) -> io::Result<Option<String>> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).arg("sh").arg(recording);
        // Ctrl-C ends the recorder, which still waits for this.
        let mut child = shell.stdin(Stdio::null()).process_group(0).spawn()?;
        self.yield_to_samples(&child);
        let status = child.wait()?;
        Ok((!status.success()).then(|| status.to_string()))
    }

    /// Adds the names of one recording. Returns the reason if that fails.
    fn pack(&self, recording: &Path, sources: &NameSources) -> io::Result<Option<String>> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["pack", "--quiet", "--name-sources"]).arg(recording);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        self.yield_to_samples(&child);
        if let Some(stdin) = child.stdin.take() {
            // Without them, it finds fewer names.
            let _ = name_sources::write(sources, stdin);
        }
        let output = child.wait_with_output()?;
        let reason = || String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((!output.status.success()).then(reason))
    }

    /// Samples are more urgent, as long as there are any.
    fn yield_to_samples(&self, child: &Child) {
        const NICE: i32 = 10;
        if !self.sampling_is_over.load(Ordering::Relaxed) {
            // At worst, it takes time from others.
            let _ = setpriority_process(Pid::from_raw(child.id() as i32), NICE);
        }
    }
}

/// Reports a failure, unless the recording is gone.
fn warn(recording: &Path, what: &str, result: io::Result<Option<String>>) {
    let reason = match result {
        Ok(None) => return,
        Ok(Some(reason)) => reason,
        Err(error) => error.to_string(),
    };
    if recording.exists() {
        say!(
            "backtrail: warning: {}: {what}: {}",
            shown(recording),
            reason.trim_end()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let seconds = |text: &str| time(text).map(|time| time.as_secs_f64()).ok();
        for (text, expected) in [
            ("90", Some(90.0)),
            ("250ms", Some(0.25)),
            ("1.5min", Some(90.0)),
            ("2m", Some(120.0)),
            ("1h", Some(3600.0)),
            ("7d", Some(604_800.0)),
            ("30 s", Some(30.0)),
            ("0s", None),
            ("-1s", None),
            ("1y", None),
            ("s", None),
            ("", None),
            ("inf", None),
            ("1e300h", None),
            ("é", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
        assert_eq!(keep("2GiB"), Ok(Keep::Bytes(2 << 30)));
        assert_eq!(keep("1.5MB"), Ok(Keep::Bytes(1_500_000)));
        assert_eq!(keep("10min"), Ok(Keep::Time(Duration::from_secs(600))));
        assert!(keep("1B").is_err() && keep("9999999TiB").is_err() && keep("1XB").is_err());
        assert_eq!(request("SIGUSR2"), request("USR2"));
        assert!(request("SIGKILL").is_err());
    }
}
