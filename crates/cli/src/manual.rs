//! Writes man pages and shell completions, generated from the command's options.

use std::io;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::error::{Failure, Status};
use crate::{command, output};

/// Print completions for a shell.
#[derive(Args)]
pub(crate) struct Completions {
    /// Shell to print completions for.
    shell: Shell,
}

/// Print the man page, or write the pages of all subcommands.
#[derive(Args)]
pub(crate) struct Man {
    /// Write a page for the command and for each subcommand into DIR, created if needed.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &Completions) -> Result<Status, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "backtrail", &mut script);
    output::to_stdout(|out| out.write_all(&script))?;
    Ok(Status::Done)
}

pub(crate) fn man(arguments: &Man) -> Result<Status, Failure> {
    let command = command().disable_help_subcommand(true);
    let Some(directory) = &arguments.directory else {
        let page = clap_mangen::Man::new(command);
        output::to_stdout(|out| page.render(out))?;
        return Ok(Status::Done);
    };
    let failed = |error: io::Error| Failure::of(directory, error);
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    Ok(Status::Done)
}
