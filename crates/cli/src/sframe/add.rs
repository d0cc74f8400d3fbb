//! `backtrail sframe add`: the table into the file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use backtrail_args::table::write::Places;
use backtrail_dwarf::arguments::Made;
use backtrail_dwarf::build::Built;
use backtrail_dwarf::whole::Whole;
use backtrail_elf::edit::{self, Edited};
use backtrail_elf::{Image, Kind, archive};
use backtrail_sframe::write::{Options, WriteError};
use clap::{Args, ValueHint};

use super::build::{self, Layout, Summary};
use super::{args, input, objects};
use crate::error::{Failure, Status, shown};
use crate::output;
use crate::replacement::{Durable, Replacement};

/// Put a table, made from .eh_frame, into an executable, shared library or object file, or into those of an archive.
///
/// A table that is there is replaced; rows of code that .eh_frame says nothing of are kept. In a linked file nothing that is loaded changes
/// its address. Object files get what an assembler would have written, for linkers to merge. The file is replaced when all is written:
/// whoever runs it goes on undisturbed.
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Add {
    /// An executable, shared library, object file or archive of object files.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where to; without it, FILE itself is replaced.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    layout: Layout,
    /// Give an object file one table for all of its functions, as GNU as does, rather than one for each group of sections (COMDAT) and one
    /// for the rest. lld can't link such files; GNU ld 2.47 drops more unused functions of groups from them.
    #[arg(long)]
    one_table: bool,
    /// Add a table of arguments too, made from debug information, with which `backtrail stack --args` shows what functions were called with; and compact
    /// types, where there are none. Debug information can be stripped afterwards.
    #[arg(long)]
    args: bool,
    /// Tell in the table where arguments are at each instruction, not at calls alone: innermost functions show theirs too, and the table becomes nearly twice as large.
    #[arg(long, requires = "args")]
    innermost: bool,
    /// Print no summary; what was left out is still told.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Add) -> Result<Status, Failure> {
    let options = |image: &Image<'_>| arguments.layout.options(image);
    let how = How {
        options: &options,
        one_table: arguments.one_table,
        args: arguments.args.then_some(match arguments.innermost {
            true => Places::Everywhere,
            false => Places::AtCalls,
        }),
        durable: Durable::Yes,
    };
    let added = add(&arguments.file, arguments.output.as_deref(), &how)?;
    if !arguments.quiet {
        added.summary.tell(arguments.layout.version());
        added.arguments.iter().for_each(tell_arguments);
    }
    for (whose, built) in &added.parts {
        build::left_out(whose, built);
    }
    Ok(Status::Done)
}

/// How tables are to be written.
pub(crate) struct How<'o> {
    pub(crate) options: &'o dyn Fn(&Image<'_>) -> Options,
    /// One for all functions of an object file.
    pub(crate) one_table: bool,
    /// With the table of arguments, and where it tells them.
    pub(crate) args: Option<Places>,
    /// Of a linked file.
    pub(crate) durable: Durable,
}

/// What was added.
#[derive(Default)]
pub(crate) struct Added {
    pub(super) summary: Summary,
    /// By whose name it is to be told: the file, or each member of an archive.
    pub(super) parts: Vec<(PathBuf, Built)>,
    /// The table of arguments.
    arguments: Option<Made>,
}

fn tell_arguments(made: &Made) {
    println!(
        "arguments of {} functions at {} calls: {} bytes, from {} bytes of debug information",
        made.functions,
        made.calls,
        made.bytes.len(),
        made.debug
    );
}

impl Added {
    pub(super) fn push(&mut self, whose: PathBuf, built: Built, bytes: usize) {
        self.summary.add(&built, bytes);
        self.parts.push((whose, built));
    }
}

