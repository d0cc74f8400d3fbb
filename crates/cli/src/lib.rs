//! The command `backtrail`: one module per subcommand, and no algorithms in them.

mod cache;
mod cbf;
mod collect;
mod counted;
mod crashes;
mod debuginfod;
mod edited;
mod error;
mod examples;
mod export;
mod file_problems;
mod filter;
mod hex;
mod import;
mod isolated;
mod limits;
mod link;
mod manual;
mod memory;
mod name_sources;
mod output;
mod pack;
mod record;
mod recorded;
mod replacement;
mod report;
mod sframe;
mod stack;
#[cfg(feature = "store")]
mod store;
mod times;
mod top;
mod trace;
mod types;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use error::{Failure, Status};

/// Precise stack traces of any Linux program, in production.
#[derive(Parser)]
#[command(name = "backtrail", version, long_version = env!("BACKTRAIL_VERSION"), propagate_version = true)]
#[command(after_help = "Exit status: 0 done; 1 a check or a comparison found something; 2 bad usage or bad input.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Record(record::Record),
    Report(report::Report),
    Top(top::Top),
    Pack(pack::Pack),
    Export(export::Export),
    Import(import::Import),
    Stack(stack::Stack),
    Collect(collect::Collect),
    Crashes(crashes::Crashes),
    #[cfg(feature = "store")]
    #[command(subcommand)]
    Store(store::Command),
    #[command(subcommand)]
    Trace(trace::Command),
    #[command(subcommand)]
    Cbf(cbf::Command),
    #[command(subcommand)]
    Sframe(sframe::Command),
    #[command(subcommand)]
    Types(types::Command),
    Link(link::Link),
    #[command(subcommand)]
    Cache(cache::Command),
    Completions(manual::Completions),
    Man(manual::Man),
}

impl Command {
    /// Whether it looks up the names of any number of files.
    fn looks_up_names(&self) -> bool {
        match self {
            Command::Report(_) | Command::Pack(_) | Command::Export(_) | Command::Import(_) => true,
            #[cfg(feature = "store")]
            Command::Store(_) => true,
            _ => false,
        }
    }
}

/// Runs the command given by the process's arguments.
pub fn main() -> ExitCode {
    memory::end_without_threads();
    if let Some(status) = isolated::run_as_worker() {
        return status;
    }
    isolated::use_workers();
    let matches = command().try_get_matches_from(link::arguments());
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return error::usage(&error, &command(), &link::arguments()),
    };
    if cli.command.looks_up_names() {
        // Files of other users stay open until their names are known. If this fails and there are
        // more than may be open, a report says which could not be read.
        let _ = backtrail_process::perf::raise_open_files();
    }
    match run(cli.command) {
        Ok(status) => status.into(),
        Err(failure) => failure.report(),
    }
}

/// The options of all verbs, with their help.
fn command() -> clap::Command {
    examples::add(Cli::command())
}

fn run(command: Command) -> Result<Status, Failure> {
    match command {
        Command::Record(arguments) => record::run(arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Pack(arguments) => pack::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Stack(arguments) => stack::run(&arguments),
        Command::Collect(arguments) => collect::run(&arguments),
        Command::Crashes(arguments) => crashes::run(&arguments),
        #[cfg(feature = "store")]
        Command::Store(command) => store::run(&command),
        Command::Trace(command) => trace::run(command),
        Command::Cbf(command) => cbf::run(command),
        Command::Sframe(command) => sframe::run(command),
        Command::Types(command) => types::run(command),
        Command::Link(arguments) => link::run(&arguments),
        Command::Cache(command) => cache::run(&command),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    }
}
