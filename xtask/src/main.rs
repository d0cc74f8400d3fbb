//! The project's own chores: `cargo xtask`.

mod additions;
mod arguments;
mod checks;
mod figures;
mod library;
mod manual;
mod precision;
mod sanitize;
mod sizes;
mod soak;
mod test;
mod tidy;
mod truth;
mod types;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Chores {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests compare with (Debian, as root), then check, lint and test everything.
    Test,
    /// Check the rules of the house that no compiler knows.
    Tidy,
    /// Record real programs for 20 seconds each beside perf, and write docs/recording.md; takes ten minutes.
    Figures {
        /// A shorter look, which is not written down.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: Option<u32>,
    },
    /// Build the programs of binutils with each release of it, compare the sizes of tables, and write docs/size.md; takes
    /// a quarter of an hour the first time.
    SframeSizes,
    /// Hold SFrame tables against .eh_frame at every pc: those of GNU as and ld, and ours of large files; writes docs/sframe-check.md.
    SframeCheck,
    /// Add tables to programs that are run before and after, and to copies of all files of the system; writes docs/sframe-add.md.
    SframeAdd,
    /// Install the C library: header, pkg-config file, static library, shared library with versioned symbols.
    InstallLibrary {
        /// Below which folder; made if it is not there.
        prefix: PathBuf,
    },
    /// Step programs from their first instruction to their last, and hold the unwound chain against their calls; writes docs/precision.md.
    Precision {
        /// Only these programs, by their names in the document, which is not written then.
        program: Vec<String>,
        /// A shorter look at each program, which is not written down.
        #[arg(long)]
        instructions: Option<u64>,
        /// One machine; what the document says of the other stays.
        #[arg(long, value_parser = precision::MACHINES)]
        only: Option<String>,
    },
    /// Run the unwinder under Miri, and its threads under ThreadSanitizer; needs nightly Rust with miri and rust-src.
    Sanitize,
    /// Take ten million backtraces in signal handlers of a program that does everything at once, and hold each against what is known of its stack.
    Soak {
        /// Another number of them.
        #[arg(long)]
        samples: Option<u64>,
        /// Samples a second of each thread; 10,000 unless told otherwise.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rate: Option<u32>,
        /// No longer than this; an hour unless told otherwise.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: Option<u32>,
    },
    /// Call functions of 10,000 random signatures, made by each compiler for each CPU, and hold where their arguments are against the classification.
    Arguments {
        /// Another number of them.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        signatures: u32,
    },
    /// Stop programs at many places, hold the arguments that are shown by stripped copies against gdb's with debug information, and write docs/args.md.
    ArgumentsTruth {
        /// How many places of each; fewer are not written down.
        #[arg(long, default_value_t = truth::PLACES, value_parser = clap::value_parser!(u32).range(1..))]
        places: u32,
        /// Only these programs, by their names in the document, which is not written then.
        program: Vec<String>,
    },
    /// Hold what is shown of the types of whole programs against objdump, measure their sizes, and write docs/types-size.md; minutes to compile the first time.
    Types {
        /// Only these programs, by their names in the document, which is not written then.
        program: Vec<String>,
    },
    /// Write a man page for the command and for each of its verbs.
    Man {
        /// Where to; made if it is not there.
        directory: PathBuf,
    },
    /// Write completions for bash, elvish, fish, PowerShell and zsh.
    Completions {
        /// Where to; made if it is not there.
        directory: PathBuf,
    },
}

fn main() -> ExitCode {
    let named =
        |directory: &Path, done: std::io::Result<()>| done.map_err(|error| format!("{}: {error}", directory.display()));
    let done = match Chores::parse().chore {
        Chore::Test => test::run(),
        Chore::Tidy => tidy::run(),
        Chore::Figures { seconds } => figures::run(seconds),
        Chore::SframeSizes => sizes::run(),
        Chore::SframeAdd => additions::run(),
        Chore::SframeCheck => checks::run(),
        Chore::InstallLibrary { prefix } => library::install(&prefix),
        Chore::Precision {
            program,
            instructions,
            only,
        } => precision::run(&program, instructions, only.as_deref()),
        Chore::Sanitize => sanitize::run(),
        Chore::Soak { samples, rate, seconds } => soak::run(samples, rate, seconds),
        Chore::Arguments { signatures } => arguments::conventions(signatures),
        Chore::ArgumentsTruth { places, program } => truth::run(places, &program),
        Chore::Types { program } => types::run(&program),
        Chore::Man { directory } => named(&directory, manual::man(&directory)),
        Chore::Completions { directory } => named(&directory, manual::completions(&directory)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
