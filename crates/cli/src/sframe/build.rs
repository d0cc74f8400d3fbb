//! `backtrail sframe build`: makes a table from `.eh_frame`.

use std::path::{Path, PathBuf};

use backtrail_cfi::build::{self, Built};
use backtrail_sframe::Version;
use clap::{Args, ValueHint};

use super::input;
use super::layout::Layout;
use super::readers;
use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::limits::Limits;
use crate::output;

/// Make a table from .eh_frame, as the raw bytes of a section.
///
/// Its addresses are the file's own if it is read at address 0, as all files with raw bytes are. A
/// relocatable file has no addresses: its sections are placed one after the other from 0 on, those
/// with code first.
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Build {
    /// An executable, shared library or relocatable file.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Write the section to OUT; '-' is standard output.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    layout: Layout,
    /// Print no summary; what was left out is still reported.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    limits: Limits,
}

pub(crate) fn run(arguments: &Build) -> Result<Status, Failure> {
    arguments.limits.set();
    let path = &arguments.file;
    let plan = arguments.layout.plan()?;
    let file = input::open_single(path)?;
    let image = input::image(path, &file)?;
    let options = plan.options(&image);
    let built = build::of_image(&image, &options).map_err(|error| Failure::of(path, error))?;
    readers::bear(&options, &built.bytes, readers::Stage::Linked).map_err(|why| Failure::of(path, why))?;
    output::to(&arguments.output, |out| out.write_all(&built.bytes))?;
    if !arguments.quiet {
        let mut summary = Summary::default();
        summary.add(&built, built.bytes.len());
        summary.tell(options.version);
    }
    left_out(path, &built);
    match built.damage {
        Some(damage) => Err(Failure::of(path, damage).help("the table has what comes before")),
        None => Ok(Status::Done),
    }
}

/// What was made, for one or several tables.
#[derive(Clone, Copy, Default)]
pub(super) struct Summary {
    pub(super) functions: u64,
    rows: u64,
    /// Bytes of the tables.
    pub(super) bytes: usize,
    /// Bytes of code.
    pub(super) covered: u64,
    pub(super) uncovered: u64,
}

impl Summary {
    /// Counts a table of this many bytes.
    pub(super) fn add(&mut self, built: &Built, bytes: usize) {
        self.functions += u64::from(built.functions);
        self.rows += u64::from(built.rows);
        self.bytes += bytes;
        self.covered = self.covered.saturating_add(built.covered_bytes);
        self.uncovered = self.uncovered.saturating_add(built.uncovered_bytes());
    }

    /// Adds the counts of other tables.
    pub(super) fn merge(&mut self, other: &Summary) {
        self.functions += other.functions;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.covered = self.covered.saturating_add(other.covered);
        self.uncovered = self.uncovered.saturating_add(other.uncovered);
    }

    /// Prints the summary on standard error.
    pub(super) fn tell(&self, version: Version) {
        let described = self.covered.saturating_add(self.uncovered);
        crate::error::say!(
            "SFrame version {}: {} functions, {} rows, {} bytes; {} of {described} bytes of code covered ({})",
            version as u8,
            self.functions,
            self.rows,
            self.bytes,
            self.covered,
            percent(self.covered, described),
        );
    }
}

/// A percentage, rounded down: 100 % means all.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 / whole.max(1) as f64;
    match part == whole {
        true => "100 %".to_owned(),
        false => format!("{:.3} %", (share * 100_000.0).floor() / 1000.0),
    }
}

/// Reports on standard error what was left out and why.
pub(super) fn left_out(path: &Path, built: &Built) {
    for (reason, (pieces, bytes)) in built.skipped_by_reason() {
        crate::error::say!(
            "{}: skipped: {reason}: {} of code, {bytes} bytes",
            shown(path),
            Counted(pieces, "piece")
        );
    }
}
