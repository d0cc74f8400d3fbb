//! `backtrail report`: shows where the time of a recording went.

use std::path::{Path, PathBuf};

use backtrail_export::page::{self, Recording};
use backtrail_profile::{Options, Profile, Report as Profiled, TableOptions};
use backtrail_stacks::calls;
use clap::{Args, ValueHint};

use crate::error::{Failure, Status};
use crate::{output, recorded};

/// Show where the time of a recording went.
///
/// Without an option, a table is printed. '-' as FILE is standard output.
#[derive(Args)]
pub(crate) struct Report {
    /// Directory of the trace.
    #[arg(value_name = "TRACE", value_hint = ValueHint::DirPath)]
    trace: PathBuf,
    /// Write a flame graph.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    flamegraph: Option<PathBuf>,
    /// Write folded stacks, one per line: frames from the outermost inwards, and the count.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    folded: Option<PathBuf>,
    /// Write the summary and all functions as JSON.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Write a page for a browser: one file with all views, which needs no network.
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Show on the page how the recording differs from this one.
    #[arg(long, value_name = "TRACE", value_hint = ValueHint::DirPath, requires = "html")]
    diff: Option<PathBuf>,
    /// Print at most N rows of the table.
    #[arg(long, value_name = "N", default_value_t = 40)]
    limit: usize,
}

pub(crate) fn run(arguments: &Report) -> Result<Status, Failure> {
    if let Some(path) = &arguments.html {
        write_page(arguments, path)?;
    }
    let reports = [&arguments.flamegraph, &arguments.folded, &arguments.json];
    let wants_report = reports.iter().any(|path| path.is_some());
    if arguments.html.is_some() && !wants_report {
        return Ok(Status::Done);
    }
    let report = read(arguments)?;
    let title = arguments.trace.display().to_string();
    if let Some(path) = &arguments.flamegraph {
        output::to(path, |out| report.write_flame_graph(out, &title))?;
    }
    if let Some(path) = &arguments.folded {
        output::to(path, |out| report.write_folded(out))?;
    }
    if let Some(path) = &arguments.json {
        output::to(path, |out| report.write_json(out))?;
    }
    if !wants_report {
        let options = TableOptions {
            limit: Some(arguments.limit),
            ..TableOptions::default()
        };
        output::to_stdout(|out| report.write_table(out, &options))?;
    }
    Ok(Status::Done)
}

fn write_page(arguments: &Report, path: &Path) -> Result<(), Failure> {
    let samples = recorded::samples(&arguments.trace)?;
    let title = arguments.trace.display().to_string();
    let other = match &arguments.diff {
        Some(trace) => Some((recorded::samples(trace)?, trace.display().to_string())),
        None => None,
    };
    let recording = |samples, title| Recording { samples, title };
    let other = other.as_ref().map(|(samples, title)| recording(samples, title));
    output::to(path, |out| page::write(recording(&samples, &title), other, out))
}

fn read(arguments: &Report) -> Result<Profiled, Failure> {
    let mut reader = recorded::open(&arguments.trace)?;
    let mut profile = Profile::new(Options {
        clock_offset: reader.clock_offset(),
        ..Options::default()
    });
    recorded::each(&arguments.trace, &mut reader, |item| profile.add(item))?;
    let mut report = profile.finish(reader.stream_bytes());
    report.explain_calls(calls::arguments);
    Ok(report)
}
