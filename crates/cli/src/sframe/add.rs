//! `backtrail sframe add`: adds the table to the file.

use std::fs::File;
use std::path::{Path, PathBuf};

use backtrail_cfi::whole::Whole;
use backtrail_debuginfo::arguments::ArgumentTable;
use backtrail_elf::edit::{self, Edited, Recipe, Source};
use backtrail_elf::{FileBytes, Image, Kind};
use backtrail_sframe::write::{Options, WriteError};
use clap::{Args, ValueHint};

use super::added::{Added, How, NO_FUNCTIONS};
use super::args::WithArguments;
use super::build;
use super::layout::{Layout, Plan};
use super::many::{self, Files};
use super::readers::{self, Stage};
use super::report::{Format, Outcome};
use super::{args, input, objects};
use crate::edited::{self, Names};
use crate::error::{Failure, Status};
use crate::limits::Limits;
use crate::output;
use crate::replacement::Durable;

/// Add a table, made from .eh_frame, to an executable, shared library or object file, or to those
/// in an archive.
///
/// An existing table is replaced, but rows of code that .eh_frame does not describe are kept. In a
/// linked file nothing that is loaded changes its address. Object files get what an assembler would
/// have written, for linkers to merge. The file is replaced once everything is written; processes
/// that run it are not disturbed.
///
/// With several files or --recursive, files are edited in parallel, and a report counts them by
/// outcome. A file that fails does not stop the others; the exit status is 2 then. Modes, owners,
/// extended attributes, hard links and symbolic links stay. A file that has this table already is
/// not written, so the same command continues a run that was interrupted.
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Add {
    /// Executables, shared libraries, object files or archives of object files.
    #[arg(required_unless_present = "recursive", value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Write the result for a single FILE to OUT [default: replace FILE].
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath, conflicts_with_all = ["recursive", "json"])]
    output: Option<PathBuf>,
    /// Add tables to all executables and shared libraries in DIR and the folders in it, on the same
    /// file system. Repeatable.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    recursive: Vec<PathBuf>,
    /// Edit N files at a time [default: the number of CPUs].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
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
    let plan = arguments.layout.plan()?;
    let [file] = &arguments.files[..] else {
        return add_to_many(arguments, plan);
    };
    if arguments.json || !arguments.recursive.is_empty() {
        return add_to_many(arguments, plan);
    }
    let added = add(file, arguments.output.as_deref(), &arguments.how(plan, Names::One))?;
    if !arguments.quiet {
        added.summary.tell(plan.version);
        if let Some(made) = &added.arguments {
            tell_arguments(made)?;
        }
    }
    for (whose, built) in &added.parts {
        build::left_out(whose, built);
    }
    Ok(Status::Done)
}

impl Add {
    fn how(&self, plan: Plan, names: Names) -> How {
        How {
            plan,
            one_table: self.one_table,
            args: self.arguments.places(),
            durable: Durable::Yes,
            names,
        }
    }
}

