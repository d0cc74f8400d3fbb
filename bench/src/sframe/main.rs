//! Measures how fast SFrame tables are looked up and built, beside others, in one run.
//!
//! `cargo run --release --bin sframe [-- --rounds N]`; writes `docs/sframe-speed.md` if there are
//! at least five rounds.

mod build;
mod lookup;

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use backtrail_testkit::place;

const ROUNDS: usize = 9;
const LEAST_ROUNDS: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sframe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let rounds = arguments()?;
    let mut page = HEAD.replace("ROUNDS", &rounds.to_string());
    page.push_str(&look_ups(&lookup::measure(rounds)?));
    page.push_str(&builds(&build::measure(rounds)?));
    print!("{page}");
    if rounds >= LEAST_ROUNDS {
        let path = place::workspace().join("docs/sframe-speed.md");
        fs::write(path, &page).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn arguments() -> Result<usize, String> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    match &given[..] {
        [] => Ok(ROUNDS),
        [name, number] if name == "--rounds" => match number.parse() {
            Ok(rounds @ 1..) => Ok(rounds),
            _ => Err(format!("--rounds {number}: a number of rounds was expected")),
        },
        _ => Err("--rounds N was expected".to_owned()),
    }
}

/// The middle one, or the lower of two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len().checked_sub(1) {
        Some(last) => values[last / 2],
        None => f64::NAN,
    }
}

const HEAD: &str = "# The speed of tables

Made by `cargo run --release --bin sframe` in `bench/`, all in one run, in turn, ROUNDS rounds. *Times as long*
is the median of the rounds' ratios to ours, which varies least on a busy machine.

## Look-up

Random addresses in a table; nanoseconds of the best of all batches of 10,000. *Generated* has
functions of 16 to 1,015 bytes with 1 to 16 rows. *By functions* and *by rows* use an index
(`sframe::Index`) of the functions, or of the rows too. It is built once, in memory that the caller
provides: a sixth of the section's size, or five times its size, which is for tables that stay in the
CPU's cache with it. Every reader has looked up each address once before. In the generated table, the
index of functions takes between 77 and 209 ns, and plain look-up 118 to 144, from one run to the next
on this machine, a virtual one that shares its caches with others. Goal: 100 ns in the generated table,
30 ns in the other.

| table | version | ours, ns | by functions | by rows | other | ns | times as long as by the better index |
|---|---|---|---|---|---|---|---|
";

fn look_ups(lines: &[lookup::Line]) -> String {
    let mut table = String::new();
    for line in lines {
        for (name, nanoseconds, ratio) in &line.peers {
            let _ = writeln!(
                table,
                "| {} | {} | {:.0} | {:.0} | {:.0} | {name} | {nanoseconds:.0} | {ratio:.1} |",
                line.table, line.version as u8, line.ours, line.indexed, line.rows_indexed
            );
        }
    }
    table
}

fn builds(all: &[build::Times]) -> String {
    let mut table = "\n## Building\n\nWhat `--gsframe` adds to the time of `as` for a generated file of 100,000 functions, and ours from the\n\
         `.eh_frame` of the same functions: version 3, from the mapped file to the section's bytes, on as many\n\
         CPUs as there are, up to four. Goal: 30 times as fast.\n\n\
         | as | adds, s | ours, s | times as long | ours for a library |\n|---|---|---|---|---|\n"
        .to_owned();
    for times in all {
        let library = times.of_libllvm.map_or("-".to_owned(), |(name, functions, seconds)| {
            format!("{name}, {functions} functions: {seconds:.3} s")
        });
        let _ = writeln!(
            table,
            "| {} | {:.2} | {:.3} | {:.0} | {library} |",
            times.release.number(),
            times.assembler,
            times.same,
            times.ratio
        );
    }
    table
}
