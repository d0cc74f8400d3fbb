//! `backtrail types link`: links the types of many files into one section.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use backtrail_ctype::Symbol;
use backtrail_ctype::link::{self, Linked, Mode, Section, Symbols, Unit};
use backtrail_ctype::write;
use backtrail_elf::archive::{self, Archive};
use backtrail_elf::{File, FileBytes, Table};
use backtrail_wire::Endian;
use clap::{Args, ValueEnum, ValueHint};
use rayon::prelude::*;

use super::around::Around;
use super::input::{self, Source};
use crate::counted::Counted;
use crate::error::{Failure, Status};
use crate::output;

/// Link types: each is stored once; conflicting types go into a per-unit dictionary.
///
/// The result is the bytes of a section.
#[derive(Args)]
pub(crate) struct Link {
    /// Object files, archives of them, or files with the bytes of a .ctf section.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Write the section to OUT; '-' is standard output.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Use N threads [default: the number of CPUs]. The result does not depend on it.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    choice: Choice,
    /// Describe the types of all functions and objects, by name.
    #[arg(long)]
    symbols: bool,
    /// Make the section for this linked file: describe the types of its dynamic symbols, and do not
    /// store names that it already has.
    #[arg(long = "for", value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "symbols")]
    linked: Option<PathBuf>,
    /// Take all symbols of that file, not only the dynamic ones. Strip would make the section
    /// unreadable.
    #[arg(long, requires = "linked")]
    symtab: bool,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

/// What goes into the section.
#[derive(Args, Default)]
pub(super) struct Choice {
    /// Choose which types the units share.
    #[arg(long, value_enum, default_value = "share-unconflicted")]
    mode: ModeName,
    /// Keep variables, including those of functions.
    #[arg(long)]
    variables: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum ModeName {
    #[default]
    /// All types except those with conflicting definitions.
    ShareUnconflicted,
    /// Of these, only the types that several units have.
    ShareDuplicated,
    /// All types; a look-up of a conflicting name finds the first.
    SingleDict,
}

impl ModeName {
    fn mode(self) -> Mode {
        match self {
            ModeName::ShareUnconflicted => Mode::ShareUnconflicted,
            ModeName::ShareDuplicated => Mode::ShareDuplicated,
            ModeName::SingleDict => Mode::SingleDict,
        }
    }
}

pub(crate) fn run(arguments: &Link) -> Result<Status, Failure> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(arguments.jobs.map_or(0, NonZeroUsize::get));
    let pool = pool.build().map_err(Failure::new)?;
    pool.install(|| link_files(arguments))
}

fn link_files(arguments: &Link) -> Result<Status, Failure> {
    let files = arguments
        .files
        .iter()
        .map(|path| Ok((path.as_path(), input::open(path)?)));
    let files = files.collect::<Result<Vec<_>, Failure>>()?;
    let members = members(&files)?;
    let inputs = Inputs::find(&members)?;
    let opened = inputs.open()?;
    let linked = match &arguments.linked {
        Some(path) => Some((path.as_path(), input::open(path)?)),
        None => None,
    };
    let around = linked.as_ref().map(|(path, file)| {
        let file = File::of(file).map_err(|error| Failure::of(path, error))?;
        Around::read(path, &file, arguments.symtab)
    });
    let around = around.transpose()?;
    let symbols = inputs.symbols();
    let told = arguments.symbols || around.is_some();
    let units = inputs.units(&opened, &symbols, told)?;
    let symbols = match (&around, arguments.symbols) {
        (Some(around), _) => around.symbols(),
        (None, true) => Symbols::Named,
        (None, false) => Symbols::None,
    };
    let linked = link_units(&units, &arguments.choice, symbols)?;
    let options = match &around {
        Some(around) => around.options(inputs.endian),
        None => write::Options::new(inputs.endian),
    };
    let section = write_section(&linked, &options, inputs.pointer)?;
    output::to(&arguments.output, |out| out.write_all(&section))?;
    if !arguments.quiet {
        summary(&units, &linked, section.len());
    }
    Ok(Status::Done)
}

/// Links units as the options say.
pub(super) fn link_units<'a>(units: &[Unit<'a>], choice: &Choice, symbols: Symbols<'a>) -> Result<Linked<'a>, Failure> {
    let options = link::Options {
        mode: choice.mode.mode(),
        symbols,
        variables: choice.variables,
    };
    link::link(units, &options).map_err(|error| {
        let unit = units.get(error.unit).map_or(&b""[..], |unit| unit.name);
        Failure::new(format_args!("{}: {}", String::from_utf8_lossy(unit), error.kind))
    })
}

/// The bytes of a section; `pointer` is the size of a pointer.
pub(super) fn write_section(
    linked: &Linked<'_>,
    options: &write::Options<'_>,
    pointer: u8,
) -> Result<Vec<u8>, Failure> {
    linked.write(options, pointer).map_err(Failure::new)
}

