//! `backtrail sframe add`: adds the table to the file.

use std::fs::File;
use std::path::{Path, PathBuf};

use backtrail_cfi::whole::Whole;
use backtrail_debuginfo::arguments::ArgumentTable;
use backtrail_elf::edit::{self, Edited, Source};
use backtrail_elf::{FileBytes, Image, Kind};
use backtrail_sframe::write::{Options, WriteError};
use clap::{Args, ValueHint};

use super::added::{Added, How, NO_FUNCTIONS};
use super::args::WithArguments;
use super::build::{self, Layout};
use super::{args, input, objects};
use crate::error::{Failure, Status};
use crate::limits::Limits;
use crate::replacement::Durable;
use crate::{edited, output};

/// Add a table, made from .eh_frame, to an executable, shared library or object file, or to those
/// in an archive.
///
/// An existing table is replaced, but rows of code that .eh_frame does not describe are kept. In a
/// linked file nothing that is loaded changes its address. Object files get what an assembler would
/// have written, for linkers to merge. The file is replaced once everything is written; processes
/// that run it are not disturbed.
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Add {
    /// An executable, shared library, object file or archive of object files.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write the result to OUT [default: replace FILE].
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    layout: Layout,
    /// Give an object file one table for all its functions, as GNU as does, instead of one for each
    /// section group (COMDAT) and one for the rest. lld cannot link such files; GNU ld 2.47 drops
    /// more unused functions of groups from them.
    #[arg(long)]
    one_table: bool,
    #[command(flatten)]
    arguments: WithArguments,
    #[command(flatten)]
    limits: Limits,
    /// Print no summary; what was left out is still reported.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Add) -> Result<Status, Failure> {
    arguments.limits.set();
    let options = |image: &Image<'_>| arguments.layout.options(image);
    let how = How {
        options: &options,
        one_table: arguments.one_table,
        args: arguments.arguments.places(),
        durable: Durable::Yes,
    };
    let added = add(&arguments.file, arguments.output.as_deref(), &how)?;
    if !arguments.quiet {
        added.summary.tell(arguments.layout.version());
        if let Some(made) = &added.arguments {
            tell_arguments(made)?;
        }
    }
    for (whose, built) in &added.parts {
        build::left_out(whose, built);
    }
    Ok(Status::Done)
}

fn tell_arguments(made: &ArgumentTable) -> Result<(), Failure> {
    let (functions, calls, debug) = (made.functions, made.calls, made.debug);
    let bytes = made.bytes.len();
    output::to_stdout(|out| {
        writeln!(
            out,
            "arguments of {functions} functions at {calls} calls: {bytes} bytes, from {debug} bytes of debug information"
        )
    })
}

/// Adds the table to the file at `path`, in place if there is no `output`.
pub(crate) fn add(path: &Path, output: Option<&Path>, how: &How<'_>) -> Result<Added, Failure> {
    let (source, file) = input::open_both(path)?;
    if how.args.is_some() && input::is_archive(&file) {
        return Err(
            Failure::of(path, "object files of an archive get no tables of arguments")
                .help("add it to what is linked from them"),
        );
    }
    if input::is_archive(&file) {
        return objects::add_to_archive(path, file.bytes(), output, how);
    }
    let image = Image::of(&file).map_err(|error| Failure::of(path, error))?;
    if how.args.is_some() && image.kind() == Kind::Relocatable {
        let what = "an object file gets no table of arguments: addresses in it are not known yet";
        return Err(Failure::of(path, what).help("add it to what is linked from it"));
    }
    match image.kind() {
        Kind::Relocatable => objects::add_to_object(path, image, output, how),
        Kind::Core => Err(Failure::of(path, "a core file has no code of its own")),
        Kind::Executable | Kind::Shared if how.args.is_some() => add_with_arguments(path, &image, output, how),
        Kind::Executable | Kind::Shared => add_to_linked(path, (&source, &file), &image, output, how),
    }
}

fn add_to_linked(
    path: &Path,
    (source, file): (&File, &FileBytes),
    image: &Image<'_>,
    output: Option<&Path>,
    how: &How<'_>,
) -> Result<Added, Failure> {
    let replacement = edited::begin(path, output, how.durable, source, file.len() as u64)?;
    let (edited, added) = with_table(path, file.into(), image, how)?;
    edited::store_edited(replacement, path, output, source, &edited)?;
    Ok(added)
}

fn add_with_arguments(path: &Path, image: &Image<'_>, output: Option<&Path>, how: &How<'_>) -> Result<Added, Failure> {
    let (bytes, made) = args::add(path, image, how.args.unwrap_or_default())?;
    let image = Image::parse(&bytes).map_err(|error| Failure::of(path, error))?;
    let (edited, mut added) = with_table(path, (&bytes).into(), &image, how)?;
    edited::store(path, output, |out| edited.write_to(out))?;
    added.arguments = Some(made);
    Ok(added)
}

/// Edits the linked file to contain its table.
fn with_table<'a>(
    path: &Path,
    source: Source<'a>,
    image: &Image<'_>,
    how: &How<'_>,
) -> Result<(Edited<'a>, Added), Failure> {
    let whole = Whole::of_image(image).map_err(|error| Failure::of(path, error))?;
    let mut last = None;
    let mut make = |address| {
        let built = whole
            .table(&Options {
                address,
                ..(how.options)(image)
            })
            .map_err(Trouble::Write)?;
        if built.functions == 0 {
            return Err(Trouble::NoFunctions);
        }
        Ok(last.insert(built).bytes.clone())
    };
    let edited = edit::add_table(source, &mut make).map_err(|trouble| match trouble {
        Trouble::Elf(error) => Failure::of(path, error),
        Trouble::Write(error) => Failure::of(path, error),
        Trouble::NoFunctions => Failure::of(path, NO_FUNCTIONS),
    })?;
    let built = last.ok_or_else(|| Failure::of(path, "no table was made"))?;
    let mut added = Added::default();
    let bytes = built.bytes.len();
    added.push(path.to_owned(), built, bytes);
    Ok((edited, added))
}

/// Why no table could be added.
enum Trouble {
    Elf(backtrail_elf::Error),
    Write(WriteError),
    NoFunctions,
}

impl From<backtrail_elf::Error> for Trouble {
    fn from(error: backtrail_elf::Error) -> Self {
        Trouble::Elf(error)
    }
}
