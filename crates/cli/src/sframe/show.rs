//! `backtrail sframe show`: what readelf prints, or JSON.

use std::io;
use std::path::{Path, PathBuf};

use backtrail_sframe::dump;
use clap::Args;

use super::input::{self, Table};
use crate::error::{Failure, Status};
use crate::output;

/// Show every function and row, as readelf of the table's version does.
#[derive(Args)]
pub(crate) struct Show {
    /// ELF files, linked or relocatable, or files with the bytes of an .sframe section.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let mut status = Status::Done;
    for path in &arguments.files {
        if arguments.files.len() > 1 {
            output::to_stdout(|out| writeln!(out, "\nFile: {}", path.display()))?;
        }
        match text(path) {
            Ok(()) => {}
            Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
            Err(failure) => {
                failure.report();
                status = Status::Bad;
            }
        }
    }
    Ok(status)
}

fn text(path: &Path) -> Result<(), Failure> {
    let file = input::open(path)?;
    let table = Table::find(path, file.bytes())?;
    let section = table.section_of_readelf().map_err(|error| Failure::of(path, error))?;
    let mut damage = Ok(());
    output::to_stdout(|out| {
        let mut out = Text { out, failed: None };
        damage = dump::dump(&section, &table.name, &mut out);
        out.failed.map_or(Ok(()), Err)
    })?;
    damage.map_err(|error| Failure::of(path, error))
}

/// Text to bytes, keeping the reason of a failure.
struct Text<'a> {
    out: &'a mut dyn io::Write,
    failed: Option<io::Error>,
}

impl std::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.failed = Some(error);
            std::fmt::Error
        })
    }
}
