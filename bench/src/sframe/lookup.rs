//! Compares look-ups with libsframe and the crate simple-frame-rs.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Index, Location, Row, Rule, Section, Version};
use backtrail_testkit::peers::{Binutils, Release};
use backtrail_testkit::text::Random;
use backtrail_testkit::{TempDir, scratch, skip};

use super::median;

const ADDRESS: u64 = 0x1_0000;
const LOOK_UPS: usize = 100_000;
/// So short that some batches fall between two disturbances.
const BATCH: usize = 10_000;

/// A row of the table: nanoseconds per look-up, the best batch of all rounds, and the medians of
/// the rounds' ratios.
pub(super) struct Line {
    pub(super) table: String,
    pub(super) version: Version,
    pub(super) ours: f64,
    /// Ours with an index of the functions.
    pub(super) indexed: f64,
    /// Ours with an index of the rows too.
    pub(super) rows_indexed: f64,
    /// Name, nanoseconds, and how many times as long it takes.
    pub(super) peers: Vec<(String, f64, f64)>,
}

/// All tables in the versions that have a libsframe.
pub(super) fn measure(rounds: usize) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let folder = scratch();
    let mut random = Random::new(7);
    for (name, functions) in [
        ("generated", generated(&mut random)),
        ("/usr/bin/perl", of_file("/usr/bin/perl")?),
    ] {
        if functions.is_empty() {
            continue;
        }
        for (release, version) in [(Release::V2_44, Version::V2), (Release::V2_47, Version::V3)] {
            let output = write::section(&functions, &Options::new(version, Abi::Amd64Little, ADDRESS));
            let bytes = output.map_err(|error| error.to_string())?.bytes;
            let table = format!("{name}, {} functions", functions.len());
            let pcs = pcs(&functions, &mut random);
            let library = libsframe(release, &folder, &bytes, &pcs)?;
            lines.push(line(table, version, &bytes, &pcs, library, rounds)?);
        }
    }
    Ok(lines)
}

fn line(
    table: String,
    version: Version,
    bytes: &[u8],
    pcs: &[u64],
    library: Option<LibSframe>,
    rounds: usize,
) -> Result<Line, String> {
    let section = Section::parse(bytes, ADDRESS).map_err(|error| error.to_string())?;
    let other = simple_frame_rs::SFrameSection::from(bytes, ADDRESS).map_err(|error| error.to_string())?;
    let mut words = vec![0; Index::words(&section)];
    let index = Index::build(&section, &mut words).ok_or("the table is not sorted")?;
    let mut words = vec![0; Index::words_with_rows(&section)];
    let of_rows = Index::build(&section, &mut words).ok_or("the table is not sorted")?;
    let [mut ours, mut indexed, mut rows_indexed, mut theirs, mut of_library] = [const { Vec::new() }; 5];
    for _ in 0..rounds {
        indexed.push(best(pcs, |pc| matches!(section.lookup_by(&index, pc), Ok(Some(_)))));
        rows_indexed.push(best(pcs, |pc| matches!(section.lookup_by(&of_rows, pc), Ok(Some(_)))));
        ours.push(best(pcs, |pc| matches!(section.lookup(pc), Ok(Some(_)))));
        theirs.push(best(pcs, |pc| {
            let function = other.find_fde(pc).ok().flatten();
            function.is_some_and(|function| matches!(black_box(function.find_fre(&other, pc)), Ok(Some(_))))
        }));
        if let Some(library) = &library {
            of_library.push(library.best()?);
        }
    }
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let better = if least(&indexed) < least(&rows_indexed) {
        &indexed
    } else {
        &rows_indexed
    };
    let ratio = |times: &[f64]| median(times.iter().zip(better).map(|(other, ours)| other / ours).collect());
    let mut peers = vec![("simple-frame-rs 0.3".to_owned(), least(&theirs), ratio(&theirs))];
    if let Some(library) = library {
        peers.push((library.name.clone(), least(&of_library), ratio(&of_library)));
    }
    Ok(Line {
        table,
        version,
        ours: least(&ours),
        indexed: least(&indexed),
        rows_indexed: least(&rows_indexed),
        peers,
    })
}

