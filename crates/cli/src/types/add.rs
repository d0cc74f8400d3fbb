//! `backtrail types add`: adds types to the file.

use std::path::{Path, PathBuf};

use backtrail_args::table::{SECTION, Table};
use backtrail_debuginfo::arguments::checksum;
use backtrail_elf::{Image, edit};
use clap::{Args, ValueHint};

use super::build::{self, Making, NeedsFile};
use super::input;
use crate::edited::{self, Names};
use crate::error::{Failure, Status, shown};
use crate::limits::Limits;

/// Add a section of types to an executable or shared library, by linking the .ctf sections that its
/// linker only concatenated, or from debug information.
///
/// Nothing that is loaded changes. The file is replaced once everything is written.
#[derive(Args)]
pub(crate) struct Add {
    /// An executable or shared library.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write the result to OUT [default: replace FILE].
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    limits: Limits,
}

pub(crate) fn run(arguments: &Add) -> Result<Status, Failure> {
    arguments.limits.set();
    add(&arguments.file, arguments.output.as_deref(), &arguments.making)?;
    Ok(Status::Done)
}

/// Adds types to a linker's output, in place.
pub(crate) fn after_linking(path: &Path) -> Result<(), Failure> {
    add(path, None, &Making::quietly())
}

fn add(path: &Path, output: Option<&Path>, making: &Making) -> Result<(), Failure> {
    let file = input::open(path)?;
    let image = Image::of(&file).map_err(|error| Failure::of(path, error))?;
    let section = section(path, &image, making)?;
    let edited = edit::set_section(file.bytes(), ".ctf", &section).map_err(|error| Failure::of(path, error))?;
    edited::store(path, output, Names::One, |out| edited.write_to(out))?;
    if has_other_arguments(&image, &section) {
        let shown = shown(output.unwrap_or(path));
        crate::error::say!("backtrail: warning: {shown}: the table of arguments is for other types and no longer used");
        crate::error::say!("help: run `backtrail sframe add --args {shown}`");
    }
    Ok(())
}

/// Whether the file has a table of arguments that refers to other types than these.
fn has_other_arguments(image: &Image<'_>, types: &[u8]) -> bool {
    let section = image.section(SECTION).ok().flatten();
    section.is_some_and(|section| {
        let table = Table::parse(&section.data, image.endian());
        table.is_ok_and(|table| table.types() != checksum(types))
    })
}

/// The types for a file: linked from .ctf sections that its linker only concatenated, or made from
/// debug information.
fn section(path: &Path, image: &Image<'_>, making: &Making) -> Result<Vec<u8>, Failure> {
    let section = match build::from_input_sections(path, image, making)? {
        Some(section) => Some(section),
        None => build::from_debug_information(path, image, NeedsFile::Yes, making)?,
    };
    section.ok_or_else(|| build::no_debug_information(path))
}

/// The types for a file that has none, including the types of arguments in languages other than C.
pub(crate) fn section_quietly(path: &Path, image: &Image<'_>) -> Result<Vec<u8>, Failure> {
    section(path, image, &Making::for_arguments())
}

/// The types for a file whose types are those of `types add`, with the types of arguments in
/// languages other than C, which those lack. `None` if its types are others, such as a compiler's.
pub(crate) fn with_types_of_arguments(
    path: &Path,
    image: &Image<'_>,
    present: &[u8],
) -> Result<Option<Vec<u8>>, Failure> {
    let made = build::silently(path, image, NeedsFile::Yes, &Making::quietly())?;
    if made.is_none_or(|(section, _)| section != present) {
        return Ok(None);
    }
    let made = build::silently(path, image, NeedsFile::Yes, &Making::for_names_and_arguments())?;
    Ok(made.map(|(section, _)| section))
}
