//! `backtrail sframe add`: the table into the file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use backtrail_dwarf::build::Built;
use backtrail_dwarf::whole::Whole;
use backtrail_elf::{Image, Kind, edit};
use backtrail_sframe::write::{Options, WriteError};
use clap::{Args, ValueHint};

use super::build::{self, Layout};
use super::input;
use crate::error::{Failure, Status};
use crate::output;

/// Put a table, made from .eh_frame, into an executable or shared library.
///
/// A table that is there is replaced; rows of code that .eh_frame says nothing of are kept. Nothing that is loaded changes its
/// address. The file is replaced when all is written: whoever runs it goes on undisturbed.
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Add {
    /// An executable or shared library.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where to; without it, FILE itself is replaced.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    layout: Layout,
    /// Print no summary; what was left out is still told.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Add) -> Result<Status, Failure> {
    let options = |image: &Image<'_>| arguments.layout.options(image);
    let built = add(&arguments.file, arguments.output.as_deref(), &options)?;
    if !arguments.quiet {
        build::summary(&built, arguments.layout.version());
    }
    build::left_out(&arguments.file, &built);
    Ok(Status::Done)
}

/// Adds the table to the file at `path`, in place without `output`.
pub(crate) fn add(
    path: &Path,
    output: Option<&Path>,
    options: &dyn Fn(&Image<'_>) -> Options,
) -> Result<Built, Failure> {
    let file = input::open(path)?;
    if file.bytes().starts_with(b"!<arch>\n") {
        return Err(not_linked(path, "an archive"));
    }
    let image = Image::parse(file.bytes()).map_err(|error| Failure::of(path, error))?;
    match image.kind() {
        Kind::Relocatable => return Err(not_linked(path, "a relocatable file")),
        Kind::Core => return Err(Failure::of(path, "a core file has no code of its own")),
        Kind::Executable | Kind::Shared => {}
    }
    let whole = Whole::of_image(&image).map_err(|error| Failure::of(path, error))?;
    let mut last = None;
    let mut make = |address| {
        let built = whole
            .table(&Options {
                address,
                ..options(&image)
            })
            .map_err(Trouble::Write)?;
        if built.functions == 0 {
            return Err(Trouble::NoFunctions);
        }
        Ok(last.insert(built).bytes.clone())
    };
    let edited = edit::add_table(file.bytes(), &mut make).map_err(|trouble| match trouble {
        Trouble::Elf(error) => Failure::of(path, error),
        Trouble::Write(error) => Failure::of(path, error),
        Trouble::NoFunctions => Failure::of(path, "no function that a table could describe"),
    })?;
    store(path, output, |out| edited.write_to(out))?;
    last.ok_or_else(|| Failure::of(path, "no table was made"))
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

fn not_linked(path: &Path, what: &str) -> Failure {
    Failure::of(
        path,
        format_args!("{what}, and only executables and shared libraries can get a table"),
    )
    .help("add it to what is linked from this: 'backtrail link' does so in one step")
}

/// Writes the edited file: to `output`, as executable as the file at `path` was, or in its place.
pub(crate) fn store(
    path: &Path,
    output: Option<&Path>,
    write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::of(path, error))?;
    match output {
        Some(output) => output::with_mode(output, metadata.mode(), write),
        None => {
            output::to(path, write)?;
            if metadata.nlink() > 1 {
                eprintln!(
                    "{}: the file had {} names (hard links); this name leads to a new file now, the others to what it was",
                    path.display(),
                    metadata.nlink()
                );
            }
            Ok(())
        }
    }
}