/// Adds tables to several files, and to those in folders.
fn add_to_many(arguments: &Add, plan: Plan) -> Result<Status, Failure> {
    if arguments.output.is_some() {
        return Err(Failure::new("--output is for a single FILE"));
    }
    let mut files = Files::default();
    for file in &arguments.files {
        files.add(file);
    }
    for folder in &arguments.recursive {
        files.add_folder(folder)?;
    }
    let format = match (arguments.json, arguments.quiet) {
        (true, _) => Format::Json,
        (false, true) => Format::None,
        (false, false) => Format::Text,
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.map_or(cpus, usize::from);
    let how = arguments.how(plan, Names::All);
    many::run(files, jobs, format, &|path, named| outcome(&how, path, named))
}

/// Adds the table to one of many files.
fn outcome(how: &How, path: &Path, named: bool) -> Outcome {
    let size = || std::fs::metadata(path).map(|metadata| metadata.len());
    let before = match size() {
        Ok(before) => before,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    if !named {
        match kind_to_leave(path) {
            Ok(None) => {}
            Ok(Some(kind)) => return Outcome::Left(kind),
            Err(failure) => return failed(path, &failure),
        }
        if let Some(why) = many::must_stay(path) {
            return Outcome::Refused(why.to_owned());
        }
    }
    if has_it(path, how).unwrap_or(false) {
        return Outcome::Unchanged;
    }
    match add(path, None, how) {
        Ok(added) if added.unchanged => Outcome::Unchanged,
        Ok(added) => Outcome::Added {
            before,
            after: size().unwrap_or(before),
            added: Box::new(added.without_tables()),
        },
        Err(failure) => failed(path, &failure),
    }
}

/// Whether the linked file at `path` has the table that it would get, by the recipe of that: many
/// files are gone through again after the first run was interrupted, or some of them were replaced.
fn has_it(path: &Path, how: &How) -> Result<bool, Failure> {
    if how.args.is_some() {
        return Ok(false);
    }
    let file = input::open(path)?;
    let (original, Some(recipe)) = edit::original(&file) else {
        return Ok(false);
    };
    let image = Image::of(&file).map_err(|error| Failure::of(path, error))?;
    Ok(recipe == recipe_of(&how.plan.options(&image), &original))
}

/// What a table depends on: this program, the options, and the file without a table of ours.
fn recipe_of(options: &Options, original: &Edited<'_>) -> Recipe {
    let mut hasher = blake3::Hasher::new();
    // Each ends where the next begins: a file begins with its magic.
    hasher.update(env!("BACKTRAIL_VERSION").as_bytes());
    hasher.update(format!("{options:?}").as_bytes());
    for part in original.parts() {
        hasher.update(part.bytes().unwrap_or_default());
    }
    let mut recipe = Recipe::default();
    hasher.finalize_xof().fill(&mut recipe);
    recipe
}

fn failed(path: &Path, failure: &Failure) -> Outcome {
    let why = failure.without_file(path);
    match failure.is_io() {
        true => Outcome::Failed(why),
        false => Outcome::Refused(why),
    }
}

/// What a file in a folder is, if it is not a program or library: only those who build with object
/// files know which of them should have tables, and kernel modules are signed.
fn kind_to_leave(path: &Path) -> Result<Option<&'static str>, Failure> {
    let file = input::open(path)?;
    let image = Image::of(&file).map_err(|error| Failure::of(path, error))?;
    Ok(match image.kind() {
        Kind::Relocatable => Some("object files"),
        Kind::Core => Some("cores"),
        Kind::Executable | Kind::Shared if image.is_separate_debug_information() => Some("separate debug information"),
        Kind::Executable | Kind::Shared => None,
    })
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
pub(crate) fn add(path: &Path, output: Option<&Path>, how: &How) -> Result<Added, Failure> {
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
    how: &How,
) -> Result<Added, Failure> {
    let begin = || edited::begin(path, output, how.durable, source, file.len() as u64);
    let (has_table, ours) = (image.sframe_header().is_some(), edit::is_edited(file));
    // The file may already have this very table, and is then not copied.
    let again = output.is_none() && (has_table || ours);
    let replacement = if again { None } else { begin()? };
    let (edited, mut added) = with_table(path, file.into(), image, how)?;
    if again && edited.is_same_as(file) {
        added.unchanged = true;
        return Ok(added);
    }
    added.replaced = has_table && !ours;
    let replacement = if again { begin()? } else { replacement };
    edited::store_edited(replacement, path, output, source, &edited, how.names)?;
    Ok(added)
}

fn add_with_arguments(path: &Path, image: &Image<'_>, output: Option<&Path>, how: &How) -> Result<Added, Failure> {
    let (bytes, made) = args::add(path, image, how.args.unwrap_or_default())?;
    let before = image.bytes();
    let image = Image::parse(&bytes).map_err(|error| Failure::of(path, error))?;
    let (edited, mut added) = with_table(path, (&bytes).into(), &image, how)?;
    added.arguments = Some(made);
    if output.is_none() && edited.is_same_as(before) {
        added.unchanged = true;
        return Ok(added);
    }
    edited::store(path, output, how.names, |out| edited.write_to(out))?;
    Ok(added)
}

/// Edits the linked file to contain its table.
fn with_table<'a>(
    path: &Path,
    source: Source<'a>,
    image: &Image<'_>,
    how: &How,
) -> Result<(Edited<'a>, Added), Failure> {
    let whole = Whole::of_image(image).map_err(|error| Failure::of(path, error))?;
    let options = how.plan.options(image);
    let recipe = recipe_of(&options, &edit::original(source).0);
    let mut last = None;
    let mut make = |address| {
        let options = Options { address, ..options };
        let built = whole.table(&options).map_err(Trouble::Write)?;
        if built.functions == 0 {
            return Err(Trouble::NoFunctions);
        }
        readers::bear(&options, &built.bytes, Stage::Linked).map_err(Trouble::Refused)?;
        Ok(last.insert(built).bytes.clone())
    };
    let edited = edit::add_table(source, recipe, &mut make).map_err(|trouble| match trouble {
        Trouble::Elf(error) => Failure::of(path, error),
        Trouble::Write(error) => Failure::of(path, error),
        Trouble::NoFunctions => Failure::of(path, NO_FUNCTIONS),
        Trouble::Refused(why) => Failure::of(path, why),
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
    /// By a reader that it is for.
    Refused(String),
}

impl From<backtrail_elf::Error> for Trouble {
    fn from(error: backtrail_elf::Error) -> Self {
        Trouble::Elf(error)
    }
}
