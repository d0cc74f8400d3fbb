//! `backtrail sframe check`: compares a table with call frame information.

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use backtrail_cfi::check::{self, Report};
use backtrail_cfi::{build, tables};
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_sframe::readers::{Reader, Refusal};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Section, Version};
use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::build::percent;
use super::input::{self, Table};
use super::layout::version;
use super::readers::{reader, what};
use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::limits::Limits;
use crate::output;

/// The most pieces of uncovered code that the text lists one by one.
const TOLD: usize = 20;

/// Compare a table with .eh_frame at every pc.
///
/// Code that .eh_frame does not describe is compared with .debug_frame, and Go's functions with
/// .gopclntab, which is not about the frame pointer.
///
/// For a file without .sframe, the version 3 table that 'build' makes is checked. The exit status
/// is 1 if the two disagree. Code that only .eh_frame describes is reported, but does not count:
/// start files never have tables.
#[derive(Args)]
pub(crate) struct Check {
    /// Executables, shared libraries or relocatable files.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Check the table in this file instead, the raw bytes of a section.
    #[arg(long, value_name = "RAW", value_hint = ValueHint::FilePath, conflicts_with = "built")]
    table: Option<PathBuf>,
    /// Check the table that 'build' makes in this version, even if FILE has one.
    #[arg(long, value_name = "VERSION", value_parser = version())]
    built: Option<Version>,
    /// Also report everything that READER refuses in the table, from versions that it does not read
    /// to rows; the exit status is 1 if there is any.
    #[arg(long = "for", value_name = "READER", value_parser = reader())]
    reader: Option<Reader>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: Limits,
}

pub(crate) fn run(arguments: &Check) -> Result<Status, Failure> {
    arguments.limits.set();
    if arguments.table.is_some() && arguments.files.len() > 1 {
        return Err(Failure::new("--table is for one FILE"));
    }
    let mut status = Status::Done;
    let mut documents = Vec::new();
    for path in &arguments.files {
        let checked = match Checked::new(arguments, path) {
            Ok(checked) => checked,
            Err(failure) => {
                failure.report();
                status = Status::Bad;
                continue;
            }
        };
        if arguments.json {
            documents.push(checked.to_json());
        } else {
            output::to_stdout(|out| checked.write_text(out))?;
        }
        status = match (status, checked.partial()) {
            (_, Some(failure)) => {
                failure.report();
                Status::Bad
            }
            (Status::Done, None) if checked.found() => Status::Found,
            (status, None) => status,
        };
    }
    if arguments.json {
        output::to_stdout(|out| writeln!(out, "{}", Value::Array(documents)))?;
    }
    Ok(status)
}

/// A file's report, with the names and errors to print.
struct Checked<'a> {
    path: &'a Path,
    version: Version,
    /// The table was made for this check.
    built: bool,
    report: Report,
    /// What the reader refuses, if one is given.
    refused: Option<(Reader, Vec<Refusal>)>,
    /// A name for each reported piece of uncovered code.
    names: Vec<String>,
    damage: Option<backtrail_cfi::eh_frame::Error>,
}

