//! Whose files are read by a process without privileges.
//!
//! A recorder that runs as root should not interpret what any user puts into a file: a mistake in a
//! reader would then be that user's way to root. A program that can start workers passes them to
//! [`isolate`]; from then on, whoever makes tables or names of a file of another user
//! ([`FileBytes::foreign_owner`](crate::FileBytes::foreign_owner)) lets a worker do that. What ends
//! a worker costs the module that it was reading.

use std::fmt;
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// What a worker is to make of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Job {
    /// The unwind table of a module.
    Table = 1,
    /// The names of addresses.
    Names = 2,
}

impl Job {
    /// The job with this number.
    pub fn of(number: u8) -> Option<Job> {
        [Job::Table, Job::Names].into_iter().find(|job| *job as u8 == number)
    }
}

/// Why there is no answer from a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lost {
    /// The worker ended while it read the file.
    Ended,
    /// It needed more memory than it may have.
    Memory,
    /// It took too long, or files of this user have taken too long already.
    Late,
    /// No worker could be started, or its answer makes no sense.
    Unavailable,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Ended => "the isolated process that read the file crashed",
            Lost::Memory => "the isolated process that read the file ran out of memory",
            Lost::Late => "the isolated process did not finish reading the file in time",
            Lost::Unavailable => "no isolated process could be started to read the file of another user",
        })
    }
}

impl std::error::Error for Lost {}

/// Processes without privileges that read files.
pub trait Isolate: Send + Sync {
    /// Passes open files to a worker that reads files of this user only, and returns its answer.
    ///
    /// # Errors
    /// If the worker does not survive the files.
    fn ask(&self, owner: u32, job: Job, files: &[&File], request: &[u8]) -> Result<Vec<u8>, Lost>;
}

static WORKERS: OnceLock<Box<dyn Isolate>> = OnceLock::new();

/// Lets these workers read the files of other users, from now on and in all of this process. Only
/// the first call has an effect.
pub fn isolate(workers: Box<dyn Isolate>) {
    let _ = WORKERS.set(workers);
}

/// Asks a worker.
///
/// # Errors
/// If no worker can be started, or it does not survive the files.
pub fn ask(owner: u32, job: Job, files: &[&File], request: &[u8]) -> Result<Vec<u8>, Lost> {
    let workers = WORKERS.get().ok_or(Lost::Unavailable)?;
    workers.ask(owner, job, files, request)
}

/// The user who decides what is in a file, if that is neither this process's user nor root, and
/// there are workers.
pub(crate) fn foreign_owner(metadata: &Metadata, file: &File) -> Option<u32> {
    const OTHERS_WRITE: u32 = 0o002;
    WORKERS.get()?;
    let owner = metadata.uid();
    let is_ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if is_ours && metadata.mode() & OTHERS_WRITE == 0 && !is_fuse(metadata, file) {
        return None;
    }
    Some(if is_ours { ANYBODY } else { owner })
}

/// Stands for everybody who can write to a file, and for whoever runs a file system.
const ANYBODY: u32 = u32::MAX;

/// A user's own file system states any owner.
fn is_fuse(metadata: &Metadata, file: &File) -> bool {
    const FUSE: u64 = 0x6573_5546;
    rustix::fs::major(metadata.dev()) == 0
        && rustix::fs::fstatfs(file.as_fd()).is_ok_and(|status| status.f_type as u64 & 0xffff_ffff == FUSE)
}
