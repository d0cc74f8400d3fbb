//! `backtrail types build`: makes types from debug information.

use std::path::{Path, PathBuf};

use backtrail_ctype::link::{Linked, Section, Symbols, Unit};
use backtrail_ctype::write;
use backtrail_debuginfo::lines::Error;
use backtrail_debuginfo::split::SplitFiles;
use backtrail_debuginfo::types::{LeftOut, Origins, Parts, Sections};
use backtrail_elf::debugfile::Search;
use backtrail_elf::{File, FileBytes, Kind, Table};
use clap::{Args, ValueHint};

use super::around::Around;
use super::input::{self, Source};
use super::link::{self, Choice};
use crate::error::{Failure, Status};
use crate::limits::Limits;
use crate::output;

/// Make types from the debug information (DWARF) of C units, as the bytes of a section.
///
/// Separate debug files are found as gdb finds them.
#[derive(Args)]
pub(crate) struct Build {
    /// An executable, shared library or object.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write the section to OUT; '-' is standard output.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    limits: Limits,
}

/// How types are made, and which symbols and messages come with them.
#[derive(Args)]
pub(super) struct Making {
    #[command(flatten)]
    choice: Choice,
    /// Describe the types of all symbols, not only the dynamic ones. Strip would make the section
    /// unreadable.
    #[arg(long)]
    symtab: bool,
    /// Print no summary; what was left out is still reported.
    #[arg(short, long)]
    quiet: bool,
    #[arg(skip)]
    foreign: Foreign,
}

/// Which types are made of units in languages other than C.
#[derive(Clone, Copy, Default)]
enum Foreign {
    /// Those with names.
    #[default]
    Named,
    /// Those that arguments need.
    Arguments,
    Both,
    /// Those of functions and variables too, with full names.
    Compared,
}

impl Making {
    /// The settings of `backtrail link`.
    pub(super) fn quietly() -> Making {
        Making {
            choice: Choice::default(),
            symtab: false,
            quiet: true,
            foreign: Foreign::Named,
        }
    }

    /// The settings for types that are only read here: with those of all symbols, or of the dynamic
    /// ones.
    pub(super) fn in_memory(table: Table) -> Making {
        Making {
            symtab: table == Table::Full,
            ..Making::quietly()
        }
    }

    /// The settings for types that are compared.
    pub(super) fn compared() -> Making {
        Making {
            foreign: Foreign::Compared,
            ..Making::quietly()
        }
    }

    /// The settings for a table of arguments.
    pub(super) fn for_arguments() -> Making {
        Making {
            foreign: Foreign::Arguments,
            ..Making::quietly()
        }
    }

    /// The settings for the types of `types add` and a table of arguments.
    pub(super) fn for_names_and_arguments() -> Making {
        Making {
            foreign: Foreign::Both,
            ..Making::quietly()
        }
    }
}

pub(crate) fn run(arguments: &Build) -> Result<Status, Failure> {
    arguments.limits.set();
    let file = input::open(&arguments.file)?;
    let parsed = File::of(&file).map_err(|error| Failure::of(&arguments.file, error))?;
    let section = from_debug_information(&arguments.file, &parsed, NeedsFile::No, &arguments.making)?;
    let Some(section) = section else {
        return Err(no_debug_information(&arguments.file));
    };
    output::to(&arguments.output, |out| out.write_all(&section))?;
    Ok(Status::Done)
}

pub(crate) fn no_debug_information(path: &Path) -> Failure {
    Failure::of(path, "no debug information").help("compile with -g")
}

/// Makes the section from a file's debug information, and reports what it leaves out; `None` if it
/// has none.
pub(super) fn from_debug_information(
    path: &Path,
    file: &File<'_>,
    needs_file: NeedsFile,
    making: &Making,
) -> Result<Option<Vec<u8>>, Failure> {
    let made = silently(path, file, needs_file, making)?;
    Ok(made.map(|(section, left_out)| {
        tell_left_out(path, &left_out);
        section
    }))
}

/// The same, but returns what is left out.
pub(super) fn silently(
    path: &Path,
    file: &File<'_>,
    needs_file: NeedsFile,
    making: &Making,
) -> Result<Option<(Vec<u8>, LeftOut)>, Failure> {
    with_debug_information(path, file, TYPES, |at, sections| {
        let mut parts = Parts::read(sections).map_err(|error| Failure::of(at, error))?;
        if matches!(making.foreign, Foreign::Compared) {
            parts.name_in_full();
        }
        let made = match making.foreign {
            Foreign::Named => parts.make(),
            Foreign::Arguments => parts.make_with_arguments(),
            Foreign::Both => parts.make_with_names_and_arguments(),
            Foreign::Compared => parts.make_compared(),
        };
        let section = write_for(path, file, &made.units, needs_file, making)?;
        Ok((section, made.left_out))
    })
}

/// Adds the rests of split units.
fn add_split<'a>(sections: &mut Sections<'a>, split: &'a SplitFiles) -> Result<(), Failure> {
    for (at, file) in split.iter() {
        let failed = |error| Failure::of(at, error);
        let file = File::of(file).map_err(|error| failed(Error::Elf(error)))?;
        sections.add_split(&file).map_err(failed)?;
    }
    Ok(())
}

