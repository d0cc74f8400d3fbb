//! What a backtrace of the own stack costs: Backtrail's beside glibc's `backtrace()`, as ratios to the chain of frame pointers, in one process and run.
//!
//! `cargo run --release --bin backtrace [ROUNDS]`; needs a C compiler, and a machine that does nothing else.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::Duration;

use backtrail_testkit::{command, place, scratch};

const LIMIT: Duration = Duration::from_secs(600);
const WALKERS: [&str; 3] = ["frame-pointers", "backtrail", "glibc"];

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).unwrap_or_else(|| "21".to_owned());
    match measure(&rounds) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn done(mut command: Command) -> Result<String, String> {
    let finished = command::run(&mut command, LIMIT).map_err(|missing| missing.to_string())?;
    match finished.status.success() {
        true => Ok(finished.stdout),
        false => Err(format!("{command:?}: {}", finished.describe())),
    }
}

fn measure(rounds: &str) -> Result<String, String> {
    let library = place::release("backtrail-capi", "libbacktrail.so")?;
    let folder = scratch();
    let program = folder.path().join("backtrace");
    std::fs::copy(library, folder.path().join("libbacktrail.so.0")).map_err(|error| error.to_string())?;
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"]);
    compile
        .arg(&program)
        .arg(place::workspace().join("bench/programs/backtrace.c"));
    compile.arg("-I").arg(place::workspace().join("crates/capi/include"));
    compile.arg(folder.path().join("libbacktrail.so.0"));
    compile.arg(format!("-Wl,-rpath,{}", folder.path().display()));
    done(compile)?;
    let mut run = Command::new(&program);
    run.arg(rounds);
    table(&done(run)?)
}

/// Nanoseconds and frames by case and size, for each walker.
fn table(told: &str) -> Result<String, String> {
    let mut rows: BTreeMap<(String, usize), BTreeMap<String, (f64, f64)>> = BTreeMap::new();
    let mut sizes: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in told.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [walker, case, depth, time] = words[..] else {
            return Err(format!("not a line of figures: {line}"));
        };
        let number = |text: &str| text.parse::<f64>().map_err(|error| format!("{line}: {error}"));
        let size = sizes.entry((case.to_owned(), walker.to_owned())).or_default();
        let row = rows.entry((case.to_owned(), *size)).or_default();
        *size += 1;
        row.insert(walker.to_owned(), (number(time)?, number(depth)?));
    }
    let mut text = "| case | frames | frame pointers, ns a frame | backtrail | glibc | backtrail / frame pointers | glibc / backtrail |\n\
         |---|---|---|---|---|---|---|\n"
        .to_owned();
    for ((case, _), row) in rows {
        let [floor, ours, glibc] = WALKERS.map(|walker| row.get(walker).copied().unwrap_or((f64::NAN, f64::NAN)));
        let a_frame = |(time, frames): (f64, f64)| time / frames;
        text.push_str(&format!(
            "| {case} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} |\n",
            ours.1,
            a_frame(floor),
            a_frame(ours),
            a_frame(glibc),
            a_frame(ours) / a_frame(floor),
            a_frame(glibc) / a_frame(ours),
        ));
    }
    Ok(text)
}
