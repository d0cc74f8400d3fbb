//! `backtrail sframe convert`: writes a table in another version.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use backtrail_sframe::Version;
use backtrail_sframe::write::{self, Options, Output};
use clap::{Args, ValueHint};

use super::input::{self, Table};
use super::layout::version;
use super::readers::{self, For, Stage};
use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::output;

/// Write a table in another version, as the raw bytes of a section.
///
/// Functions keep their addresses, which are the file's own if the result is read at address 0, as
/// all files with raw bytes are. Anything the version cannot express is left out, counted and named
/// on standard error.
#[derive(Args)]
pub(crate) struct Convert {
    /// An ELF file with .sframe, or a file with the bytes of such a section.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write this version of SFrame [default: what --for reads].
    #[arg(long, value_name = "VERSION", value_parser = version(), required_unless_present = "readers")]
    to: Option<Version>,
    #[command(flatten)]
    readers: For,
    /// Write the section to OUT; '-' or nothing is standard output, unless it is a terminal.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Convert) -> Result<Status, Failure> {
    let path = &arguments.file;
    if arguments.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::new("the result is not for a terminal").help("-o OUT writes it into a file"));
    }
    let version = arguments.readers.version(("--to", arguments.to))?;
    let file = input::open_single(path)?;
    let table = Table::find(path, file.bytes())?;
    let (section, missing) = table.section().map_err(|error| Failure::of(path, error))?;
    if let Some(error) = missing {
        return Err(Failure::of(path, error));
    }
    let options = Options::new(version, section.abi(), 0).for_readers(arguments.readers.all());
    let converted = write::convert(&section, &options).map_err(|error| Failure::of(path, error))?;
    readers::bear(&options, &converted.bytes, Stage::Linked).map_err(|why| Failure::of(path, why))?;
    let out = arguments.output.as_deref().unwrap_or(Path::new("-"));
    output::to(out, |out| out.write_all(&converted.bytes))?;
    left_out(path, &converted);
    Ok(Status::Done)
}

fn left_out(path: &Path, converted: &Output) {
    let mut reasons: BTreeMap<write::Reason, BTreeSet<usize>> = BTreeMap::new();
    for skipped in &converted.skipped {
        reasons.entry(skipped.reason).or_default().insert(skipped.index);
    }
    for (reason, functions) in reasons {
        crate::error::say!(
            "{}: skipped: {}: {}: {reason}",
            shown(path),
            reason.name(),
            Counted(functions.len(), "function")
        );
    }
}