/// Nanoseconds of a look-up in the best batch, after each was looked up once: what ran before has
/// left its own data in the caches.
fn best(pcs: &[u64], found: impl Fn(u64) -> bool) -> f64 {
    assert!(pcs.iter().all(|&pc| black_box(found(black_box(pc)))));
    let batches = pcs.chunks_exact(BATCH).map(|batch| {
        let begin = Instant::now();
        for &pc in batch {
            assert!(black_box(found(black_box(pc))));
        }
        begin.elapsed().as_nanos() as f64 / batch.len() as f64
    });
    batches.fold(f64::INFINITY, f64::min)
}

/// The small C program that times the library of a release.
struct LibSframe {
    name: String,
    program: PathBuf,
    section: PathBuf,
    pcs: PathBuf,
}

impl LibSframe {
    fn best(&self) -> Result<f64, String> {
        let output = Command::new(&self.program)
            .arg(&self.section)
            .arg(&self.pcs)
            .arg("2")
            .output();
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The second round's, as with the others.
        let best = text.lines().next_back().unwrap_or_default();
        best.trim().parse().map_err(|_| {
            format!(
                "{}: {} {}",
                self.name,
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }
}

fn libsframe(release: Release, folder: &TempDir, bytes: &[u8], pcs: &[u64]) -> Result<Option<LibSframe>, String> {
    let Some(binutils) = Binutils::get(release) else {
        return Ok(None);
    };
    let name = format!("libsframe {}", release.number());
    let Some(library) = binutils.shared_library("libsframe.so") else {
        skip(format!("{name} is not among the packages"));
        return Ok(None);
    };
    let path = |what: &str| folder.path().join(format!("{what}-{}", release.number()));
    let (program, section, pcs_path) = (path("program"), path("section"), path("pcs"));
    let io = |error: std::io::Error| error.to_string();
    fs::write(&section, bytes).map_err(io)?;
    let offsets = pcs.iter().flat_map(|pc| pc.wrapping_sub(ADDRESS).to_ne_bytes());
    fs::write(&pcs_path, offsets.collect::<Vec<u8>>()).map_err(io)?;
    let mut compile = Command::new("gcc");
    compile.arg("-O2").arg("-o").arg(&program);
    compile.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sframe/libsframe.c"));
    // A copy, so that its own libc does not come along without the loader that belongs to it.
    let copy = folder.path().join(library.file_name().unwrap_or_default());
    fs::copy(&library, &copy).map_err(io)?;
    compile
        .arg(&copy)
        .arg(format!("-Wl,-rpath,{}", folder.path().display()));
    match compile.status() {
        Ok(status) if status.success() => Ok(Some(LibSframe {
            name,
            program,
            section,
            pcs: pcs_path,
        })),
        Ok(status) => Err(format!("gcc: {status}")),
        Err(error) => Err(format!("gcc: {error}")),
    }
}

/// Addresses anywhere in functions that every version and peer can describe.
fn pcs(functions: &[FunctionRows], random: &mut Random) -> Vec<u64> {
    let usual = |function: &&FunctionRows| {
        function.size > 0 && function.repeat.is_none() && function.rows.iter().all(|row| row.rule.is_some())
    };
    let functions: Vec<&FunctionRows> = functions.iter().filter(usual).collect();
    let pc = |_| {
        let function = functions[random.below(functions.len())];
        function.start + random.below(function.size as usize) as u64
    };
    (0..LOOK_UPS).map(pc).collect()
}

fn of_file(path: &str) -> Result<Vec<FunctionRows>, String> {
    let Ok(file) = FileBytes::open(path) else {
        skip(format!("{path} is not there"));
        return Ok(Vec::new());
    };
    let image = Image::parse(file.bytes()).map_err(|error| error.to_string())?;
    Ok(tables::convert(&image).map_err(|error| error.to_string())?.functions)
}

/// A hundred thousand functions of 16 to 1,015 bytes with 1 to 16 rows.
fn generated(random: &mut Random) -> Vec<FunctionRows> {
    let mut start = 0x40_0000;
    let functions = (0..100_000).map(|_| {
        let size = 16 + random.below(1000) as u32;
        let rows = 1 + random.below(16) as u32;
        let row = |index: u32| Row {
            start: index * size / rows,
            rule: Some(Rule::new(
                Location::register(7, 8 + 8 * (index as i32 + size as i32 % 5)),
                Location::saved(-8),
            )),
        };
        start += u64::from(size);
        FunctionRows::new(start - u64::from(size), size, (0..rows).map(row).collect())
    });
    functions.collect()
}
