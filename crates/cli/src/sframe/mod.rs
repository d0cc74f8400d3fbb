//! `backtrail sframe`: stack-trace tables.

pub(crate) mod add;
mod added;
mod args;
mod build;
mod check;
mod convert;
mod input;
mod json;
mod layout;
mod many;
mod objects;
mod readers;
mod report;
mod show;
mod size;
mod strip;

use clap::Subcommand;

pub(crate) use added::How;
pub(crate) use args::WithArguments;
pub(crate) use layout::{Merge, Plan, version};
pub(crate) use readers::For;

use crate::error::{Failure, Status};

/// Show, check, make, convert, add and remove SFrame stack-trace tables.
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
    Check(check::Check),
    Build(build::Build),
    Add(add::Add),
    Convert(convert::Convert),
    Strip(strip::Strip),
    Size(size::Size),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Add(arguments) => add::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Strip(arguments) => strip::run(&arguments),
        Command::Size(arguments) => size::run(&arguments),
    }
}
