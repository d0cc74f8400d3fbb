//! `cargo evidence soak`: takes millions of backtraces in signal handlers of a program that does
//! everything at once, and compares each with what is known of its stack.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_cfi::tables::Tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::Base;
use backtrail_testkit::{Missing, command, place, program, scratch, skip};

/// The promised numbers.
const SAMPLES: u64 = 10_000_000;
const RATE: u32 = 10_000;

/// The time until the program must have ended, in addition to the time that it is given.
const GRACE: Duration = Duration::from_secs(300);

/// The program's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its last line: names and numbers.
    counts: Vec<(String, u64)>,
    /// Stacks that ended early: where, how often, and why according to the table.
    early: Vec<(String, u64, Gap)>,
}

/// What a table says about an address at which a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// Nothing.
    NoRow,
    /// The frame is found by a register that SFrame does not restore, as in the dynamic linker's
    /// `_dl_runtime_resolve`.
    RegisterNotKept,
    /// The table describes the frame, or is unknown because it cannot be read.
    None,
}

impl Gap {
    fn text(self) -> &'static str {
        match self {
            Gap::NoRow => "no row",
            Gap::RegisterNotKept => "the frame is found by a register that SFrame does not restore",
            Gap::None => "**a row**",
        }
    }
}

impl Told {
    fn count(&self, name: &str) -> u64 {
        let found = self.counts.iter().find(|(counted, _)| counted == name);
        found.map_or(0, |(_, count)| *count)
    }
}

/// Runs the program, and reports the results.
pub(crate) fn run(samples: Option<u64>, rate: Option<u32>, seconds: Option<u32>) -> Result<(), String> {
    let library = place::release("backtrail-capi", "libbacktrail.so")?;
    let samples = samples.unwrap_or(SAMPLES);
    let told = match soak(&library, samples, rate.unwrap_or(RATE), seconds.unwrap_or(3600)) {
        Ok(told) => told?,
        Err(missing) => {
            skip(missing);
            return Ok(());
        }
    };
    for (name, count) in &told.counts {
        println!("{name:>16} {count}");
    }
    for (place, count, gap) in &told.early {
        println!("ended {count} times at {place}: {}", gap.text());
    }
    match told.count("samples") >= samples {
        true => verdict(&told),
        false => Err(format!("{} samples in the time given", told.count("samples"))),
    }
}

/// Checks that each stack was right, or ended where a table has a gap.
fn verdict(told: &Told) -> Result<(), String> {
    let unexplained: Vec<String> = told
        .early
        .iter()
        .filter(|(_, _, gap)| *gap == Gap::None)
        .map(|(place, count, _)| format!("{count} stacks ended at {place}, where the table has a row"))
        .collect();
    match unexplained.is_empty() {
        true => Ok(()),
        false => Err(unexplained.join("\n")),
    }
}

fn source(name: &str) -> PathBuf {
    place::workspace().join("crates/evidence/src/soak").join(name)
}

fn built(compile: &mut Command) -> Result<(), Missing> {
    let finished = command::run(compile, Duration::from_secs(120))?;
    match finished.status.success() {
        true => Ok(()),
        false => Err(Missing(format!("{compile:?}: {}", finished.describe()))),
    }
}

/// Runs the program with this library for this many samples or seconds. The inner error is a wrong
/// stack, or a program that broke.
fn soak(library: &Path, samples: u64, rate: u32, seconds: u32) -> Result<Result<Told, String>, Missing> {
    let folder = scratch();
    let plugin = program::PLUGIN.build()?;
    let (guard, soak) = (folder.path().join("libguard.so"), folder.path().join("soak"));
    built(
        Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&guard)
            .arg(source("guard.c")),
    )?;
    // Under the name that the program asks for.
    let own = folder.path().join("libbacktrail.so.0");
    std::fs::copy(library, &own).map_err(|error| Missing(format!("{}: {error}", library.display())))?;
    built(
        Command::new("g++")
            .args(["-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
            // All of a marked function must be in its section.
            .args(["-fomit-frame-pointer", "-fno-reorder-blocks-and-partition", "-I"])
            .arg(place::workspace().join("crates/capi/include"))
            .arg(source("soak.cc"))
            .args([&own, &guard])
            .arg(format!("-Wl,-rpath,{},-z,now", folder.path().display()))
            .args(["-ldl", "-o"])
            .arg(&soak),
    )?;
    let mut run = Command::new(&soak);
    run.args([samples.to_string(), rate.to_string(), seconds.to_string()])
        .arg(&plugin)
        .env("LD_PRELOAD", &guard);
    let finished = command::run(&mut run, Duration::from_secs(seconds.into()) + GRACE)?;
    if !finished.status.success() {
        return Ok(Err(finished.describe()));
    }
    Ok(Ok(told(&finished.stdout)))
}

fn told(text: &str) -> Told {
    let mut told = Told {
        counts: Vec::new(),
        early: Vec::new(),
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["short", kind, path, offset, count] => {
                let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap_or(0);
                let at = offset.wrapping_sub(u64::from(kind == "call"));
                let place = format!("{path}(+{at:#x})");
                told.early
                    .push((place, count.parse().unwrap_or(0), gap(Path::new(path), at)));
            }
            _ => {
                let pairs = words.chunks_exact(2);
                told.counts = pairs
                    .filter_map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)))
                    .collect();
            }
        }
    }
    told
}

fn gap(path: &Path, svma: u64) -> Gap {
    let look = || {
        let file = FileBytes::open(path).ok()?;
        let image = Image::of(&file).ok()?;
        let table = Tables::without_cache().load(&image).ok()?;
        let section = table.section().ok()?;
        let kept = [image.arch().sp.0, image.arch().fp.0];
        match section.lookup(svma).ok()? {
            None => Some(Gap::NoRow),
            Some(found) => match found.row.rule?.cfa.base {
                Base::Register(register) if !kept.contains(&register) => Some(Gap::RegisterNotKept),
                _ => None,
            },
        }
    };
    look().unwrap_or(Gap::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_soak() {
        let library = place::built(&["--lib"]).unwrap().join("libbacktrail.so");
        let found = match soak(&library, 8_000, 1_000, 60) {
            Ok(found) => found.unwrap(),
            Err(missing) => return skip(missing),
        };
        assert_eq!(verdict(&found), Ok(()));
        // A machine that others use delivers fewer.
        assert!(found.count("samples") > 2_000, "{found:?}");
        assert!(found.count("complete") * 10 > found.count("samples") * 9, "{found:?}");
        for name in ["threads", "children", "loads", "throws"] {
            assert!(found.count(name) > 10, "{name}: {found:?}");
        }
    }

    #[test]
    fn what_has_a_row_is_no_gap() {
        let told = told("short call /nowhere 0x20 3\nsamples 7 complete 4\n");
        assert_eq!(told.count("samples"), 7);
        assert_eq!(told.early, [("/nowhere(+0x1f)".to_owned(), 3, Gap::None)]);
        assert!(verdict(&told).is_err());
    }
}
