//! `backtrail sframe strip`: the file without a table.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use backtrail_elf::{Image, Kind, archive, edit};
use clap::{Args, ValueHint};

use super::{add, input, objects};
use crate::error::{Failure, Status, shown};

/// Take the table out of an executable or shared library, its section and its segment, or the tables out of an object file or an archive.
///
/// What 'sframe add' did to a linked file is undone to the byte.
#[derive(Args)]
pub(crate) struct Strip {
    /// An executable, shared library, object file or archive of object files.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where to; without it, FILE itself is replaced.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Strip) -> Result<Status, Failure> {
    let path = &arguments.file;
    let file = input::open(path)?;
    if archive::is_archive(file.bytes()) {
        return objects::strip_archive(path, file.bytes(), arguments.output.as_deref());
    }
    let kind = Image::parse(file.bytes())
        .map_err(|error| Failure::of(path, error))?
        .kind();
    if kind == Kind::Relocatable {
        return objects::strip_object(path, file.bytes(), arguments.output.as_deref());
    }
    let stripped = edit::remove_table(file.bytes()).map_err(|error| Failure::of(path, error))?;
    let write = stripped.map(|stripped| move |out: &mut dyn Write| stripped.write_to(out));
    store(path, file.bytes(), arguments.output.as_deref(), write)
}

/// Stores what is left, or where nothing was taken out, says so and stores what there was.
pub(super) fn store(
    path: &Path,
    before: &[u8],
    output: Option<&Path>,
    write: Option<impl FnOnce(&mut dyn Write) -> io::Result<()>>,
) -> Result<Status, Failure> {
    match write {
        Some(write) => add::store(path, output, write)?,
        None => {
            eprintln!("{}: has no table", shown(path));
            if output.is_some() {
                add::store(path, output, |out| out.write_all(before))?;
            }
        }
    }
    Ok(Status::Done)
}