impl<'a> Checked<'a> {
    fn new(arguments: &Check, path: &'a Path) -> Result<Checked<'a>, Failure> {
        let fails = |error: &dyn std::fmt::Display| Failure::of(path, error);
        let file = input::open_single(path)?;
        let image = input::image(path, &file)?;
        let raw = arguments.table.as_deref().map(Raw::open).transpose()?;
        let own = match (&raw, arguments.built) {
            (Some(raw), _) => Some(raw.table()?),
            (None, Some(_)) => None,
            (None, None) => Table::of_image(&image).map_err(|error| fails(&error))?,
        };
        let own = own.as_ref().map(Table::section).transpose();
        let own = own.map_err(|error| Failure::of(arguments.table.as_deref().unwrap_or(path), error))?;
        let (own, missing) = own.map_or((None, None), |(own, missing)| (Some(own), missing));
        if let Some(own) = own.filter(|own| own.abi() != tables::abi(&image)) {
            return Err(fails(&format_args!("the table is for {}", own.abi().name())));
        }
        let version = own.map_or(arguments.built.unwrap_or(Version::V3), |own| own.version());
        // For an existing table, the built one says why code is missing.
        let options = Options::new(version, tables::abi(&image), 0);
        let built = build::of_image(&image, &options).map_err(|error| fails(&error))?;
        let section = match own {
            Some(own) => own,
            None => Section::parse(&built.bytes, 0).map_err(|error| fails(&error))?,
        };
        let report = check::check_image(&image, &section, &built.skipped);
        let mut report = report.map_err(|error| fails(&error))?;
        report.damage = report.damage.or(missing);
        let refused = match arguments.reader {
            // What takes too long to compare may have too many rows to look at each.
            Some(reader) if report.gave_up_at.is_none() => {
                let mut refused = Vec::new();
                // Several tables of an object file were joined to compare them.
                let stored = match own.is_some() && raw.is_none() {
                    true => Table::all_of_image(&image).map_err(|error| fails(&error))?,
                    false => Vec::new(),
                };
                if stored.is_empty() {
                    refuse(reader, &section, &mut refused);
                }
                for table in &stored {
                    let (section, _) = table.section().map_err(|error| fails(&error))?;
                    refuse(reader, &section, &mut refused);
                }
                Some((reader, refused))
            }
            _ => None,
        };
        let names = match arguments.json {
            true => Vec::new(),
            false => names(&image, &report),
        };
        Ok(Checked {
            path,
            version,
            built: own.is_none(),
            report,
            refused,
            names,
            damage: built.damage,
        })
    }

    /// Whether the check found anything, as the exit status reports it.
    fn found(&self) -> bool {
        let refused = self.refused.as_ref();
        !self.report.mismatches.is_empty() || refused.is_some_and(|(_, refused)| !refused.is_empty())
    }

    /// Why the comparison is incomplete.
    fn partial(&self) -> Option<Failure> {
        let report = &self.report;
        if let Some(damage) = report.damage {
            return Some(Failure::of(self.path, format_args!(".sframe: {damage}")));
        }
        if let Some(damage) = self.damage {
            return Some(Failure::of(self.path, damage));
        }
        let pc = report.gave_up_at?;
        Some(Failure::of(
            self.path,
            format_args!("gave up at pc {pc:#x}: the tables say too much for their length"),
        ))
    }

    fn to_json(&self) -> Value {
        let report = &self.report;
        let mismatches: Vec<Value> = report
            .mismatches
            .iter()
            .map(|found| {
                json!({
                    "pc": format!("{:#x}", found.pc),
                    "what": found.what.name(),
                    "sframe": found.sframe,
                    "eh_frame": found.eh_frame,
                })
            })
            .collect();
        let mut document = json!({
            "file": self.path.display().to_string(),
            "functions": report.functions,
            "rows": report.rows,
            "pcs": report.pcs,
            "uncovered_bytes": report.uncovered_bytes(),
            "skipped": report.skipped,
            "mismatches": mismatches,
        });
        if let Some((_, refused)) = &self.refused {
            let refused = refused.iter().map(|refusal| {
                json!({
                    "reader": refusal.reader.name(),
                    "what": what(refusal),
                    "offset": refusal.offset,
                })
            });
            document["refused"] = refused.collect();
        }
        document
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let report = &self.report;
        let whose = if self.built { "as build makes it" } else { "in the file" };
        writeln!(
            out,
            "{}: SFrame version {} {whose}: {} functions, {} rows; {} pcs compared, {}",
            shown(self.path),
            self.version as u8,
            report.functions,
            report.rows,
            report.pcs,
            match report.mismatches.len() {
                0 => "no mismatch".to_owned(),
                some => Counted(some, "mismatch").to_string(),
            }
        )?;
        for found in &report.mismatches {
            let (pc, pcs, what) = (found.pc, found.pcs, found.what.name());
            writeln!(
                out,
                "  {pc:#x}: {what} at {pcs} pcs: .sframe {}; .eh_frame {}",
                found.sframe, found.eh_frame
            )?;
        }
        if let Some((reader, refused)) = &self.refused {
            let name = reader.name();
            if refused.is_empty() {
                writeln!(out, "  {name} refuses nothing")?;
            }
            for refusal in refused {
                writeln!(
                    out,
                    "  {name} refuses: {} at offset {:#x}",
                    what(refusal),
                    refusal.offset
                )?;
            }
        }
        if report.padding > 0 {
            writeln!(out, "  padding between joined functions: {} bytes", report.padding)?;
        }
        if report.uncovered.is_empty() {
            return Ok(());
        }
        let uncovered = report.uncovered_bytes();
        writeln!(
            out,
            "  not covered: {uncovered} of {} bytes ({} covered)",
            report.pcs,
            percent(report.pcs - uncovered, report.pcs)
        )?;
        for (reason, pieces) in &report.skipped {
            writeln!(out, "    {reason}: {pieces}")?;
        }
        for (range, name) in report.uncovered.iter().zip(&self.names) {
            writeln!(out, "    {:#x}..{:#x} {name}", range.start, range.end)?;
        }
        match report.uncovered.len().saturating_sub(TOLD) {
            0 => Ok(()),
            more => writeln!(out, "    … and {more} more"),
        }
    }
}

fn refuse(reader: Reader, section: &Section<'_>, refused: &mut Vec<Refusal>) {
    reader.refusals(section, &mut |refusal| {
        refused.push(refusal);
        ControlFlow::Continue(())
    });
}

/// The section that each piece begins in, and its function if that has a name.
fn names(image: &Image<'_>, report: &Report) -> Vec<String> {
    if report.uncovered.is_empty() {
        return Vec::new();
    }
    let symbols = Symbols::new(image);
    let told = report.uncovered.iter().take(TOLD);
    told.map(|piece| {
        let section = image.code_section(piece.start);
        let mut name = section
            .map_or(Cow::Borrowed("?"), |section| String::from_utf8_lossy(section.name))
            .into_owned();
        let symbol = symbols.lookup(piece.start);
        // A symbol without a size may seem to reach into the next section.
        if let Some(symbol) = symbol.filter(|symbol| section.is_none_or(|section| section.address <= symbol.address)) {
            name.push(' ');
            name.push_str(&symbol.name);
        }
        name
    })
    .collect()
}

/// A file with the bytes of a section.
struct Raw<'a> {
    path: &'a Path,
    file: FileBytes,
}

impl<'a> Raw<'a> {
    fn open(path: &'a Path) -> Result<Raw<'a>, Failure> {
        let file = input::open_single(path)?;
        Ok(Raw { path, file })
    }

    fn table(&self) -> Result<Table<'_>, Failure> {
        Table::find(self.path, self.file.bytes())
    }
}
