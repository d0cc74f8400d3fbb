//! Long measurements, which write the pages of evidence in `docs/`: `cargo evidence --help`.
//!
//! `judge` decides whether recorded stacks are wrong. It uses none of the project's tables, and
//! only the project's reader of recordings.

mod aarch64;
mod additions;
pub mod alternating;
mod asking;
mod checks;
mod conventions;
pub mod corruption;
mod crashes;
mod endings;
mod faults;
mod fleet;
mod fourth;
mod guest_tests;
mod hostile;
mod judge;
mod kernels;
mod looks;
mod network;
mod objects;
mod page;
mod precision;
mod questions;
mod readers;
mod recipes;
mod recording;
mod sizes;
mod soak;
mod sources;
mod stacks;
mod truth;
mod types;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use backtrail_testkit::place;
use clap::{Parser, Subcommand};

use judge::Judge;

/// The command that was named, or that of a release build.
fn command_or_release(named: Option<&PathBuf>) -> PathBuf {
    named.map_or_else(|| place::target().join("release/backtrail"), PathBuf::clone)
}

/// Measure what is promised, and write the pages of evidence.
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
        /// Damage the stacks, and print how many damaged ones the judge finds to be wrong.
        #[arg(long)]
        corrupt: bool,
        /// Read the files of another machine below this folder; its vDSO is the file `[vdso]`
        /// there. Repeatable: the first folder that has a file counts.
        #[arg(long, value_name = "DIR")]
        sysroot: Vec<PathBuf>,
    },
    /// Record many programs with Backtrail and with perf, judge all stacks, and write
    /// docs/stacks.md.
    Stacks(stacks::Options),
    /// Compare the stacks of running programs with those of gdb and eu-stack, frame by frame. Exits
    /// with 1 if frames are missing or wrong.
    Looks(looks::Options),
    /// Record programs that alternate between two stacks. Exits with 1 if any recorded stack mixes
    /// both.
    Alternating(alternating::Options),
    /// Record real programs beside perf for 20 seconds each, and write docs/recording.md. Takes ten
    /// minutes.
    Recording {
        /// Record for this many seconds and write no page.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: Option<u32>,
    },
    /// Build the programs of binutils with each of its releases, compare the sizes of tables, and
    /// write docs/size.md. Takes a quarter of an hour the first time.
    SframeSizes,
    /// Write the rows of programs in a form that a fourth version of SFrame could have, compare
    /// sizes and times of look-ups with version 3, and write docs/sframe-v4-proposal.md.
    SframeV4,
    /// Check SFrame tables against .eh_frame at every pc, those of GNU as and ld and ours of large
    /// files, and write docs/sframe-check.md.
    SframeCheck,
    /// Add tables to programs that run before and after, and to copies of all files of the system,
    /// and write docs/sframe-add.md.
    SframeAdd,
    /// Build tables of all files of the system for each reader, count what would be refused without
    /// --for, time look-ups in merged tables, and write docs/sframe-readers.md.
    SframeReaders,
    /// Step programs from their first instruction to their last, check the unwound chain against
    /// their calls, and write docs/precision.md.
    Precision {
        /// Step only these programs, by their names on the page, and do not write the page.
        program: Vec<String>,
        /// Step this many instructions of each program and write no page.
        #[arg(long)]
        instructions: Option<u64>,
        /// Step only this machine; the page keeps its text about the other.
        #[arg(long, value_parser = precision::MACHINES)]
        only: Option<String>,
    },
    /// Take ten million backtraces in signal handlers of a program that does everything at once,
    /// and check each.
    Soak {
        /// Take this many backtraces [default: 10000000]
        #[arg(long)]
        samples: Option<u64>,
        /// Take this many samples per second of each thread [default: 10000]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rate: Option<u32>,
        /// Stop after this many seconds [default: 3600]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: Option<u32>,
    },
    /// Call functions of random signatures, made by each compiler for each CPU, and check where
    /// their arguments are.
    Arguments {
        /// Use this many signatures per compiler.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        signatures: u32,
    },
    /// Stop programs at many places, compare the arguments of stripped copies with gdb's, and write
    /// docs/args.md.
    ArgumentsTruth {
        /// Stop each program at this many places; with fewer than the default, no page is written.
        #[arg(long, default_value_t = truth::PLACES, value_parser = clap::value_parser!(u32).range(1..))]
        places: u32,
        /// Stop only these programs, by their names on the page, and do not write the page.
        program: Vec<String>,
        /// Stop only this executable, which has debug information, and list what is missing.
        #[arg(long, value_name = "FILE", conflicts_with = "program")]
        executable: Option<PathBuf>,
        /// Arguments of the executable.
        #[arg(last = true, requires = "executable")]
        arguments: Vec<String>,
    },
    /// Run programs and profilers that ask libgcc or libunwind for stacks, as they are and with our
    /// library in their place, and write docs/asking.md. Exits with 1 if stacks differ.
    Asking {
        /// Run only these, by their names on the page, and do not write the page.
        program: Vec<String>,
    },
    /// Die in 15 ways in 11 places with crash reports, and write docs/crashes.md. Exits with 1 if a
    /// report is missing or incomplete, or if the process does not die of its own signal.
    Crashes(crashes::Options),
    /// Kill recorders at random times, and record into file systems that are too small. Exits with
    /// 1 if a trace cannot be read that was written before. Takes half an hour.
    Endings(endings::Options),
    /// Run every verb with a failure at each of its system calls, and at each of its allocations.
    /// Exits with 1 if one of them panics, hangs or leaves half of its output. Takes hours unless
    /// --every is given.
    Faults(faults::Options),
    /// Record as root beside programs of another user that do what they can against the recorder.
    /// Exits with 1 if its memory grows, or if stacks of an honest program are less complete.
    Hostile(hostile::Options),
    /// Boot Debian's kernels in qemu, have stacks walked in them, and write docs/kernels.md. Exits
    /// with 1 if a stack is wrong, or if none is walked there. Takes a quarter of an hour.
    Kernels(kernels::Options),
    /// Record programs in an emulated AArch64 machine, judge all stacks, and write the beginning of
    /// docs/aarch64.md. Exits with 1 if a stack is wrong. Takes half an hour.
    Aarch64(aarch64::Options),
    /// Build the tests for AArch64, run them in an emulated machine, and write
    /// docs/aarch64-tests.md. Exits with 1 if one fails that should not, or passes that should not.
    /// Takes half an hour.
    Aarch64Tests(guest_tests::Options),
    /// Write stores into object storage (an S3 server of Python's package moto) by many writers at
    /// once, kill some, and let the server fail. Exits with 1 if a row is lost or there twice, or
    /// if DuckDB answers otherwise than from a folder.
    Objects(objects::Options),
    /// Write a store of recordings that are generated, and print its size and the time.
    Fleet(fleet::Options),
    /// Ask a store all questions, of each engine that is named, and compare the answers and what
    /// they cost. Exits with 1 if any differ.
    Questions(questions::Options),
    /// Send a trace over UDP through networks that lose, repeat and reorder datagrams, and print
    /// the table of docs/surviving.md. Exits with 1 if an event is wrong, or missing without being
    /// named.
    Network(network::Options),
    /// Time the page of `backtrail report --html` in Chromium with 1,000, 10,000 and 100,000
    /// stacks, and write docs/page-speed.md.
    Page,
    /// Take pictures of every view of the page, light and dark, into docs/pictures.
    Pictures,
    /// Compare the types of whole programs with objdump's, measure their sizes, and write
    /// docs/types-size.md. Compiles for minutes the first time.
    Types {
        /// Compare only these programs, by their names on the page, and do not write the page.
        program: Vec<String>,
    },
}

