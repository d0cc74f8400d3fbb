//! `backtrail sframe`: stack-trace tables.

mod build;
mod check;
mod convert;
mod input;
mod json;
mod show;
mod size;

use clap::Subcommand;

use crate::error::{Failure, Status};

/// Show, check, make and convert SFrame stack-trace tables.
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
    Check(check::Check),
    Build(build::Build),
    Convert(convert::Convert),
    Size(size::Size),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Size(arguments) => size::run(&arguments),
    }
}
