//! The project's own chores: `cargo xtask`.

mod manual;

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
    let (directory, result) = match Chores::parse().chore {
        Chore::Man { directory } => (directory.clone(), manual::man(&directory)),
        Chore::Completions { directory } => (directory.clone(), manual::completions(&directory)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
