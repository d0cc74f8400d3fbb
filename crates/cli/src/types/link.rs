//! `backtrail types link`: the types of many files into one section.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use backtrail_ctype::link::{self, Linked, LinkedSymbol, Mode, Section, Symbols, Unit};
use backtrail_ctype::write::{self, ExternalStrings};
use backtrail_ctype::{Symbol, SymbolKind};
use backtrail_elf::{Image, MappedFile, Table};
use backtrail_wire::Endian;
use clap::{Args, ValueEnum, ValueHint};
use rayon::prelude::*;

use super::input::{self, Source};
use crate::error::{Failure, Status};
use crate::output;

/// Link types: each once, those to which units give one name in a dict of each unit.
///
/// The result is the bytes of a section.
#[derive(Args)]
pub(crate) struct Link {
    /// Object files, or files with the bytes of a .ctf section.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Where to; '-': standard output.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Threads; as many as the machine has CPUs, if nothing is said. The result is the same.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    choice: Choice,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

/// What is put into the section.
#[derive(Args)]
pub(super) struct Choice {
    /// What units share.
    #[arg(long, value_enum, default_value = "share-unconflicted")]
    mode: ModeName,
    /// Tell the types of all functions and objects, by name.
    #[arg(long)]
    symbols: bool,
    /// The linked file that the section is for: its dynamic symbols get types, and names that it has are not told again.
    #[arg(long = "for", value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "symbols")]
    linked: Option<PathBuf>,
    /// Of that file, take all symbols, rather than the dynamic ones. Strip would make them unreadable.
    #[arg(long, requires = "linked")]
    symtab: bool,
    /// Keep variables, those of functions among them.
    #[arg(long)]
    variables: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    /// All types but those to which units give one name.
    ShareUnconflicted,
    /// Of these, the types that several units have.
    ShareDuplicated,
    /// All types; of those with one name, look-ups find the first.
    SingleDict,
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
    let inputs = Inputs::find(&files)?;
    let opened = inputs.open()?;
    let linked = match &arguments.choice.linked {
        Some(path) => Some((path.as_path(), input::open(path)?)),
        None => None,
    };
    let around = linked
        .as_ref()
        .map(|(path, file)| Around::read(path, file, arguments.choice.symtab));
    let around = around.transpose()?;
    let symbols = inputs.symbols();
    let units = inputs.units(&opened, &symbols)?;
    let options = link::Options {
        mode: match arguments.choice.mode {
            ModeName::ShareUnconflicted => Mode::ShareUnconflicted,
            ModeName::ShareDuplicated => Mode::ShareDuplicated,
            ModeName::SingleDict => Mode::SingleDict,
        },
        symbols: match (&around, arguments.choice.symbols) {
            (Some(around), _) if around.table == Table::Full => Symbols::Listed(&around.symbols),
            (Some(around), _) => Symbols::Numbered(&around.symbols),
            (None, true) => Symbols::Named,
            (None, false) => Symbols::None,
        },
        variables: arguments.choice.variables,
    };
    let linked = link::link(&units, &options).map_err(|error| {
        let unit = units.get(error.unit).map_or(&b""[..], |unit| unit.name);
        Failure::new(format_args!("{}: {}", String::from_utf8_lossy(unit), error.kind))
    })?;
    let section = inputs.write(&linked, around.as_ref())?;
    output::to(&arguments.output, |out| out.write_all(&section))?;
    if !arguments.quiet {
        summary(&units, &linked, section.len());
    }
    Ok(Status::Done)
}

fn summary(units: &[Unit<'_>], linked: &Linked<'_>, bytes: usize) {
    let read: usize = units.iter().map(|unit| unit.types.len()).sum();
    let own: usize = linked.children.iter().map(|(_, child)| child.types.len()).sum();
    eprintln!(
        "{} units, {read} types; {} shared, {own} in {} dicts of units; {bytes} bytes",
        units.len(),
        linked.parent.types.len(),
        linked.children.len()
    );
}

/// The files with types.
struct Inputs<'a> {
    sources: Vec<(&'a Path, Source<'a>)>,
    endian: Endian,
}

impl<'a> Inputs<'a> {
    fn find(files: &'a [(&'a Path, MappedFile)]) -> Result<Inputs<'a>, Failure> {
        let mut sources = Vec::new();
        for (path, file) in files {
            match Source::find(path, file.bytes()) {
                Ok(source) => sources.push((*path, source)),
                Err(failure) => failure.warn("it has no part in the result"),
            }
        }
        let Some((first, source)) = sources.first() else {
            return Err(Failure::new("none of the files has types"));
        };
        let endian_of = |source: &Source<'_>| source.image().map(Image::endian);
        let endian = endian_of(source);
        if let Some((path, ..)) = sources.iter().find(|(_, source)| endian_of(source) != endian) {
            let what = format_args!("of another machine than {}", first.display());
            return Err(Failure::of(path, what));
        }
        Ok(Inputs {
            sources,
            endian: endian.unwrap_or(Endian::Little),
        })
    }

    fn open(&self) -> Result<Vec<Section<'_>>, Failure> {
        let opened = self.sources.par_iter().map(|(_, source)| {
            let opened = Section::open(source.section(), source.lent());
            opened.map_err(|error| source.failure(error))
        });
        opened.collect()
    }

    /// The symbols of each file, for tables that number them.
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
    ) -> Result<Vec<Unit<'s>>, Failure> {
        let inputs = self.sources.par_iter().zip(opened).zip(symbols);
        let units = inputs.map(|(((_, source), section), symbols)| {
            let mut units = section.units(symbols).map_err(|error| source.failure(error))?;
            if let Some(image) = source.image() {
                units.iter_mut().for_each(|unit| keep_defined(unit, image));
            }
            Ok(units)
        });
        let units = units.collect::<Result<Vec<_>, Failure>>()?;
        Ok(units.into_iter().flatten().collect())
    }

    fn write(&self, linked: &Linked<'_>, around: Option<&Around<'_>>) -> Result<Vec<u8>, Failure> {
        let options = write::Options {
            strings: around.map(|around| &around.strings),
            dynamic: around.is_some_and(|around| around.table == Table::Dynamic),
            ..write::Options::new(self.endian)
        };
        linked.write(&options, 8).map_err(Failure::new)
    }
}

