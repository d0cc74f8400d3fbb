//! Linking types beside GNU ld, opening and looking up: the same objects, in turn, in one run.
//!
//! `cargo run --release --bin types -- FOLDER…`; each folder has the objects of a program, compiled with `gcc -g -gctf`, in the order in
//! which they are linked, and beside it may be the program that GNU ld has linked of them, `FOLDER.ld`. Writes `docs/types-speed.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use backtrail_ctype::link::{self, LinkedSymbol, Options, Section, Symbols, Unit};
use backtrail_ctype::write::{self, ExternalStrings};
use backtrail_ctype::{Dict, Kind, Lent, NameIndex, Symbol, SymbolKind};
use backtrail_dwarf::types::{Parts, Sections};
use backtrail_elf::{Image, MappedFile, Table};
use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{command, place, scratch, skip};
use backtrail_wire::Endian;
use rayon::prelude::*;

const ROUNDS: usize = 11;
const LIMIT: Duration = Duration::from_secs(300);
/// Units of the measured growth.
const GROWTH: [usize; 5] = [25, 50, 100, 200, 400];

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match measure(&folders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(folders: &[PathBuf]) -> Result<(), Failed> {
    let binutils = Binutils::get(Release::V2_40).ok_or("binutils 2.40 is what is compared with")?;
    let mut page = format!(
        "# How fast types are linked and found\n\n\
         Made by `cargo run --release --bin types -- FOLDER…` in `bench/`: medians of {ROUNDS} rounds, in each of which all was run in turn.\n\
         GNU ld 2.40's cost of types is the time of `ld -r` of the objects less that of the same objects without `.ctf`. Ours is from the mapped\n\
         files to the bytes of the section. On a machine with other load, ratios are worth more than milliseconds.\n\n\
         | program | units | types | ours, 1 thread, ms | 2 threads, ms | GNU ld, ms | ld / ours | ours, bytes | ld, bytes | of ld's missing | from DWARF, ms |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    let mut details = String::new();
    for folder in folders {
        program(&binutils, folder, &mut page, &mut details)?;
    }
    page.push_str(&details);
    print!("{page}");
    Ok(fs::write(place::workspace().join("docs/types-speed.md"), page)?)
}

/// A program's objects.
struct Objects {
    paths: Vec<PathBuf>,
    files: Vec<MappedFile>,
}

impl Objects {
    fn read(folder: &Path) -> Result<Objects, Failed> {
        let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        let files = paths.iter().map(|path| MappedFile::open(path)).collect::<Result<_, _>>()?;
        Ok(Objects { paths, files })
    }

    fn sections(&self, some: usize) -> Vec<Vec<u8>> {
        let files = self.files.par_iter().take(some);
        let sections = files.filter_map(|file| Some(Image::parse(file.bytes()).ok()?.section(".ctf").ok()??.data.into_owned()));
        sections.collect()
    }

    /// The section that is linked of the first of them.
    fn link(&self, some: usize, around: Option<&Around<'_>>) -> Result<(Vec<u8>, usize), Failed> {
        let sections = self.sections(some);
        let opened = sections.par_iter().map(|bytes| Section::open(bytes, Lent::default()));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let units = opened.par_iter().map(|section| section.units(&[])).collect::<Result<Vec<_>, _>>()?;
        let units: Vec<Unit<'_>> = units.into_iter().flatten().collect();
        let options = Options {
            symbols: around.map_or(Symbols::None, |around| Symbols::Numbered(&around.symbols)),
            ..Options::default()
        };
        let linked = link::link(&units, &options)?;
        let plain = write::Options::new(Endian::Little);
        let options = write::Options {
            strings: around.map(|around| &around.strings),
            dynamic: around.is_some(),
            ..plain
        };
        let types = units.iter().map(|unit| unit.types.len()).sum();
        Ok((linked.write(&options, 8)?, types))
    }
}

/// Symbols and names of the linked program.
struct Around<'a> {
    symbols: Vec<LinkedSymbol<'a>>,
    strings: ExternalStrings<'a>,
}

fn around<'a>(image: &Image<'a>) -> Option<Around<'a>> {
    let (entries, strings) = image.symbol_table(Table::Dynamic)?;
    let symbols = entries.filter_map(|entry| {
        let kind = match (entry.is_object, entry.is_function) {
            (true, _) => SymbolKind::Object,
            (_, true) => SymbolKind::Function,
            _ => return None,
        };
        Symbol::counted(entry.name, kind, entry.is_undefined, entry.is_absolute, entry.value)?;
        Some(LinkedSymbol {
            name: entry.name,
            kind,
            file: None,
        })
    });
    Some(Around {
        symbols: symbols.collect(),
        strings: ExternalStrings::new(strings),
    })
}

