//! `backtrail sframe`: stack-trace tables.

mod input;
mod json;
mod show;
mod size;

use clap::Subcommand;

use crate::error::{Failure, Status};

/// Show SFrame stack-trace tables.
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
    Size(size::Size),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
        Command::Size(arguments) => size::run(&arguments),
    }
}