/// Compilers tell the types of all functions that a unit declares. Only those it has are its own.
fn keep_defined(unit: &mut Unit<'_>, image: &Image<'_>) {
    let Some((entries, _)) = image.symbol_table(Table::Full) else {
        return;
    };
    let defined = entries.filter(|entry| !entry.is_undefined && (entry.is_function || entry.is_object));
    let local: HashMap<&[u8], bool> = defined.map(|entry| (entry.name, entry.is_local)).collect();
    unit.symbols.retain_mut(|symbol| {
        let found = local.get(symbol.name);
        symbol.local = found.copied().unwrap_or(false);
        found.is_some()
    });
}

/// The file that a section is made for.
struct Around<'a> {
    table: Table,
    symbols: Vec<LinkedSymbol<'a>>,
    strings: ExternalStrings<'a>,
}

impl<'a> Around<'a> {
    fn read(path: &Path, file: &'a MappedFile, symtab: bool) -> Result<Around<'a>, Failure> {
        let image = Image::parse(file.bytes()).map_err(|error| Failure::of(path, error))?;
        let table = if symtab { Table::Full } else { Table::Dynamic };
        let mut around = Around {
            table,
            symbols: Vec::new(),
            strings: ExternalStrings::default(),
        };
        let Some((entries, strings)) = image.symbol_table(table) else {
            return match symtab {
                true => Err(Failure::of(path, "no symbol table").help("without --symtab, dynamic symbols are taken")),
                // A program that is linked statically.
                false => Ok(around),
            };
        };
        around.strings = ExternalStrings::new(strings);
        let mut source = &b""[..];
        for entry in entries {
            if entry.is_file {
                source = entry.name;
            }
            let kind = match (entry.is_object, entry.is_function) {
                (true, _) => SymbolKind::Object,
                (_, true) => SymbolKind::Function,
                _ => continue,
            };
            if Symbol::counted(entry.name, kind, entry.is_undefined, entry.is_absolute, entry.value).is_some() {
                around.symbols.push(LinkedSymbol {
                    name: entry.name,
                    kind,
                    file: entry.is_local.then_some(source),
                });
            }
        }
        Ok(around)
    }
}