fn program(binutils: &Binutils, folder: &Path, page: &mut String, details: &mut String) -> Result<(), Failed> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let objects = Objects::read(folder)?;
    let scratch = scratch();
    let without = scratch.path().join("without");
    fs::create_dir(&without)?;
    let mut bare = Vec::new();
    for path in &objects.paths {
        let to = without.join(path.file_name().unwrap_or_default());
        let mut objcopy = Command::new("objcopy");
        seconds(objcopy.args(["--remove-section", ".ctf"]).arg(path).arg(&to))?;
        bare.push(to);
    }
    let linked_path = folder.with_extension("ld");
    let linked_file = MappedFile::open(&linked_path).ok();
    let image = linked_file.as_ref().map(|file| Image::parse(file.bytes())).transpose()?;
    let around = image.as_ref().and_then(around);
    let pools = [1, 2].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
    let [one, two] = pools;
    let pools = [one?, two?];
    let ld = |objects: &[PathBuf]| {
        let mut ld = binutils.tool(Machine::X86_64, "ld").command();
        seconds(ld.arg("-r").args(objects).arg("-o").arg(scratch.path().join("out")))
    };
    let mut times = [const { Vec::new() }; 5];
    let mut made = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        for (pool, times) in pools.iter().zip(&mut times) {
            let start = Instant::now();
            made = pool.install(|| objects.link(usize::MAX, around.as_ref()).map_err(|error| error.to_string()))?;
            times.push(start.elapsed().as_secs_f64());
        }
        times[2].push(ld(&objects.paths)?);
        times[3].push(ld(&bare)?);
        if let Some(image) = &image {
            let start = Instant::now();
            pools[0].install(|| from_dwarf(image))?;
            times[4].push(start.elapsed().as_secs_f64());
        }
    }
    let [one, two, with, bare_time, dwarf] = times.map(|mut times| 1000.0 * median(&mut times));
    let (section, types) = made;
    let theirs = image.as_ref().map(|image| image.section(".ctf")).transpose()?.flatten();
    let missing = match &image {
        Some(_) => missing(binutils, &linked_path, &section, scratch.path())?.to_string(),
        None => "?".to_owned(),
    };
    let _ = writeln!(
        page,
        "| {name} | {} | {types} | {one:.1} | {two:.1} | {:.0} | {:.1} | {} | {} | {missing} | {dwarf:.0} |",
        objects.files.len(),
        with - bare_time,
        (with - bare_time) / one,
        section.len(),
        theirs.map_or("?".to_owned(), |theirs| theirs.data.len().to_string()),
    );
    growth(&objects, &pools[0], &name, details)?;
    look_up(&objects, &name, details)
}

fn from_dwarf(image: &Image<'_>) -> Result<(), String> {
    let Some(sections) = Sections::load(image, None).map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let parts = Parts::read(&sections).map_err(|error| error.to_string())?;
    let made = parts.make();
    let linked = link::link(&made.units, &Options::default()).map_err(|error| error.to_string())?;
    let section = linked.write(&write::Options::new(image.endian()), 8);
    section.map(drop).map_err(|error| error.to_string())
}

