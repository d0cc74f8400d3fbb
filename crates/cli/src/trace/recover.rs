//! `backtrail trace recover`.

use std::path::PathBuf;

use backtrail_tracer::collect::recover;
use clap::{Args, ValueHint};

use crate::error::{Failure, Status};

/// Write the events that killed programs left in their rings.
///
/// In a directory that programs stream to, their traces become complete. For the file of a flight
/// recorder, or of a snapshot at a crash, the trace is FILE.trace.
#[derive(Args)]
pub(crate) struct Recover {
    /// Directories that programs stream to, or files of flight recorders.
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &Recover) -> Result<Status, Failure> {
    for path in &arguments.paths {
        recover(path).map_err(|error| Failure::of(path, error))?;
    }
    Ok(Status::Done)
}
