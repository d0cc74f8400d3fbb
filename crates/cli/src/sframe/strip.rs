//! `backtrail sframe strip`: removes the table from the file.

use std::fs::File;
use std::path::{Path, PathBuf};

use backtrail_elf::{FileBytes, Image, Kind, edit};
use clap::{Args, ValueHint};

use super::{input, objects};
use crate::edited::{self, Names};
use crate::error::{Failure, Status, shown};
use crate::replacement::Durable;

/// Remove the table, its section and its segment from an executable or shared library, or the
/// tables from an object file or an archive.
///
/// What 'sframe add' did to a linked file is undone to the byte: a table of the linker that it
/// replaced is back.
#[derive(Args)]
pub(crate) struct Strip {
    /// An executable, shared library, object file or archive of object files.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write the result to OUT [default: replace FILE].
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Strip) -> Result<Status, Failure> {
    let (path, output) = (&arguments.file, arguments.output.as_deref());
    let (source, file) = input::open_both(path)?;
    if !strip(path, &source, &file, output)? {
        crate::error::say!("{}: has no table", shown(path));
        if output.is_some() {
            edited::store(path, output, Names::One, |out| out.write_all(file.bytes()))?;
        }
    }
    Ok(Status::Done)
}

/// Stores the file without its tables; `false` if it has none.
fn strip(path: &Path, source: &File, file: &FileBytes, output: Option<&Path>) -> Result<bool, Failure> {
    if input::is_archive(file) {
        return objects::strip_archive(path, file.bytes(), output);
    }
    let image = Image::of(file).map_err(|error| Failure::of(path, error))?;
    if image.kind() == Kind::Relocatable {
        return match objects::strip_object(path, file.bytes())? {
            Some(stripped) => edited::store(path, output, Names::One, |out| stripped.write_to(out)).map(|()| true),
            None => Ok(false),
        };
    }
    let Some(stripped) = edit::remove_table(file).map_err(|error| Failure::of(path, error))? else {
        return Ok(false);
    };
    let replacement = edited::begin(
        path,
        output,
        Durable::Yes,
        source,
        stripped.len().min(file.len() as u64),
    )?;
    edited::store_edited(replacement, path, output, source, &stripped, Names::One).map(|()| true)
}
