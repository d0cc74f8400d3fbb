//! `backtrail sframe show`: prints what readelf prints, or JSON.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use backtrail_sframe::dump::{self, DumpError};
use backtrail_sframe::validate::{Finding, validate};
use clap::Args;

use super::input::{self, Table};
use super::json;
use crate::error::{Failure, Status, shown};
use crate::output;

/// Show every function and row, as readelf of the table's version does.
///
/// In relocatable files of SFrame versions 1 and 2, readelf shows start addresses before
/// relocation; JSON contains the relocated ones.
#[derive(Args)]
pub(crate) struct Show {
    /// ELF files, linked or relocatable, or files with the bytes of an .sframe section.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also report every difference from what the specification demands of a linked table.
    #[arg(long)]
    strict: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Show) -> Result<Status, Failure> {
    let mut told = Told::default();
    output::to_stdout(|out| {
        if arguments.json {
            json::array(out, &arguments.files, |out, path| {
                file_as_json(out, path, arguments.strict, &mut told)
            })
        } else {
            text_of_all(out, arguments, &mut told)
        }
    })?;
    Ok(told.status())
}

/// Whether errors or findings have been reported.
#[derive(Default)]
struct Told {
    bad: bool,
    found: bool,
}

impl Told {
    fn failure(&mut self, failure: &Failure) {
        failure.report();
        self.bad = true;
    }

    /// Reports everything that a strict reader rejects.
    fn findings(&mut self, path: &Path, table: &Table<'_>, mut each: impl FnMut(Finding)) {
        validate(&table.bytes, table.address, &mut |finding| {
            Failure::of(path, finding).report();
            self.found = true;
            each(finding);
            ControlFlow::Continue(())
        });
    }

    fn status(&self) -> Status {
        match (self.bad, self.found) {
            (true, _) => Status::Bad,
            (_, true) => Status::Found,
            _ => Status::Done,
        }
    }
}

fn text_of_all(out: &mut dyn io::Write, arguments: &Show, told: &mut Told) -> io::Result<()> {
    for path in &arguments.files {
        if arguments.files.len() > 1 {
            writeln!(out, "\nFile: {}", shown(path))?;
        }
        let shown = with_tables(path, |tables| {
            for table in tables {
                text(out, path, table, told)?;
                // Flush before the next file's text, in case both go to the same place.
                out.flush()?;
                if arguments.strict {
                    told.findings(path, table, |_| {});
                }
            }
            io::Result::Ok(())
        });
        match shown {
            Ok(shown) => shown?,
            Err(failure) => {
                out.flush()?;
                told.failure(&failure);
            }
        }
    }
    Ok(())
}

/// Prints what can be shown, then reports what cannot.
fn text(out: &mut dyn io::Write, path: &Path, table: &Table<'_>, told: &mut Told) -> io::Result<()> {
    let (section, missing) = match table.section_of_readelf() {
        Ok(section) => section,
        Err(error) => {
            told.failure(&Failure::of(path, error));
            return Ok(());
        }
    };
    let mut text = Text { out, failed: None };
    let dumped = dump::dump(&section, &table.name, &mut text);
    if let Some(error) = text.failed {
        return Err(error);
    }
    out.flush()?;
    if let Some(missing) = missing {
        told.failure(&Failure::of(path, missing));
    }
    if let Err(damaged @ DumpError::Damaged { .. }) = dumped {
        told.failure(&Failure::of(path, damaged));
    }
    Ok(())
}

fn file_as_json(out: &mut dyn io::Write, path: &Path, strict: bool, told: &mut Told) -> io::Result<()> {
    let written = with_tables(path, |tables| {
        for (index, table) in tables.iter().enumerate() {
            if index > 0 {
                out.write_all(b",\n")?;
            }
            let mut findings = Vec::new();
            if strict {
                told.findings(path, table, |finding| findings.push(finding));
            }
            let findings = strict.then_some(&findings[..]);
            json::table(out, path, table, findings, &mut |failure| told.failure(&failure))?;
        }
        io::Result::Ok(())
    });
    match written {
        Ok(written) => written,
        Err(failure) => {
            told.failure(&failure);
            json::failed(out, path, &failure)
        }
    }
}

/// The tables of a file, for `show`.
fn with_tables<T>(path: &Path, show: impl FnOnce(&[Table<'_>]) -> T) -> Result<T, Failure> {
    let file = input::open_single(path)?;
    let tables = Table::find_all(path, file.bytes())?;
    Ok(show(&tables))
}

/// Writes text as bytes, and keeps the reason of a failure.
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
