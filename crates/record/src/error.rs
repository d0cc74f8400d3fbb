//! Errors of a recording.

use std::fmt;
use std::io;
use std::path::PathBuf;

use backtrail_process::perf::OpenError;
use backtrail_recording::{CreateError, WriteError, is_occupied};

/// Why a recording did not begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel does not permit sampling.
    Sampling(OpenError),
    /// The command could not be started.
    Command {
        /// Its name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// A control group cannot be opened.
    Group {
        /// Its directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The folder of several recordings cannot be used.
    Folder {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The trace could not be created.
    Create(CreateError),
    /// The machine does not provide the facts that a trace must contain.
    Environment(io::Error),
    /// The processes could not be watched.
    Processes(io::Error),
    /// Signals could not be collected.
    Signals(io::Error),
}

impl Error {
    /// What the user can do.
    pub fn help(&self) -> Option<String> {
        match self {
            Error::Sampling(error) => error.help().map(str::to_owned),
            Error::Create(error) if is_occupied(error) => {
                Some("choose another directory with -o, or remove this one".to_owned())
            }
            Error::Folder { error, .. } if error.kind() == io::ErrorKind::WouldBlock => {
                Some("choose another folder with -o, or end the other recorder".to_owned())
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sampling(error) => error.fmt(f),
            Error::Command { name, error } => match error.kind() {
                io::ErrorKind::NotFound => write!(f, "{name}: command not found"),
                _ => write!(f, "{name}: cannot be started: {error}"),
            },
            Error::Group { path, error } => write!(f, "{}: cgroup cannot be opened: {error}", path.display()),
            Error::Folder { path, error } => match error.kind() {
                io::ErrorKind::WouldBlock => write!(f, "{}: another recorder writes to this folder", path.display()),
                _ => write!(f, "{}: {error}", path.display()),
            },
            Error::Create(error) => error.fmt(f),
            Error::Environment(error) => write!(f, "the machine's identity cannot be read: {error}"),
            Error::Processes(error) => write!(f, "the processes cannot be watched: {error}"),
            Error::Signals(error) => write!(f, "signals cannot be collected: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Why a recording ended early. Everything recorded until then can be read.
#[derive(Clone, Debug)]
pub struct Incomplete {
    /// What could not be written, and why.
    pub reason: String,
}

impl Incomplete {
    pub(crate) fn new(error: &WriteError) -> Self {
        Incomplete {
            reason: error.to_string(),
        }
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; recording ended there, what was written before is whole",
            self.reason
        )
    }
}
