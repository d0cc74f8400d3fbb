//! Evidence about recorded stacks: whether any of them is wrong, and how many are whole, beside other recorders.
//!
//! `cargo run --release -p backtrail-evidence -- --help`
//!
//! It uses none of the project's tables, and of its readers only that of recordings.

pub mod alternating;
pub mod corruption;
mod judge;
mod looks;
mod recipes;
mod sources;
mod stacks;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

use judge::Judge;
use judge::copies::Copies;

/// Judge recorded stacks by the code that they claim to have called.
#[derive(Parser)]
#[command(name = "evidence")]
struct Arguments {
    #[command(subcommand)]
    command: Chosen,
}

#[derive(Subcommand)]
enum Chosen {
    /// Judge every stack of a recording. Exits with 1 if any is wrong.
    Judge {
        /// Folder that `backtrail record` wrote.
        recording: PathBuf,
        /// Print this many examples of each kind.
        #[arg(long, default_value_t = 5)]
        examples: usize,
        /// Damage the stacks, and print how many of the damaged ones are found to be wrong.
        #[arg(long)]
        corrupt: bool,
    },
    /// Record many programs with Backtrail and with perf, judge all stacks, and write docs/stacks.md.
    Stacks(stacks::Options),
    /// Compare the stacks of running programs with those of gdb and eu-stack, frame by frame. Exits with 1 if frames are missing or
    /// wrong.
    Looks(looks::Options),
    /// Record programs that alternate between two stacks. Exits with 1 if any recorded stack mixes both.
    Alternating(alternating::Options),
}

/// The command.
pub fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Chosen::Judge {
            recording,
            corrupt: true,
            ..
        } => corruption::of(&recording).map(|outcome| {
            print!("{outcome}");
            true
        }),
        Chosen::Judge {
            recording, examples, ..
        } => judge_recording(&recording, examples),
        Chosen::Stacks(options) => stacks::run(&options),
        Chosen::Looks(options) => looks::run(&options),
        Chosen::Alternating(options) => alternating::run(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("evidence: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether nothing is wrong.
fn judge_recording(recording: &std::path::Path, examples: usize) -> Result<bool, String> {
    let mut judge = Judge::new(Copies::default());
    let judged = sources::recording(recording, &mut judge, &[])?;
    println!(
        "samples {}, lost {}, read late {}",
        judged.samples, judged.lost, judged.late
    );
    for problem in &judged.problems {
        println!("{problem}");
    }
    for (name, verdict) in &judged.by_process {
        println!("{name}: {}", verdict.describe(examples));
    }
    Ok(judged.by_process.values().all(|v| v.wrong == 0 && v.false_ends == 0))
}

/// When and where something was measured, as a sentence.
fn machine() -> String {
    let output = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).trim().to_owned()
        })
    };
    format!(
        "{}, Linux {}, {} CPUs, {}.",
        output("date", "-uI"),
        output("uname", "-r"),
        output("nproc", "--all"),
        output("perf", "--version")
    )
}