pub(super) fn summary(units: &[Unit<'_>], linked: &Linked<'_>, bytes: usize) {
    let read: usize = units.iter().map(|unit| unit.types.len()).sum();
    let own: usize = linked.children.iter().map(|child| child.types.len()).sum();
    crate::error::say!(
        "{}, {}; {} shared, {own} in {} of units; {bytes} bytes",
        Counted(units.len(), "unit"),
        Counted(read, "type"),
        linked.parent.types.len(),
        Counted(linked.children.len(), "dict")
    );
}

/// A name for messages, and the bytes that belong to it.
type Named<'f> = (Cow<'f, Path>, &'f [u8]);

/// Files; an archive is replaced by its members.
fn members<'f>(files: &'f [(&'f Path, FileBytes)]) -> Result<Vec<Named<'f>>, Failure> {
    let mut all: Vec<Named<'f>> = Vec::new();
    for (path, file) in files {
        if !archive::is_archive(file.bytes()) {
            all.push((Cow::Borrowed(path), file.bytes()));
            continue;
        }
        let archive = Archive::parse(file.bytes()).map_err(|error| Failure::of(path, error))?;
        // The archive's own tables are not objects.
        let objects = archive
            .members()
            .iter()
            .filter(|member| member.data.starts_with(b"\x7fELF"));
        all.extend(objects.map(|member| {
            let name = format!("{}({})", path.display(), member.name);
            (Cow::Owned(PathBuf::from(name)), member.data)
        }));
    }
    Ok(all)
}

/// The files that have types.
struct Inputs<'a> {
    sources: Vec<(&'a Path, Source<'a>)>,
    endian: Endian,
    /// The size of a pointer, in bytes.
    pointer: u8,
}

impl<'a> Inputs<'a> {
    fn find(files: &'a [Named<'a>]) -> Result<Inputs<'a>, Failure> {
        let mut sources = Vec::new();
        for (path, bytes) in files {
            match Source::find(path, bytes).inspect(Source::report_left_out) {
                Ok(source) => sources.push((&**path, source)),
                Err(failure) => failure.warn("it has no part in the result"),
            }
        }
        let Some((first, source)) = sources.first() else {
            return Err(Failure::new("none of the files has types"));
        };
        let machine_of = |source: &Source<'_>| {
            let file = source.file()?;
            Some((file.endian(), file.address_bytes()))
        };
        let machine = machine_of(source);
        let pointer = source.surroundings().pointer;
        let differs = |source: &Source<'_>| machine_of(source) != machine || source.surroundings().pointer != pointer;
        if let Some((path, ..)) = sources.iter().find(|(_, source)| differs(source)) {
            let what = format_args!("of another machine than {}", first.display());
            return Err(Failure::of(path, what));
        }
        Ok(Inputs {
            sources,
            endian: machine.map_or(Endian::Little, |(endian, _)| endian),
            pointer,
        })
    }

    fn open(&self) -> Result<Vec<Section<'_>>, Failure> {
        let sources = self.sources.par_iter().with_max_len(link::AT_ONCE);
        let opened = sources.map(|(_, source)| {
            let opened = Section::open(source.section(), source.surroundings());
            opened.map_err(|error| source.failure(error))
        });
        opened.collect()
    }

    /// The symbols of each file, for tables that refer to them by number.
    fn symbols(&self) -> Vec<Vec<Symbol<'_>>> {
        let sources = self.sources.par_iter();
        sources
            .map(|(_, source)| source.symbols().unwrap_or_default())
            .collect()
    }

    fn units<'s>(
        &'s self,
        opened: &'s [Section<'s>],
        symbols: &'s [Vec<Symbol<'s>>],
        told: bool,
    ) -> Result<Vec<Unit<'s>>, Failure> {
        let inputs = self.sources.par_iter().with_max_len(link::AT_ONCE);
        let inputs = inputs.zip(opened).zip(symbols);
        let units = inputs.map(|(((_, source), section), symbols)| {
            let mut units = section.units(symbols).map_err(|error| source.failure(error))?;
            if let Some(file) = source.file().filter(|_| told) {
                units.iter_mut().for_each(|unit| tell_declared(unit, file));
            }
            Ok(units)
        });
        let units = units.collect::<Result<Vec<_>, Failure>>()?;
        Ok(units.into_iter().flatten().collect())
    }
}

/// Separates a unit's own functions from those it only declares: compilers write the types of both.
pub(super) fn tell_declared(unit: &mut Unit<'_>, file: &File<'_>) {
    let Some((entries, _)) = file.symbol_table(Table::Full) else {
        return;
    };
    let defined = entries.filter(|entry| !entry.is_undefined && (entry.is_function || entry.is_object));
    let local: HashMap<&[u8], bool> = defined.map(|entry| (entry.name, entry.is_local)).collect();
    for symbol in &mut unit.symbols {
        let found = local.get(symbol.name);
        symbol.declared = found.is_none();
        symbol.local = found.copied().unwrap_or(false);
    }
}
