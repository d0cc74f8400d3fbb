//! `cargo evidence sframe-v4`: the rows of real tables in version 3 and in a form that a fourth
//! version of SFrame could have: bytes, and time for a look-up.

mod table;

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use backtrail_cfi::sizes::MERGE;
use backtrail_cfi::tables;
use backtrail_cfi::whole::Whole;
use backtrail_elf::{FileBytes, Image, SectionData};
use backtrail_sframe::write::{FunctionRows, Options};
use backtrail_sframe::{Abi, Location, Section, Version};
use backtrail_testkit::text::Random;
use backtrail_testkit::{place, skip};

use table::{Form, Found, MOST_STEPS, Table, Written};

/// What is measured: a few programs and libraries of different compilers, and of another CPU.
const FILES: [&str; 12] = [
    "/usr/bin/gdb",
    "/usr/bin/git",
    "/usr/bin/perl",
    "/usr/bin/python3.11",
    "/usr/bin/bash",
    "/usr/bin/ls",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
    "/usr/bin/node",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libstdc++.so.6",
];

/// States and gaps; then with steps, in pages of three sizes.
const FORMS: [Form; 4] = [
    form(64, 0),
    form(32, MOST_STEPS),
    form(64, MOST_STEPS),
    form(128, MOST_STEPS),
];

/// The form that the page proposes, as an index of [`FORMS`].
const PROPOSED: usize = 2;

const fn form(page: usize, steps: usize) -> Form {
    Form { page, steps }
}

const LOOKUPS: usize = 100_000;

/// The tables of one file.
struct Tables {
    name: String,
    dwarf: u64,
    /// Version 3: each function with its own FDE and rows, with shared rows, merged.
    third: [Vec<u8>; 3],
    fourth: Vec<Written>,
    ra: Location,
}

/// Measures, checks, and writes the page.
pub(crate) fn run() -> Result<(), String> {
    let mut all = Vec::new();
    for path in FILES {
        if !Path::new(path).exists() {
            skip(format!("{path} is not there"));
            continue;
        }
        let tables = Tables::of(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
        tables.check().map_err(|error| format!("{path}: {error}"))?;
        all.push(tables);
    }
    let page = include_str!("page.md")
        .replace("{machine}", &crate::machine())
        .replace("{sizes}", &sizes(&all))
        .replace("{parts}", &parts(&all))
        .replace("{times}", &times(&all)?);
    print!("{page}");
    fs::write(place::workspace().join("docs/sframe-v4-proposal.md"), &page).map_err(|error| error.to_string())
}

impl Tables {
    fn of(path: &Path) -> Result<Tables, String> {
        let file = FileBytes::open(path).map_err(|error| error.to_string())?;
        let image = Image::of(&file).map_err(|error| error.to_string())?;
        let len = |section: Result<Option<SectionData<'_>>, backtrail_elf::Error>| {
            section.map(|section| section.map_or(0, |section| section.data.len() as u64))
        };
        let dwarf = len(image.eh_frame()).and_then(|frame| Ok(frame + len(image.eh_frame_hdr())?));
        let whole = Whole::of_image(&image).map_err(|error| error.to_string())?;
        let abi = tables::abi(&image);
        let third = |share: bool, merge: u8| {
            let usual = Options::new(Version::V3, abi, 0);
            let built = whole.table(&Options { share, merge, ..usual });
            built.map(|built| built.bytes).map_err(|error| error.to_string())
        };
        let third = [third(false, 1)?, third(true, 1)?, third(true, MERGE)?];
        let ra = usual_ra(abi);
        let functions = functions(&third[2])?;
        let fourth = FORMS.map(|form| table::write(&functions, ra, form).ok_or("4 GiB of code or more"));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Tables {
            name: match path.starts_with("/usr/aarch64-linux-gnu") {
                true => format!("{name} of AArch64"),
                false => name.into_owned(),
            },
            dwarf: dwarf.map_err(|error| error.to_string())?,
            third,
            fourth: fourth.into_iter().collect::<Result<_, _>>()?,
            ra,
        })
    }

    /// Both versions must have the same rows: at each row's first and last address, and at both
    /// sides of each function.
    fn check(&self) -> Result<(), String> {
        let third = Section::parse(&self.third[2], 0).map_err(|error| error.to_string())?;
        let places = boundaries(&functions(&self.third[2])?);
        for written in &self.fourth {
            let fourth = Table::read(&written.bytes, self.ra).ok_or("can't be read")?;
            for &pc in &places {
                let expected = in_third(&third, pc)?;
                let found = fourth.lookup(pc);
                if expected != found {
                    return Err(format!("at {pc:#x}: {found:?}, not {expected:?}"));
                }
            }
        }
        Ok(())
    }
}