/// How many types and symbols of GNU ld's section ours lacks, as objdump shows both.
fn missing(binutils: &Binutils, linked: &Path, section: &[u8], scratch: &Path) -> Result<usize, Failed> {
    let (path, other) = (scratch.join("section"), scratch.join("other"));
    fs::write(&path, section)?;
    let mut objcopy = binutils.tool(Machine::X86_64, "objcopy").command();
    let update = format!("--update-section=.ctf={}", path.display());
    seconds(objcopy.arg(update).arg(linked).arg(&other))?;
    let dicts = |file: &Path| -> Result<Dicts, Failed> {
        let mut objdump = binutils.tool(Machine::X86_64, "objdump").command();
        let output = objdump.arg("--ctf").arg(file).output()?;
        Ok(Dicts::parse(&String::from_utf8_lossy(&output.stdout)))
    };
    let missing = dicts(&other)?.missing(&dicts(linked)?);
    for text in missing.iter().take(5) {
        skip(format!("missing: {text}"));
    }
    Ok(missing.len())
}

fn growth(objects: &Objects, pool: &rayon::ThreadPool, name: &str, page: &mut String) -> Result<(), Failed> {
    if objects.files.len() < 100 {
        return Ok(());
    }
    let _ = writeln!(page, "\n## Growth: {name}\n\n| units | types | ms, 1 thread | µs a type |\n|---|---|---|---|");
    for some in GROWTH.map(|some| some.min(objects.files.len())) {
        let mut times = Vec::new();
        let mut types = 0;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            types = pool.install(|| objects.link(some, None).map_err(|error| error.to_string()))?.1;
            times.push(start.elapsed().as_secs_f64());
        }
        let time = median(&mut times);
        let _ = writeln!(page, "| {some} | {types} | {:.1} | {:.2} |", 1e3 * time, 1e6 * time / types as f64);
    }
    Ok(())
}

fn look_up(objects: &Objects, name: &str, page: &mut String) -> Result<(), Failed> {
    let (section, _) = objects.link(usize::MAX, None)?;
    let archive = backtrail_ctype::Archive::parse(&section)?;
    let parent = archive.find(b".ctf").ok_or("a parent")?;
    let mut opening = Vec::new();
    for _ in 0..101 {
        let start = Instant::now();
        std::hint::black_box(Dict::open(parent.bytes, Lent::default())?.len());
        opening.push(start.elapsed().as_secs_f64());
    }
    let dict = Dict::open(parent.bytes, Lent::default())?;
    let start = Instant::now();
    let index = NameIndex::new(dict.types());
    let building = start.elapsed().as_secs_f64();
    let mut names: Vec<(Option<Kind>, Vec<u8>)> = Vec::new();
    for id in dict.ids() {
        let found = dict.types().get(id)?;
        if let (Kind::Struct, name) = (found.kind(), found.name()?)
            && !name.is_empty()
        {
            names.push((Some(Kind::Struct), name.to_vec()));
        }
    }
    let mut times = Vec::new();
    for _ in 0..101 {
        let start = Instant::now();
        for (kind, name) in &names {
            std::hint::black_box(index.get(*kind, name));
        }
        times.push(start.elapsed().as_secs_f64() / names.len().max(1) as f64);
    }
    let _ = writeln!(
        page,
        "\n## Opening: {name}\n\nThe parent ({} types) opens in {:.2} ms, the most of it inflating; its index of {} names is made in {:.2} ms, and a \
         look-up by name takes {:.0} ns (medians of 101).",
        dict.len(),
        1e3 * median(&mut opening),
        index.len(),
        1e3 * building,
        1e9 * median(&mut times),
    );
    Ok(())
}

fn seconds(run: &mut Command) -> Result<f64, Failed> {
    let finished = command::run(run, LIMIT).map_err(|missing| missing.0)?;
    match finished.code() {
        0 => Ok(finished.wall.as_secs_f64()),
        _ => Err(finished.describe().into()),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