/// The source files of the types in a file's debug information, perhaps by full names; `None` if it
/// has none.
pub(super) fn origins(path: &Path, file: &File<'_>, in_full: bool) -> Result<Option<Origins>, Failure> {
    with_debug_information(path, file, TYPES, |at, sections| {
        let origins = Parts::read(sections).and_then(|mut parts| {
            if in_full {
                parts.name_in_full();
            }
            parts.origins(sections)
        });
        origins.map_err(|error| Failure::of(at, error))
    })
}

/// Reads sections of a file, and of its supplementary file; `None` without debug information.
type Load = for<'a> fn(&File<'a>, Option<&File<'a>>) -> Result<Option<Sections<'a>>, Error>;
const TYPES: Load = |file, supplementary| Sections::load(file, supplementary);
pub(crate) const ARGUMENTS: Load = |file, supplementary| Sections::load_for_arguments(file, supplementary);

/// Passes on the debug information of the file at `path`, with that of split units, and the path of
/// the file that has it (`path` itself, or a separate one); `None` without any.
pub(crate) fn with_debug_information<T>(
    path: &Path,
    file: &File<'_>,
    load: Load,
    make: impl FnOnce(&Path, &Sections<'_>) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let search = Search::new();
    let debug = search.debug_file(path, file).filter(|found| found != path);
    let own = file.section_header(".debug_info").is_some() || file.section_header(".zdebug_info").is_some();
    let debug = debug.filter(|_| !own);
    let open = |path: &Path| {
        let opened = search.open(path).and_then(|found| found.contents(file.budget()));
        opened.map_err(|error| Failure::of(path, error))
    };
    let debug_file = debug.as_deref().map(open).transpose()?;
    let debug_image = debug_file.as_ref().map(parse).transpose()?;
    let with_dwarf = debug_image.as_ref().unwrap_or(file);
    let at = debug.as_deref().unwrap_or(path);
    let supplementary = with_dwarf
        .debugaltlink()
        .and_then(|link| search.supplementary(at, &link));
    let supplementary = supplementary.as_deref().map(open).transpose()?;
    let supplementary = supplementary.as_ref().map(parse).transpose()?;
    let failed = |error| Failure::of(at, error);
    let Some(mut sections) = load(with_dwarf, supplementary.as_ref()).map_err(failed)? else {
        return Ok(None);
    };
    let units = sections.split_units().map_err(failed)?;
    let split = SplitFiles::find(&units, &[at, path], file.budget());
    add_split(&mut sections, &split)?;
    make(at, &sections).map(Some)
}

/// Links the .ctf sections that a linker which does not know the format only concatenated; `None`
/// if the file has no such section.
pub(super) fn from_input_sections(path: &Path, file: &File<'_>, making: &Making) -> Result<Option<Vec<u8>>, Failure> {
    if file.section_header(".ctf").is_none() {
        return Ok(None);
    }
    let source = Source::find(path, file.bytes())?;
    let opened = Section::open(source.section(), source.surroundings()).map_err(|error| source.failure(error))?;
    let unlinked = opened.len() > 1 && !source.is_archive();
    if !unlinked {
        return Ok(None);
    }
    let mut units = opened.units(&[]).map_err(|error| source.failure(error))?;
    units.iter_mut().for_each(|unit| link::tell_declared(unit, file));
    write_for(path, file, &units, NeedsFile::Yes, making).map(Some)
}

/// Whether reading a section may require its file: for names that the file has anyway, and for
/// symbols by number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NeedsFile {
    Yes,
    No,
}

fn write_for(
    path: &Path,
    file: &File<'_>,
    units: &[Unit<'_>],
    needs_file: NeedsFile,
    making: &Making,
) -> Result<Vec<u8>, Failure> {
    let linked_file = matches!(file.kind(), Kind::Executable | Kind::Shared);
    let around = linked_file
        .then(|| Around::read(path, file, making.symtab))
        .transpose()?;
    let alone = write::Options::new(file.endian());
    let (symbols, options) = match &around {
        Some(around) if needs_file == NeedsFile::Yes => (around.symbols(), around.options(file.endian())),
        Some(around) => (around.symbols_by_name(), alone),
        None => (Symbols::Named, alone),
    };
    let linked: Linked<'_> = link::link_units(units, &making.choice, symbols)?;
    let section = link::write_section(&linked, &options, file.address_bytes())?;
    if !making.quiet {
        link::summary(units, &linked, section.len());
    }
    Ok(section)
}

fn tell_left_out(path: &Path, left_out: &LeftOut) {
    for (reason, (count, first)) in &left_out.0 {
        let name = if first.is_empty() { "without a name" } else { first };
        crate::error::say!("{}: left out: {reason}: {count} (the first: {name})", path.display());
    }
}

fn parse(file: &FileBytes) -> Result<File<'_>, Failure> {
    File::of(file).map_err(|error| Failure::new(format_args!("debug file: {error}")))
}
