//! `cargo evidence sframe-readers`: what readers refuse in the tables of the system's programs and
//! libraries, and what merged tables cost at look-up.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use backtrail_cfi::sizes::MERGE;
use backtrail_cfi::tables;
use backtrail_cfi::whole::Whole;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::readers::{Reader, Readers};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Index, Section, Version};
use backtrail_testkit::peers::{Binutils, Release};
use backtrail_testkit::text::Random;
use backtrail_testkit::{command, place, scratch, skip};

use crate::additions::system::{FOLDERS, elf_files};

const LIMIT: Duration = Duration::from_secs(60);

/// An address as in an ordinary file: not 0, and aligned.
const ADDRESS: u64 = 0x1000;

/// A row of the first table: one reader, and tables as they are without `--for` or with it.
#[derive(Default)]
struct Count {
    tables: u64,
    /// Tables in which something is refused.
    refused: u64,
    /// What is refused, how often.
    reasons: BTreeMap<&'static str, u64>,
    described: u64,
    /// Code that was left out beyond what the version leaves out, and pieces by reason.
    left_out: BTreeMap<&'static str, (u64, u64)>,
    bytes: u64,
}

/// Builds all tables, prints the page and writes it.
pub(crate) fn run() -> Result<(), String> {
    let mut page = format!(
        "# Tables for their readers\n\nMade by `cargo evidence sframe-readers`. {}\n\n",
        crate::machine()
    );
    page.push_str(RULES);
    let mut broken = Vec::new();
    refusals(&mut page, &mut broken);
    merging(&mut page)?;
    print!("{page}");
    fs::write(place::workspace().join("docs/sframe-readers.md"), &page).map_err(|error| error.to_string())?;
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

const RULES: &str = "\
`backtrail sframe check --for READER` applies the rules of [sframe.md](sframe.md#tables-for-a-reader) to
any table; `--for` of `build`, `add`, `convert` and `link` makes a table that passes. Promised: with
`--for`, nothing is refused.

";

const HEAD: &str = "\
## Refused in tables of a system

Tables made from every ELF file in `/usr/bin` and `/usr/lib/x86_64-linux-gnu`, as by `sframe add`, in the
version that the reader knows: first with `--version` alone, then with `--for`. Either the whole table is
refused, or the first row of a function that the reader refuses is counted. *Left out* is code that has
rows with `--version` and none with `--for`.

| reader | version | tables | refused, without `--for`: tables | by reason | refused with `--for` | left out: pieces | of the code | bytes of all tables, without and with `--for` |
|---|---|---|---|---|---|---|---|---|
";

fn refusals(page: &mut String, broken: &mut Vec<String>) {
    let mut files = Vec::new();
    for folder in FOLDERS {
        elf_files(Path::new(folder), &mut files);
    }
    let mut counts: BTreeMap<&str, [Count; 2]> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        if number % 200 == 0 {
            eprintln!("{number} of {} files", files.len());
        }
        let Ok(bytes) = FileBytes::open(file) else { continue };
        let Ok(image) = Image::of(&bytes) else { continue };
        let Ok(whole) = Whole::of_image(&image) else { continue };
        if whole.is_empty() {
            continue;
        }
        for reader in Reader::ALL {
            let counts = counts.entry(reader.name()).or_default();
            for (count, restricted) in counts.iter_mut().zip([false, true]) {
                count.add(&image, &whole, reader, restricted);
            }
        }
    }
    page.push_str(HEAD);
    for reader in Reader::ALL {
        let Some([usual, restricted]) = counts.get(reader.name()) else {
            continue;
        };
        if restricted.refused > 0 {
            broken.push(format!("{}: {:?}", reader.name(), restricted.reasons));
        }
        let reasons = usual.reasons.iter().map(|(reason, count)| format!("{reason} {count}"));
        let none = (0, 0);
        let left_out = restricted.left_out.iter().filter_map(|(reason, (pieces, bytes))| {
            let before = usual.left_out.get(reason).unwrap_or(&none);
            (*pieces > before.0).then(|| (*reason, pieces - before.0, bytes - before.1))
        });
        let left_out: Vec<_> = left_out.collect();
        let lost: u64 = left_out.iter().map(|(.., bytes)| bytes).sum();
        let pieces = left_out.iter().map(|(reason, pieces, _)| format!("{reason} {pieces}"));
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} | {} | {:.4} % | {}, {} |",
            reader.name(),
            version(reader) as u8,
            usual.tables,
            usual.refused,
            reasons.collect::<Vec<_>>().join(", "),
            restricted.refused,
            pieces.collect::<Vec<_>>().join(", "),
            lost as f64 / usual.described.max(1) as f64 * 100.0,
            usual.bytes,
            restricted.bytes,
        );
    }
}

