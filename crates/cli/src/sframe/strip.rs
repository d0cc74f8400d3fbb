//! `backtrail sframe strip`: the file without a table.

use std::path::PathBuf;

use backtrail_elf::edit;
use clap::{Args, ValueHint};

use super::{add, input};
use crate::error::{Failure, Status};

/// Take the table out of an executable or shared library: its section and its segment.
///
/// What 'sframe add' did is undone to the byte.
#[derive(Args)]
pub(crate) struct Strip {
    /// An executable or shared library.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where to; without it, FILE itself is replaced.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Strip) -> Result<Status, Failure> {
    let path = &arguments.file;
    let file = input::open(path)?;
    let stripped = edit::remove_table(file.bytes()).map_err(|error| Failure::of(path, error))?;
    match (stripped, &arguments.output) {
        (Some(stripped), output) => add::store(path, output.as_deref(), |out| stripped.write_to(out))?,
        (None, None) => eprintln!("{}: has no table", path.display()),
        (None, Some(output)) => {
            eprintln!("{}: has no table", path.display());
            add::store(path, Some(output), |out| out.write_all(file.bytes()))?;
        }
    }
    Ok(Status::Done)
}
