//! `backtrail types`: compact C types.

pub(crate) mod add;
mod anywhere;
mod around;
mod build;
mod diff;
mod find;
mod input;
mod json;
mod link;
mod print;
mod show;
mod visible;

pub(crate) use build::{ARGUMENTS, no_debug_information, with_debug_information};
use clap::Subcommand;

use crate::error::{Failure, Status};

/// Show, print, find, make, link and compare compact C types (CTF, the Compact C Type Format).
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
    Print(print::Print),
    Find(find::Find),
    Build(build::Build),
    Add(add::Add),
    Link(link::Link),
    Diff(diff::Diff),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
        Command::Print(arguments) => print::run(&arguments),
        Command::Find(arguments) => find::run(&arguments),
        Command::Build(arguments) => build::run(&arguments),
        Command::Add(arguments) => add::run(&arguments),
        Command::Link(arguments) => link::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
    }
}