fn functions(table: &[u8]) -> Result<Vec<FunctionRows>, String> {
    let read = Section::parse(table, 0).and_then(|section| FunctionRows::read_all(&section));
    read.map_err(|error| error.to_string())
}

/// Where a table of the ABI has the return address if a row does not say: on x86-64 the ABI fixes
/// it, elsewhere most rows are of functions that saved it below the frame pointer.
fn usual_ra(abi: Abi) -> Location {
    match abi.fixed_ra_offset() {
        0 => Location::saved(-8),
        fixed => Location::saved(fixed.into()),
    }
}

fn boundaries(functions: &[FunctionRows]) -> Vec<u64> {
    let mut places = Vec::new();
    for function in functions {
        let end = function.start + u64::from(function.size);
        let starts = function.rows.iter().map(|row| function.start + u64::from(row.start));
        places.extend(starts.filter(|start| *start < end).chain([function.start, end]));
    }
    let before = places.iter().filter_map(|place| place.checked_sub(1));
    before.chain(places.iter().copied()).collect()
}

fn in_third(table: &Section<'_>, pc: u64) -> Result<Option<Found>, String> {
    let found = table.lookup(pc).map_err(|error| error.to_string())?;
    Ok(found.map(|found| Found {
        rule: found.row.rule,
        signal_frame: found.function.signal_frame,
        key_b: found.function.pauth_key_b,
    }))
}

fn sizes(all: &[Tables]) -> String {
    let mut table = String::new();
    for tables in all {
        let third = tables.third.iter().map(Vec::len);
        let lens = third.chain(tables.fourth.iter().map(|written| written.bytes.len()));
        let ratios = lens.map(|len| format!("{:.3}", len as f64 / tables.dwarf as f64));
        let ratios = ratios.collect::<Vec<_>>().join(" | ");
        let _ = writeln!(table, "| {} | {} | {ratios} |", tables.name, tables.dwarf);
    }
    table
}

/// The parts of tables in the proposed form.
fn parts(all: &[Tables]) -> String {
    let mut table = String::new();
    for tables in all {
        let parts = &tables.fourth[PROPOSED].parts;
        let _ = writeln!(
            table,
            "| {} | {} | {:.2} | {} | {} | {} | {} |",
            tables.name,
            parts.count,
            parts.changes as f64 / parts.count as f64,
            parts.changes,
            parts.pages,
            parts.states,
            parts.steps
        );
    }
    table
}

fn times(all: &[Tables]) -> Result<String, String> {
    let mut table = String::new();
    for tables in all {
        let pcs = random_pcs(&functions(&tables.third[0])?);
        let mut times = Vec::new();
        for third in [&tables.third[1], &tables.third[2]] {
            let third = Section::parse(third, 0).map_err(|error| error.to_string())?;
            times.push(nanoseconds(&pcs, |pc| {
                third.lookup(pc).is_ok_and(|found| found.is_some())
            }));
        }
        for written in &tables.fourth {
            let fourth = Table::read(&written.bytes, tables.ra).ok_or("can't be read")?;
            times.push(nanoseconds(&pcs, |pc| fourth.lookup(pc).is_some()));
        }
        let times = times.iter().map(|time| format!("{time:.0}")).collect::<Vec<_>>();
        let _ = writeln!(table, "| {} | {} |", tables.name, times.join(" | "));
    }
    Ok(table)
}

/// Addresses in random functions.
fn random_pcs(functions: &[FunctionRows]) -> Vec<u64> {
    let mut random = Random::new(1);
    let mut pc = || {
        let function = &functions[random.below(functions.len())];
        function.start + random.below(function.size.max(1) as usize) as u64
    };
    (0..LOOKUPS).map(|_| pc()).collect()
}

/// The best of a few rounds, for each look-up.
fn nanoseconds(pcs: &[u64], lookup: impl Fn(u64) -> bool) -> f64 {
    let round = || {
        let begun = Instant::now();
        for pc in pcs {
            black_box(lookup(black_box(*pc)));
        }
        begun.elapsed().as_nanos() as f64 / pcs.len() as f64
    };
    (0..7).map(|_| round()).fold(f64::INFINITY, f64::min)
}
