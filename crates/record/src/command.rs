//! The subject of a recording: a command started for it, or processes that already run.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use backtrail_process::sys::SignalSource;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, kill_process, pidfd_open};

use crate::{Error, Machine, Target};

/// The recorded programs, from the recorder's side.
pub(crate) enum Subject {
    /// A command that we started.
    Command {
        child: Child,
        status: Option<ExitStatus>,
        /// Whether its file changes the user or the group.
        has_set_id: bool,
    },
    /// Processes that are only watched: their descriptors become readable when they end.
    Processes(Vec<OwnedFd>),
    /// Whatever runs, until somebody ends the recording.
    Machine,
}

impl Subject {
    /// Waits until a command ends, and forwards signals meanwhile; says before whether it must.
    pub(crate) fn wait(&mut self, signals: &SignalSource, says: impl FnOnce()) {
        if let Subject::Processes(_) | Subject::Machine = self {
            return;
        }
        if !self.ended() {
            says();
        }
        while !self.ended() {
            let mut ready = [PollFd::new(signals, PollFlags::IN)];
            let _ = poll(&mut ready, None);
            while let Some(signal) = signals.next() {
                if signal.sent && signal.number != libc::SIGCHLD {
                    self.forward(signal.number);
                }
            }
        }
    }

    /// Starts the command, or finds the processes. Events that this thread has opened for its next
    /// child start to count when the command is executed. A silent command has no input, and its
    /// output is discarded.
    pub(crate) fn begin(target: &Target, silent: bool) -> Result<Subject, Error> {
        match target {
            Target::Machine(Machine { command, .. }) if command.is_empty() => Ok(Subject::Machine),
            Target::Command(words) | Target::Machine(Machine { command: words, .. }) => {
                let (program, arguments) = words.split_first().ok_or_else(|| Error::Command {
                    name: String::new(),
                    error: io::Error::from(io::ErrorKind::InvalidInput),
                })?;
                let mut command = Command::new(program);
                command.args(arguments);
                if silent {
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                }
                let child = command.spawn().map_err(|error| Error::Command {
                    name: program.to_string_lossy().into_owned(),
                    error,
                })?;
                Ok(Subject::Command {
                    child,
                    status: None,
                    has_set_id: has_set_id(program),
                })
            }
            Target::Processes(pids) => {
                let open = |&pid: &i32| {
                    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
                    Ok(pidfd_open(pid, PidfdFlags::empty())?)
                };
                let descriptors: io::Result<Vec<OwnedFd>> = pids.iter().map(open).collect();
                descriptors.map(Subject::Processes).map_err(Error::Processes)
            }
        }
    }

    /// Whether the command runs with other privileges than its user's.
    pub(crate) fn has_set_id(&self) -> bool {
        matches!(self, Subject::Command { has_set_id: true, .. })
    }

    /// Descriptors that become readable when a process ends. The end of a command is reported by
    /// SIGCHLD.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        match self {
            Subject::Command { .. } | Subject::Machine => [].iter(),
            Subject::Processes(descriptors) => descriptors.iter(),
        }
        .map(|descriptor| descriptor.as_fd())
    }

    /// Whether all have ended.
    pub(crate) fn ended(&mut self) -> bool {
        match self {
            Subject::Command { child, status, .. } => {
                if status.is_none() {
                    *status = child.try_wait().ok().flatten();
                }
                status.is_some()
            }
            Subject::Processes(descriptors) => {
                descriptors.retain(|descriptor| !is_readable(descriptor));
                descriptors.is_empty()
            }
            Subject::Machine => false,
        }
    }

    /// Forwards a signal to the command; processes that are only watched do not get it.
    pub(crate) fn forward(&self, number: i32) {
        if let Subject::Command {
            child, status: None, ..
        } = self
            && let Some(signal) = Signal::from_named_raw(number)
            && let Some(pid) = Pid::from_raw(child.id() as i32)
        {
            // It may just have ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// The command's exit status as a shell reports it, once it has ended; 0 without a command.
    pub(crate) fn exit_status(&self) -> i32 {
        match self {
            Subject::Command {
                status: Some(status), ..
            } => match (status.code(), status.signal()) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                (None, None) => 0,
            },
            _ => 0,
        }
    }
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut wait = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut wait, Some(&now)), Ok(ready) if ready > 0)
}

/// Whether a program changes the user or the group that runs it, or may not be read by us. The
/// kernel lets only root sample these.
fn has_set_id(program: &OsStr) -> bool {
    const SET_IDS: u32 = 0o6000;
    let named = Path::new(program);
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = vec![named.to_owned()];
    if named.components().count() == 1 {
        candidates = env::split_paths(&folders).map(|folder| folder.join(named)).collect();
    }
    let found = candidates
        .iter()
        .find_map(|candidate| Some((candidate, fs::metadata(candidate).ok()?)));
    let is_secret = |path: &Path| access(path, Access::READ_OK).is_err();
    found.is_some_and(|(path, file)| file.is_file() && (file.mode() & SET_IDS != 0 || is_secret(path)))
        && !geteuid().is_root()
}