fn version(reader: Reader) -> Version {
    Readers::from_iter([reader]).version().unwrap_or(Version::V3)
}

impl Count {
    fn add(&mut self, image: &Image<'_>, whole: &Whole, reader: Reader, restricted: bool) {
        let usual = Options {
            merge: MERGE,
            ..Options::new(version(reader), tables::abi(image), ADDRESS)
        };
        let options = match restricted {
            true => usual.for_readers(Readers::from_iter([reader])),
            false => usual,
        };
        let Ok(built) = whole.table(&options) else { return };
        if built.functions == 0 {
            return;
        }
        let Ok(section) = Section::parse(&built.bytes, ADDRESS) else {
            return;
        };
        let before: u64 = self.reasons.values().sum();
        reader.refusals(&section, &mut |refusal| {
            *self.reasons.entry(refusal.what.name()).or_default() += 1;
            ControlFlow::Continue(())
        });
        self.tables += 1;
        self.refused += u64::from(self.reasons.values().sum::<u64>() > before);
        self.described += built.covered_bytes + built.uncovered_bytes();
        self.bytes += built.bytes.len() as u64;
        for (reason, (pieces, bytes)) in built.skipped_by_reason() {
            let all = self.left_out.entry(reason).or_default();
            *all = (all.0 + pieces, all.1 + bytes);
        }
    }
}

/// The programs whose tables are merged.
const PROGRAMS: [&str; 3] = ["/usr/bin/perl", "/usr/bin/git", "/usr/bin/gdb"];
const MOST: [u8; 6] = [1, 2, 4, 8, 16, 32];
const LOOK_UPS: usize = 100_000;
const BATCH: usize = 10_000;
const ROUNDS: usize = 9;

