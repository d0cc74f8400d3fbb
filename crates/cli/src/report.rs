//! `backtrail report`: shows where the time of a recording went.

use std::io::ErrorKind;
use std::path::PathBuf;

use backtrail_profile::{Options, Profile, Report as Profiled, TableOptions};
use backtrail_recording::{ReadError, Reader};
use backtrail_stacks::calls;
use backtrail_trace::TraceErrorKind;
use clap::{Args, ValueHint};

use crate::error::{Failure, Status, shown};
use crate::limits::Limits;
use crate::output;

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
    /// Print at most N rows of the table.
    #[arg(long, value_name = "N", default_value_t = 40)]
    limit: usize,
    #[command(flatten)]
    limits: Limits,
}

pub(crate) fn run(arguments: &Report) -> Result<Status, Failure> {
    arguments.limits.set();
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
    if arguments.flamegraph.is_none() && arguments.folded.is_none() && arguments.json.is_none() {
        let options = TableOptions {
            limit: Some(arguments.limit),
            ..TableOptions::default()
        };
        output::to_stdout(|out| report.write_table(out, &options))?;
    }
    Ok(Status::Done)
}

fn read(arguments: &Report) -> Result<Profiled, Failure> {
    let failed = |error| match error {
        ReadError::Trace(error) => {
            let missing = match &error.kind {
                TraceErrorKind::Io(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
                _ => false,
            };
            match missing {
                // The user typed the directory, not the file within it.
                true => Failure::of(&arguments.trace, "not a recording")
                    .help("name the directory that `backtrail record` wrote"),
                false => Failure::new(error),
            }
        }
        ReadError::NoRecording => Failure::of(&arguments.trace, error),
    };
    let mut reader = Reader::open(&arguments.trace).map_err(failed)?;
    let mut profile = Profile::new(Options {
        clock_offset: reader.clock_offset(),
        ..Options::default()
    });
    while let Some(item) = reader.next().map_err(failed)? {
        profile.add(&item);
    }
    for problem in reader.problems() {
        eprintln!("backtrail: {}: {problem}", shown(&arguments.trace));
    }
    let mut report = profile.finish(reader.stream_bytes());
    report.explain_calls(calls::arguments);
    Ok(report)
}