/// The command.
pub fn main() -> ExitCode {
    let whole = |done: Result<(), String>| done.map(|()| true);
    let done = match Arguments::parse().command {
        Chosen::Judge {
            recording,
            corrupt: true,
            ..
        } => corruption::of(&recording, corruption::STACKS).map(|outcome| {
            print!("{outcome}");
            true
        }),
        Chosen::Judge {
            recording,
            examples,
            sysroot,
            ..
        } => judge_recording(&recording, examples, &sysroot),
        Chosen::Stacks(options) => stacks::run(&options),
        Chosen::Looks(options) => looks::run(&options),
        Chosen::Alternating(options) => alternating::run(&options),
        Chosen::Recording { seconds } => whole(recording::run(seconds)),
        Chosen::SframeSizes => whole(sizes::run()),
        Chosen::SframeV4 => whole(fourth::run()),
        Chosen::SframeCheck => whole(checks::run()),
        Chosen::SframeAdd => whole(additions::run()),
        Chosen::SframeReaders => whole(readers::run()),
        Chosen::Precision {
            program,
            instructions,
            only,
        } => whole(precision::run(&program, instructions, only.as_deref())),
        Chosen::Soak { samples, rate, seconds } => whole(soak::run(samples, rate, seconds)),
        Chosen::Arguments { signatures } => whole(conventions::conventions(signatures)),
        Chosen::ArgumentsTruth {
            places,
            executable: Some(executable),
            arguments,
            ..
        } => whole(truth::run_one(places, &executable, &arguments)),
        Chosen::ArgumentsTruth { places, program, .. } => whole(truth::run(places, &program)),
        Chosen::Asking { program } => asking::run(&program),
        Chosen::Crashes(options) => crashes::run(&options),
        Chosen::Endings(options) => endings::run(&options),
        Chosen::Faults(options) => faults::run(&options),
        Chosen::Hostile(options) => hostile::run(&options),
        Chosen::Kernels(options) => kernels::run(&options),
        Chosen::Aarch64(options) => aarch64::run(&options),
        Chosen::Aarch64Tests(options) => guest_tests::run(&options),
        Chosen::Objects(options) => objects::run(&options),
        Chosen::Fleet(options) => whole(fleet::run(&options)),
        Chosen::Network(options) => network::run(&options),
        Chosen::Questions(options) => whole(questions::run(&options)),
        Chosen::Page => whole(page::run()),
        Chosen::Pictures => whole(page::pictures::run()),
        Chosen::Types { program } => whole(types::run(&program)),
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
fn judge_recording(recording: &Path, examples: usize, sysroot: &[PathBuf]) -> Result<bool, String> {
    let mut judge = Judge::of_files_in(sysroot);
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

/// The command that an option names, otherwise built, as it is shipped.
fn chosen_or_built(backtrail: Option<&Path>) -> Result<PathBuf, String> {
    match backtrail {
        Some(binary) => Ok(binary.to_owned()),
        None => place::release("backtrail", "backtrail"),
    }
}

/// The date and the machine of a measurement, as a sentence.
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
