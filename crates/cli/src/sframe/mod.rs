//! `backtrail sframe`: stack-trace tables.

mod input;
mod show;

use clap::Subcommand;

use crate::error::{Failure, Status};

/// Show SFrame stack-trace tables.
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
    }
}