/// Adds the table to the file at `path`, in place without `output`.
pub(crate) fn add(path: &Path, output: Option<&Path>, how: &How<'_>) -> Result<Added, Failure> {
    let (source, file) = input::open_both(path)?;
    if how.args.is_some() && archive::is_archive(file.bytes()) {
        return Err(
            Failure::of(path, "object files of an archive get no tables of arguments")
                .help("add it to what is linked from them"),
        );
    }
    if archive::is_archive(file.bytes()) {
        return objects::add_to_archive(path, file.bytes(), output, how);
    }
    let image = Image::parse(file.bytes()).map_err(|error| Failure::of(path, error))?;
    if how.args.is_some() && image.kind() == Kind::Relocatable {
        let what = "an object file gets no table of arguments: addresses in it are not known yet";
        return Err(Failure::of(path, what).help("add it to what is linked from it"));
    }
    match image.kind() {
        Kind::Relocatable => objects::add_to_object(path, image, output, how),
        Kind::Core => Err(Failure::of(path, "a core file has no code of its own")),
        Kind::Executable | Kind::Shared if how.args.is_some() => add_with_arguments(path, &image, output, how),
        Kind::Executable | Kind::Shared => add_to_linked(path, &source, &image, output, how),
    }
}

fn add_to_linked(
    path: &Path,
    source: &File,
    image: &Image<'_>,
    output: Option<&Path>,
    how: &How<'_>,
) -> Result<Added, Failure> {
    let replacement = begin(path, output, how.durable, source, image.bytes().len() as u64)?;
    let (edited, added) = with_table(path, image, how)?;
    store_by(path, output, |path, mode| {
        output::edited(replacement, path, mode, source, &edited)
    })?;
    Ok(added)
}

fn add_with_arguments(path: &Path, image: &Image<'_>, output: Option<&Path>, how: &How<'_>) -> Result<Added, Failure> {
    let (bytes, made) = args::add(path, image, how.args.unwrap_or_default())?;
    let image = Image::parse(&bytes).map_err(|error| Failure::of(path, error))?;
    let (edited, mut added) = with_table(path, &image, how)?;
    store(path, output, |out| edited.write_to(out))?;
    added.arguments = Some(made);
    Ok(added)
}

/// The linked file with its table.
fn with_table<'a>(path: &Path, image: &Image<'a>, how: &How<'_>) -> Result<(Edited<'a>, Added), Failure> {
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
    let edited = edit::add_table(image.bytes(), &mut make).map_err(|trouble| match trouble {
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

/// Why a file gets no table that has nothing to describe.
pub(super) const NO_FUNCTIONS: &str = "no function that a table could describe";

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

/// The file that the edited one is going to be, which the file before is copied to while its table is made; none for standard output.
fn begin(
    path: &Path,
    output: Option<&Path>,
    durable: Durable,
    source: &File,
    len: u64,
) -> Result<Option<Replacement>, Failure> {
    let place = output.unwrap_or(path);
    if place == Path::new("-") {
        return Ok(None);
    }
    let begin = || -> io::Result<Replacement> {
        let mut replacement = Replacement::begin(place, durable)?;
        replacement.copy_ahead(source, len)?;
        Ok(replacement)
    };
    begin().map(Some).map_err(|error| Failure::of(place, error))
}

/// Writes what `write` writes.
pub(crate) fn store(
    path: &Path,
    output: Option<&Path>,
    write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    store_by(path, output, |path, mode| match mode {
        Some(mode) => output::with_mode(path, mode, write),
        None => output::to(path, write),
    })
}

/// Puts the edited file where it belongs: to `output`, as executable as the file at `path` was, or in its place.
fn store_by(
    path: &Path,
    output: Option<&Path>,
    put: impl FnOnce(&Path, Option<u32>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::of(path, error))?;
    if let Some(output) = output {
        return put(output, Some(metadata.mode()));
    }
    put(path, None)?;
    if metadata.nlink() > 1 {
        eprintln!(
            "{}: the file had {} names (hard links); this name leads to a new file now, the others to what it was",
            shown(path),
            metadata.nlink()
        );
    }
    Ok(())
}