/// What look-ups cost by the number of functions under one FDE.
fn merging(page: &mut String) -> Result<(), String> {
    page.push_str(
        "\n## Merged tables\n\n\
         Version 3 tables with up to N functions under one FDE (`--merge N`), at random addresses in functions;\n\
         nanoseconds of a look-up in the best batch of 10,000, of all rounds in turn. Readers find an FDE by\n\
         binary search and scan its rows from the start: with larger N there are fewer FDEs, with more rows each,\n\
         but at most 128 in joined FDEs. The kernel and glibc do the same, but cannot be measured here.\n\n\
         | program | N | bytes | of N = 1 | FDEs | most rows | mean rows before the one that is found | ours, ns | by an index of functions, ns | libsframe 2.47, ns |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    let folder = scratch();
    let library = library(folder.path())?;
    let mut random = Random::new(7);
    for program in PROGRAMS {
        let Ok(bytes) = FileBytes::open(program) else {
            skip(format!("{program} is not there"));
            continue;
        };
        let image = Image::of(&bytes).map_err(|error| error.to_string())?;
        let whole = Whole::of_image(&image).map_err(|error| error.to_string())?;
        let mut built = Vec::new();
        for merge in MOST {
            let options = Options {
                merge,
                ..Options::new(Version::V3, tables::abi(&image), ADDRESS)
            };
            built.push(whole.table(&options).map_err(|error| error.to_string())?.bytes);
        }
        let pcs = pcs(&built[0], &mut random)?;
        let mut times = vec![[f64::INFINITY; 3]; MOST.len()];
        for _ in 0..ROUNDS {
            for (bytes, times) in built.iter().zip(&mut times) {
                let round = time(bytes, &pcs, library.as_deref(), folder.path())?;
                for (least, time) in times.iter_mut().zip(round) {
                    *least = least.min(time);
                }
            }
        }
        for ((merge, bytes), [ours, indexed, theirs]) in MOST.into_iter().zip(&built).zip(times) {
            let section = Section::parse(bytes, ADDRESS).map_err(|error| error.to_string())?;
            let functions = section.functions().flatten();
            let most = functions.map(|fde| fde.function().rows).max().unwrap_or_default();
            let some = pcs.iter().step_by(100);
            let before: usize = some.clone().map(|&pc| rows_before(&section, pc)).sum();
            let _ = writeln!(
                page,
                "| {} | {merge} | {} | {:.3} | {} | {most} | {:.1} | {ours:.0} | {indexed:.0} | {theirs:.0} |",
                program.rsplit('/').next().unwrap_or(program),
                bytes.len(),
                bytes.len() as f64 / built[0].len() as f64,
                section.num_fdes(),
                before as f64 / some.len() as f64,
            );
        }
    }
    let _ = writeln!(
        page,
        "\nNo reader refuses a merged table. Two neighbours save most and cost look-ups least; with more, rows to\n\
         scan grow faster than tables shrink. The default is N = {MERGE}, with which our look-ups take less than a third\n\
         longer; `--merge 2` or `4` is for tables in which look-ups matter more than size, and `--merge 1` gives\n\
         each function its own FDE. Other programs ran at the same time; the times of libsframe, a process for\n\
         each round, vary most."
    );
    Ok(())
}

/// How many rows a reader passes before the one for `pc`.
fn rows_before(section: &Section<'_>, pc: u64) -> usize {
    let Ok(Some(found)) = section.lookup(pc) else { return 0 };
    let fde = section
        .functions()
        .flatten()
        .find(|fde| fde.function().start == found.function.start);
    let rows = fde.map(|fde| fde.rows().flatten().filter(|row| row.start < found.row.start).count());
    rows.unwrap_or_default()
}

/// Random addresses in ordinary functions.
fn pcs(bytes: &[u8], random: &mut Random) -> Result<Vec<u64>, String> {
    let section = Section::parse(bytes, ADDRESS).map_err(|error| error.to_string())?;
    let functions: Vec<_> = section.functions().flatten().map(|fde| fde.function()).collect();
    let usual: Vec<_> = functions
        .iter()
        .filter(|function| function.size > 0 && function.repeat.is_none())
        .collect();
    let pc = |_| {
        let function = usual[random.below(usual.len())];
        function.start + random.below(function.size as usize) as u64
    };
    Ok((0..LOOK_UPS).map(pc).collect())
}

/// Nanoseconds of a look-up of ours, with an index, and of libsframe.
fn time(bytes: &[u8], pcs: &[u64], library: Option<&Path>, folder: &Path) -> Result<[f64; 3], String> {
    let section = Section::parse(bytes, ADDRESS).map_err(|error| error.to_string())?;
    let mut words = vec![0; Index::words(&section)];
    let index = Index::build(&section, &mut words).ok_or("the table is not sorted")?;
    let ours = best(pcs, |pc| matches!(section.lookup(pc), Ok(Some(_))));
    let indexed = best(pcs, |pc| matches!(section.lookup_by(&index, pc), Ok(Some(_))));
    let Some(library) = library else {
        return Ok([ours, indexed, f64::NAN]);
    };
    let (table, addresses) = (folder.join("section"), folder.join("pcs"));
    let offsets = pcs.iter().flat_map(|pc| pc.wrapping_sub(ADDRESS).to_ne_bytes());
    fs::write(&table, bytes).map_err(|error| error.to_string())?;
    fs::write(&addresses, offsets.collect::<Vec<u8>>()).map_err(|error| error.to_string())?;
    let mut command = Command::new(library);
    let finished =
        command::run(command.arg(&table).arg(&addresses).arg("1"), LIMIT).map_err(|error| error.to_string())?;
    let theirs = finished
        .stdout
        .trim()
        .parse()
        .map_err(|_| finished.describe().to_string())?;
    Ok([ours, indexed, theirs])
}

fn best(pcs: &[u64], found: impl Fn(u64) -> bool) -> f64 {
    let batches = pcs.chunks_exact(BATCH).map(|batch| {
        let begin = Instant::now();
        for &pc in batch {
            black_box(found(black_box(pc)));
        }
        begin.elapsed().as_nanos() as f64 / batch.len() as f64
    });
    batches.fold(f64::INFINITY, f64::min)
}

/// The small program of `bench/` that times libsframe.
fn library(folder: &Path) -> Result<Option<PathBuf>, String> {
    let Some(library) = Binutils::get(Release::V2_47).and_then(|tools| tools.shared_library("libsframe.so")) else {
        return Ok(None);
    };
    // A copy, so that its own libc does not come along without the loader that belongs to it.
    let copy = folder.join(library.file_name().unwrap_or_default());
    fs::copy(&library, &copy).map_err(|error| error.to_string())?;
    let program = folder.join("libsframe");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"]).arg(&program);
    gcc.arg(place::workspace().join("bench/src/sframe/libsframe.c"))
        .arg(&copy)
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    let finished = command::run(&mut gcc, LIMIT).map_err(|error| error.to_string())?;
    match finished.code() {
        0 => Ok(Some(program)),
        _ => Err(finished.describe().to_string()),
    }
}
