//! Compares linking types with GNU ld, making them from DWARF with pahole, opening and looking up
//! with libctf: the same programs, in turn, in one run.
//!
//! `cargo run --release --bin types [-- PROGRAM…]`; without a name all programs, written to
//! `docs/types-speed.md`.

use std::fmt::Write as _;
use std::fs;
use std::hint::spin_loop;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use backtrail_ctype::link::{self, LinkedSymbol, Options, Section, Symbols, Unit};
use backtrail_ctype::write::{self, ExternalStrings};
use backtrail_ctype::{Dict, Kind, NameIndex, Surroundings, Symbol};
use backtrail_debuginfo::types::{Parts, Sections, counted};
use backtrail_elf::{FileBytes, Image, Table};
use backtrail_testkit::peers::{Binutils, CProgram, Compiler, Machine, Release};
use backtrail_testkit::{command, place, scratch, skip};
use backtrail_wire::Endian;
use rayon::prelude::*;

const ROUNDS: usize = 11;
const LOOKS: usize = 101;
const LIMIT: Duration = Duration::from_secs(300);
/// How long all threads work before each measurement: a virtual machine's CPU that was idle for
/// long needs milliseconds to return.
const AWAKE: Duration = Duration::from_millis(10);
/// Units of the measured growth.
const GROWTH: [usize; 5] = [25, 50, 100, 200, 400];

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    match measure(&names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(names: &[String]) -> Result<(), Failed> {
    let binutils = Binutils::get(Release::V2_47).ok_or("binutils 2.47 is what is compared with")?;
    let mut page = format!(
        "# How fast types are linked, made and found\n\n\
         Made by `cargo run --release --bin types` in `bench/`: medians of {ROUNDS} rounds, in which all tools took turns.\n\
         The cost of types in GNU ld 2.47 is the time of `ld -r` of the objects (gcc 12 `-g -gctf`) minus that of\n\
         the same objects without `.ctf`; ours is the time from the mapped objects to the bytes of the section.\n\
         *From DWARF*, the types of the linked program are made and linked; pahole makes BTF from the same\n\
         (`pahole -J`, all its symbols). On a busy machine, ratios are more reliable than milliseconds. Before\n\
         each measurement all its threads have worked for {} ms: if a CPU of the virtual machine was idle for a\n\
         tenth of a second, it resumes so late that the second thread gains only 1.0 to 1.2 (redis-server, ld) or\n\
         1.5 to 1.9 (git).\n\n\
         | program | units | types | 1 thread, ms | 2 threads, ms | gain | GNU ld, ms | ld / 1 thread | from DWARF, 1 thread, ms | 2 threads, ms | pahole, ms | pahole / 1 thread |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        AWAKE.as_millis()
    );
    let mut details = String::new();
    for name in CProgram::NAMES
        .iter()
        .filter(|name| names.is_empty() || names.iter().any(|wanted| wanted == *name))
    {
        if let Some(found) = CProgram::get(name, Compiler::Gcc) {
            program(&binutils, &found, &mut page, &mut details)?;
        }
    }
    page.push_str(&details);
    print!("{page}");
    match names.is_empty() {
        true => Ok(fs::write(place::workspace().join("docs/types-speed.md"), page)?),
        false => Ok(()),
    }
}

/// A program's objects.
struct Objects {
    files: Vec<FileBytes>,
}

impl Objects {
    fn open(paths: &[PathBuf]) -> Result<Objects, Failed> {
        let files = paths
            .iter()
            .map(|path| FileBytes::open(path))
            .collect::<Result<_, _>>()?;
        Ok(Objects { files })
    }

    fn sections(&self, some: usize) -> Vec<Vec<u8>> {
        let files = self.files.par_iter().take(some).with_max_len(link::AT_ONCE);
        let sections = files.filter_map(|file| {
            Some(
                Image::parse(file.bytes())
                    .ok()?
                    .section(".ctf")
                    .ok()??
                    .data
                    .into_owned(),
            )
        });
        sections.collect()
    }

    /// The section linked from the first `some` objects.
    fn link(&self, some: usize, around: Option<&Around<'_>>) -> Result<(Vec<u8>, usize), Failed> {
        let sections = self.sections(some);
        let opened = sections.par_iter().with_max_len(link::AT_ONCE);
        let opened = opened.map(|bytes| Section::open(bytes, Surroundings::default()));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let units = opened
            .par_iter()
            .with_max_len(link::AT_ONCE)
            .map(|section| section.units(&[]))
            .collect::<Result<Vec<_>, _>>()?;
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
        let Symbol { name, kind } = counted(&entry)?;
        let file = None;
        Some(LinkedSymbol { name, kind, file })
    });
    Some(Around {
        symbols: symbols.collect(),
        strings: ExternalStrings::new(strings),
    })
}

