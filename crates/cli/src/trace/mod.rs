//! `backtrail trace`: Common Trace Format, to text.

mod check;
mod convert;
mod info;
mod input;
mod receive;
mod record;
mod recover;
mod send;
mod serve;
mod show;
mod symbols;

use clap::Subcommand;

use crate::error::{Failure, Status};

/// Show and check traces of the Common Trace Format: 1.8, 2, and the RFC v1.1 of 2010.
#[derive(Subcommand)]
pub(crate) enum Command {
    Show(show::Show),
    Info(info::Info),
    Check(check::Check),
    Convert(convert::Convert),
    Record(record::Record),
    Recover(recover::Recover),
    Serve(serve::Serve),
    Receive(receive::Receive),
    Send(send::Send),
}

pub(crate) fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Show(arguments) => show::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Recover(arguments) => recover::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Receive(arguments) => receive::run(&arguments),
        Command::Send(arguments) => send::run(&arguments),
    }
}
