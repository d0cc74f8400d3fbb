//! The project's own chores: `cargo xtask`.

mod figures;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test       installs what the tests compare with (Debian, as root), then checks, lints and tests everything
cargo xtask tidy       the rules of the house that no compiler knows
cargo xtask figures    records real programs for 20 seconds each beside perf, and writes docs/recording.md; takes ten minutes
                       [--seconds N] for shorter looks, which are not written down";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test::run(),
        ["tidy"] => tidy::run(),
        ["figures"] => figures::run(None),
        ["figures", "--seconds", seconds] => match seconds.parse() {
            Ok(seconds @ 1..=600) => figures::run(Some(seconds)),
            _ => Err(format!("no number of seconds from 1 to 600: {seconds}")),
        },
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such chore: {}\n{USAGE}", arguments.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