fn program(binutils: &Binutils, program: &CProgram, page: &mut String, details: &mut String) -> Result<(), Failed> {
    let objects = Objects::open(&program.objects)?;
    let scratch = scratch();
    let without = scratch.path().join("without");
    fs::create_dir(&without)?;
    let mut bare = Vec::new();
    for path in &program.objects {
        let to = without.join(path.file_name().unwrap_or_default());
        let mut objcopy = Command::new("objcopy");
        seconds(objcopy.args(["--remove-section", ".ctf"]).arg(path).arg(&to))?;
        bare.push(to);
    }
    let linked = FileBytes::open(&program.linked)?;
    let image = Image::parse(linked.bytes())?;
    let around = around(&image);
    let pools = [1, 2].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build());
    let [one, two] = pools;
    let pools = [one?, two?];
    let ld = |objects: &[PathBuf]| {
        let mut ld = binutils.tool(Machine::X86_64, "ld").command();
        seconds(ld.arg("-r").args(objects).arg("-o").arg(scratch.path().join("out")))
    };
    let pahole = || {
        let mut pahole = Command::new("pahole");
        let btf = format!("--btf_encode_detached={}", scratch.path().join("btf").display());
        seconds(pahole.args(["-J", &btf]).arg(&program.linked))
    };
    let has_pahole = pahole().map_err(|error| skip(format_args!("pahole: {error}"))).is_ok();
    let mut times = [const { Vec::new() }; 7];
    let mut types = 0;
    for _ in 0..ROUNDS {
        for (number, pool) in pools.iter().enumerate() {
            wake(pool);
            let start = Instant::now();
            types = pool
                .install(|| {
                    objects
                        .link(usize::MAX, around.as_ref())
                        .map_err(|error| error.to_string())
                })?
                .1;
            times[number].push(start.elapsed().as_secs_f64());
            wake(pool);
            let start = Instant::now();
            pool.install(|| from_dwarf(&image))?;
            times[2 + number].push(start.elapsed().as_secs_f64());
        }
        times[4].push(ld(&program.objects)?);
        times[5].push(ld(&bare)?);
        if has_pahole {
            times[6].push(pahole()?);
        }
    }
    let [one, two, dwarf, dwarf_two, with, bare, pahole] = times.map(|mut times| 1000.0 * median(&mut times));
    let _ = writeln!(
        page,
        "| {} | {} | {types} | {one:.1} | {two:.1} | {:.2} | {:.0} | {:.1} | {dwarf:.0} | {dwarf_two:.0} | {pahole:.0} | {:.1} |",
        program.name,
        objects.files.len(),
        one / two,
        with - bare,
        (with - bare) / one,
        pahole / dwarf,
    );
    growth(&objects, &pools[0], program.name, details)?;
    look_up(&objects, around.as_ref(), program, scratch.path(), details)
}

