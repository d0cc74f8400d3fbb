//! `cargo evidence sframe-sizes`: compares the sizes of tables and `.eh_frame`: the table with
//! which SFrame was introduced, GNU's tables of each version, and ours.

mod programs;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{packages, place, skip};
use serde_json::Value;

/// The ratios with which the format was proposed, under its first name: x86-64 and AArch64, in the
/// order of [`programs::PROGRAMS`].
const PROPOSAL: [[f64; 12]; 2] = [
    [1.13, 1.03, 1.00, 1.08, 1.03, 1.06, 1.02, 1.07, 1.08, 1.08, 1.10, 1.09],
    [0.67, 0.70, 0.73, 0.64, 0.66, 0.71, 0.73, 0.69, 0.72, 0.73, 0.67, 0.67],
];

const MACHINES: [(Machine, &str); 2] = [(Machine::X86_64, "x86-64"), (Machine::Aarch64, "AArch64")];

/// The promised totals of the twelve programs, by machine: version 1 and version 3, shared.
const PROMISED_SHARED: [[(usize, f64); 2]; 2] = [[(1, 0.91), (3, 0.95)], [(1, 0.48), (3, 0.51)]];

/// The promised total of merged tables, that for each, and the programs; whether they are of the
/// total.
const PROMISED_MERGED: f64 = 0.60;
const PROMISED_EACH: f64 = 0.85;
const INSTALLED: [(&str, bool); 18] = [
    ("/usr/bin/gdb", true),
    ("/usr/bin/git", true),
    ("/usr/bin/perl", true),
    ("/usr/bin/python3.11", true),
    ("/lib/x86_64-linux-gnu/libc.so.6", true),
    ("/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1", false),
    ("/usr/bin/node", false),
    ("/usr/bin/ffmpeg", false),
    ("/usr/lib/x86_64-linux-gnu/libavcodec.so.59", false),
    ("/usr/bin/vim.basic", false),
    ("/usr/bin/mpv", false),
    ("/usr/bin/lua5.4", false),
    ("/bin/bzip2", false),
    ("/usr/lib/x86_64-linux-gnu/libbz2.so.1.0", false),
    ("/usr/bin/lz4", false),
    ("/usr/lib/x86_64-linux-gnu/libz.so.1", false),
    ("/usr/lib/chromium/chromium", false),
    ("/usr/lib/firefox-esr/libxul.so", false),
];
const LLVM: &str = "libLLVM-14.so.1";
const PROMISED_LLVM: f64 = 0.61;

/// The bytes of a file's tables, or of the tables of some files.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    dwarf: u64,
    present: u64,
    /// By version: unshared, shared, merged.
    built: [[u64; 3]; 3],
}

impl Sizes {
    fn add(&mut self, other: &Sizes) {
        self.dwarf += other.dwarf;
        self.present += other.present;
        for (sum, other) in self.built.as_flattened_mut().iter_mut().zip(other.built.as_flattened()) {
            *sum += other;
        }
    }

    fn total<'a>(all: impl IntoIterator<Item = &'a Sizes>) -> Sizes {
        let mut total = Sizes::default();
        all.into_iter().for_each(|one| total.add(one));
        total
    }

    fn ratio(&self, size: u64) -> f64 {
        size as f64 / self.dwarf as f64
    }

    /// Our sizes, for all versions.
    fn ours(&self) -> String {
        let ratios = self
            .built
            .as_flattened()
            .iter()
            .map(|size| format!("{:.3}", self.ratio(*size)));
        ratios.collect::<Vec<_>>().join(" | ")
    }
}

/// Builds, measures, and writes the page.
pub(crate) fn run() -> Result<(), String> {
    let missing = packages::install(&[
        ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        ("bison", "bison"),
        ("flex", "flex"),
    ]);
    if !missing.is_empty() {
        return Err(format!("needed and can't be installed: {}", missing.join(" ")));
    }
    let releases: Vec<Binutils> = Release::ALL.into_iter().filter_map(Binutils::get).collect();
    if releases.len() < Release::ALL.len() {
        return Err("all releases of binutils are needed".to_owned());
    }
    let backtrail = place::release("backtrail", "backtrail")?;
    let mut page = HEAD.to_owned();
    let mut broken = Vec::new();
    for (index, (machine, name)) in MACHINES.into_iter().enumerate() {
        let folders = programs::build(machine, &releases)?;
        let all: Vec<Vec<Sizes>> = folders
            .iter()
            .map(|folder| of_programs(&backtrail, folder))
            .collect::<Result<_, _>>()?;
        page.push_str(&programs_table(name, &PROPOSAL[index], &all));
        let total = Sizes::total(&all[2]);
        for (version, promised) in PROMISED_SHARED[index] {
            let what = format!("the twelve programs, {name}, V{version} shared");
            promise(&mut broken, &what, total.ratio(total.built[version - 1][1]), promised);
        }
    }
    page.push_str(&installed_table(&backtrail, &mut broken)?);
    print!("{page}");
    fs::write(place::workspace().join("docs/size.md"), &page).map_err(|error| error.to_string())?;
    match broken {
        broken if broken.is_empty() => Ok(()),
        broken => Err(format!("promised otherwise:\n{}", broken.join("\n"))),
    }
}

/// Whether a promise is kept.
fn promise(broken: &mut Vec<String>, what: &str, ratio: f64, promised: f64) -> bool {
    // Promised to two digits.
    let is_kept = (ratio * 100.0).round() / 100.0 <= promised;
    if !is_kept {
        broken.push(format!("{what}: {ratio:.4}, not {promised}"));
    }
    is_kept
}

