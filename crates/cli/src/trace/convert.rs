//! `backtrail trace convert`.

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_trace::{Dialect, Trace, convert, find_traces};
use clap::{Args, ValueEnum, ValueHint};

use super::failure;
use crate::error::{Failure, Status};

/// Write a trace in another dialect: CTF 1.8 as CTF 2, or the other way round.
///
/// Both have the same streams, which are copied byte for byte; the metadata is written anew.
#[derive(Args)]
pub(crate) struct Convert {
    /// Directory of a trace, or with traces somewhere below.
    #[arg(value_name = "TRACE", value_hint = ValueHint::DirPath)]
    trace: PathBuf,
    /// Directory to make; what has several traces gets the same directories below.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::DirPath)]
    output: PathBuf,
    /// Dialect to write.
    #[arg(long)]
    to: Target,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    #[value(name = "1.8")]
    V1_8,
    #[value(name = "2")]
    V2,
}

impl From<Target> for Dialect {
    fn from(target: Target) -> Dialect {
        match target {
            Target::V1_8 => Dialect::V1_8,
            Target::V2 => Dialect::V2,
        }
    }
}

pub(crate) fn run(arguments: &Convert) -> Result<Status, Failure> {
    let output = &arguments.output;
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::of(output, "directory is not empty"));
    }
    let directories = find_traces(&arguments.trace).map_err(Failure::new)?;
    // Beside it, so that it appears whole or not at all.
    let parent = output.parent().filter(|parent| *parent != Path::new(""));
    let scratch = tempfile::Builder::new()
        .prefix(".backtrail-")
        .tempdir_in(parent.unwrap_or(Path::new(".")))
        .map_err(|error| Failure::of(output, error))?;
    let whole = scratch.path().join("trace");
    for directory in directories {
        let trace = Trace::open(&directory).map_err(|error| failure(&error))?;
        let below = directory.strip_prefix(&arguments.trace).unwrap_or(Path::new(""));
        let target = whole.join(below);
        fs::create_dir_all(&target).map_err(|error| Failure::of(output, error))?;
        convert(&trace, &target, arguments.to.into()).map_err(|error| Failure::of(&directory, &error.kind))?;
    }
    fs::rename(&whole, output).map_err(|error| Failure::of(output, error))?;
    Ok(Status::Done)
}