/// Lets all threads of a pool work for a moment.
fn wake(pool: &rayon::ThreadPool) {
    pool.broadcast(|_| {
        let start = Instant::now();
        while start.elapsed() < AWAKE {
            spin_loop();
        }
    });
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

fn growth(objects: &Objects, pool: &rayon::ThreadPool, name: &str, page: &mut String) -> Result<(), Failed> {
    if objects.files.len() < 100 {
        return Ok(());
    }
    let _ = writeln!(
        page,
        "\n## Growth: {name}\n\n| units | types | ms, 1 thread | µs a type |\n|---|---|---|---|"
    );
    for some in GROWTH.map(|some| some.min(objects.files.len())) {
        let mut times = Vec::new();
        let mut types = 0;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            types = pool
                .install(|| objects.link(some, None).map_err(|error| error.to_string()))?
                .1;
            times.push(start.elapsed().as_secs_f64());
        }
        let time = median(&mut times);
        let _ = writeln!(
            page,
            "| {some} | {types} | {:.1} | {:.2} |",
            1e3 * time,
            1e6 * time / types as f64
        );
    }
    Ok(())
}

fn look_up(
    objects: &Objects,
    around: Option<&Around<'_>>,
    program: &CProgram,
    scratch: &Path,
    page: &mut String,
) -> Result<(), Failed> {
    let (section, _) = objects.link(usize::MAX, around)?;
    let linked = FileBytes::open(&program.linked)?;
    let image = Image::parse(linked.bytes())?;
    let surroundings = Surroundings {
        strings: image.symbol_table(Table::Dynamic).map_or(&[], |(_, strings)| strings),
        ..Surroundings::default()
    };
    let archive = backtrail_ctype::Archive::parse(&section)?;
    let parent = archive.member(0)?;
    let dict = Dict::open(parent.bytes, surroundings)?;
    let start = Instant::now();
    let index = NameIndex::new(dict.types());
    let indexing = start.elapsed().as_secs_f64();
    let mut names: Vec<String> = Vec::new();
    for id in dict.ids() {
        let found = dict.types().get(id)?;
        if found.kind() == Kind::Struct && !found.name()?.is_empty() {
            names.push(String::from_utf8(found.name()?.to_vec())?);
        }
    }
    let (mut opening, mut finding) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        let start = Instant::now();
        let archive = backtrail_ctype::Archive::parse(&section)?;
        std::hint::black_box(Dict::open(archive.member(0)?.bytes, surroundings)?.len());
        opening.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for name in &names {
            std::hint::black_box(index.get(Some(Kind::Struct), name.as_bytes()));
        }
        finding.push(start.elapsed().as_secs_f64() / names.len().max(1) as f64);
    }
    let _ = writeln!(
        page,
        "\n## Opening: {}\n\nOurs, {} types in the parent, {} bytes in all: {:.3} ms to open, {:.3} ms for an index of {} names, {:.0} ns for a look-up of a struct by name.",
        program.name,
        dict.len(),
        section.len(),
        1e3 * median(&mut opening),
        1e3 * indexing,
        index.len(),
        1e9 * median(&mut finding),
    );
    match libctf(&program.linked, &names, scratch) {
        Ok([opening, finding]) => {
            let _ = writeln!(
                page,
                "libctf 2.40, GNU ld's section: {:.3} ms to open with its indexes, {finding:.0} ns for a look-up.",
                opening / 1e3
            );
        }
        Err(error) => skip(format_args!("libctf: {error}")),
    }
    Ok(())
}

/// Microseconds of opening and nanoseconds of a look-up, by the system's libctf.
fn libctf(file: &Path, names: &[String], scratch: &Path) -> Result<[f64; 2], Failed> {
    let program = scratch.join("libctf_times");
    let mut gcc = Command::new("gcc");
    let source = place::workspace().join("bench/programs/libctf_times.c");
    seconds(gcc.arg("-O2").arg(source).arg("-o").arg(&program).arg("-l:libctf.so.0"))?;
    let mut times = Command::new(program);
    // Types that GNU ld does not share are not in the parent, and are left out.
    let mut found = Vec::new();
    for name in names.iter().take(400) {
        let spelled = format!("struct {name}");
        let mut once = Command::new(times.get_program());
        if once.arg(file).args(["1", &spelled]).output()?.status.success() {
            found.push(spelled);
        }
        if found.len() == 100 {
            break;
        }
    }
    let output = times.arg(file).arg(LOOKS.to_string()).args(&found).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(opening), Some(finding)) => Ok([opening?, finding?]),
        _ => Err("it can't open the file".into()),
    }
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
