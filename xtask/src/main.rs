//! The project's own chores: `cargo xtask`. They build without the product; measurements are `cargo
//! evidence`.

mod api;
mod book;
mod bpf;
mod cargo;
mod files;
mod fuzz;
mod library;
mod release;
mod sanitize;
mod suite;
mod test;
mod tidy;

use std::path::PathBuf;
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
    /// Check the rules that no compiler checks.
    Tidy,
    /// Compare the public interfaces with the lists of them, `crates/*/api.txt` and `abi.txt`.
    Api {
        /// Rewrite the lists. Describe the change in CHANGELOG.md.
        #[arg(long)]
        write: bool,
    },
    /// Build the book of `docs/` into target/book. Needs mdBook.
    Book,
    /// Compile the program that walks stacks in the kernel, with clang 14.
    Bpf,
    /// Let fuzz targets search for inputs that break them.
    Fuzz {
        /// Run only these targets.
        target: Vec<String>,
        /// Search for this many seconds each.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Install the C libraries, of backtraces and of the tracer: headers, pkg-config files, static
    /// libraries, shared libraries with versioned symbols.
    InstallLibrary {
        /// The folder to install below; created if needed.
        prefix: PathBuf,
    },
    /// Make the files of a release from the current commit: archives, packages, checksums.
    Release {
        /// Folder to create for the files [default: target/release-files, emptied first]
        folder: Option<PathBuf>,
        /// Build for this target of Rust, instead of this machine.
        #[arg(long)]
        target: Option<String>,
        /// Then prove that the files work and are reproducible; as root, on Debian, with a network.
        #[arg(long)]
        check: bool,
    },
    /// Run the unwinder under Miri, and its threads under ThreadSanitizer. Needs nightly Rust with
    /// miri and rust-src.
    Sanitize,
}

fn main() -> ExitCode {
    let done = match Chores::parse().chore {
        Chore::Test => test::run(),
        Chore::Tidy => tidy::run(),
        Chore::Api { write } => api::run(write),
        Chore::Book => book::build(),
        Chore::Bpf => bpf::run(),
        Chore::Fuzz { target, seconds } => fuzz::run(seconds, &target),
        Chore::InstallLibrary { prefix } => library::install(&prefix),
        Chore::Release { folder, target, check } => release::make(folder.as_deref(), target.as_deref(), check),
        Chore::Sanitize => sanitize::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