fn of_programs(backtrail: &Path, folder: &Path) -> Result<Vec<Sizes>, String> {
    let paths: Vec<PathBuf> = programs::PROGRAMS.iter().map(|(name, _)| folder.join(name)).collect();
    measure(backtrail, &paths)
}

/// The output of `backtrail sframe size` for the files.
fn measure(backtrail: &Path, paths: &[PathBuf]) -> Result<Vec<Sizes>, String> {
    let output = Command::new(backtrail)
        .args(["sframe", "size", "--json"])
        .args(paths)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let json: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let files = json.as_array().ok_or("no array")?;
    Ok(files.iter().map(sizes).collect())
}

fn sizes(json: &Value) -> Sizes {
    let bytes = |value: &Value| value.as_u64().unwrap_or(0);
    Sizes {
        dwarf: bytes(&json["eh_frame"]) + bytes(&json["eh_frame_hdr"]),
        present: bytes(&json["present"]),
        built: ["1", "2", "3"].map(|version| {
            let built = &json["built"][version];
            ["unshared", "shared", "merged"].map(|kind| bytes(&built[kind]))
        }),
    }
}

const HEAD: &str = "# The size of tables

Made by `cargo evidence sframe-sizes`. Every figure is the size of a table divided by that of .eh_frame and .eh_frame_hdr together.

Ours are made from .eh_frame, so they also cover code that was not assembled with `--gsframe`: the start
files and, on AArch64, the PLT. *Apart*: every function has its own rows; *shared*: functions with the
same rows share them; *merged*: in addition, up to sixteen neighbours share one FDE, or one function has
several, where that is smaller (`--merge 16`).

## The programs with which the format was introduced

The programs of binutils 2.44 (Debian's binutils-source), compiled by gcc 12 with -O2, assembled with
`--gsframe` and linked by each release of binutils. *Proposal* is the table in the format's first
proposal, made in another year with another gcc. Promised, shared, in total: V3 at most 0.95 on x86-64
and 0.51 on AArch64, V1 at most 0.91 and 0.48 (all promises to two digits).
";

const OURS: &str = "V1 apart | shared | merged | V2 apart | shared | merged | V3 apart | shared | merged |";

fn programs_table(machine: &str, proposal: &[f64; 12], all: &[Vec<Sizes>]) -> String {
    let mut table = format!(
        "\n### {machine}\n\n| program | bytes of .eh_frame + .eh_frame_hdr | proposal | GNU 2.40, V1 | 2.44, V2 | 2.47, V3 | {OURS}\n|{}\n",
        "---|".repeat(15)
    );
    let mut row = |name: &str, proposal: String, by_release: [Sizes; 3]| {
        let gnu = by_release
            .map(|sizes| format!("{:.3}", sizes.ratio(sizes.present)))
            .join(" | ");
        let ours = &by_release[2];
        let _ = writeln!(
            table,
            "| {name} | {} | {proposal} | {gnu} | {} |",
            ours.dwarf,
            ours.ours()
        );
    };
    for (index, (name, _)) in programs::PROGRAMS.iter().enumerate() {
        row(
            name,
            format!("{:.2}", proposal[index]),
            [0, 1, 2].map(|release| all[release][index]),
        );
    }
    let mean = proposal.iter().sum::<f64>() / proposal.len() as f64;
    row(
        "**total**",
        format!("{mean:.2} (mean)"),
        [0, 1, 2].map(|release| Sizes::total(&all[release])),
    );
    table
}

fn installed_table(backtrail: &Path, broken: &mut Vec<String>) -> Result<String, String> {
    let mut table = format!(
        "\n## Programs and libraries of Debian 12, x86-64\n\nPromised: merged, V3, the first five together at most {PROMISED_MERGED:.2}, and each at most {PROMISED_EACH}; libLLVM, V1\nshared, at most {PROMISED_LLVM}.\n\n\
         | file | bytes of .eh_frame + .eh_frame_hdr | {OURS}\n|{}\n",
        "---|".repeat(11)
    );
    let mut promised = Vec::new();
    let mut above = Vec::new();
    let mut row = |name: &str, sizes: &Sizes| {
        let _ = writeln!(table, "| {name} | {} | {} |", sizes.dwarf, sizes.ours());
    };
    for (path, is_promised) in INSTALLED {
        if !Path::new(path).exists() {
            skip(format!("{path} is not there"));
            continue;
        }
        let sizes = measure(backtrail, &[path.into()])?[0];
        let name = path.rsplit('/').next().unwrap_or(path);
        row(name, &sizes);
        let merged = sizes.ratio(sizes.built[2][2]);
        if !promise(broken, name, merged, PROMISED_EACH) {
            above.push(format!("{name} ({merged:.3})"));
        }
        promised.extend(is_promised.then_some(sizes));
        if name == LLVM {
            promise(
                broken,
                "libLLVM, V1 shared",
                sizes.ratio(sizes.built[0][1]),
                PROMISED_LLVM,
            );
        }
    }
    let total = Sizes::total(&promised);
    row("**the first five**", &total);
    if promised.len() == INSTALLED.iter().filter(|(_, is_promised)| *is_promised).count() {
        promise(
            broken,
            "the five programs, V3 merged",
            total.ratio(total.built[2][2]),
            PROMISED_MERGED,
        );
    }
    if !above.is_empty() {
        let _ = writeln!(table, "\nAbove {PROMISED_EACH}: {}.", above.join(", "));
    }
    Ok(table)
}
