//! `backtrail report`: shows where the time of a recording went.

use std::path::{Path, PathBuf};

use backtrail_export::page::{self, Recording};
use backtrail_profile::{CodeFiles, GroupBy, MAX_FRAMES, Options, Profile, Report as Profiled, TableOptions};
use backtrail_recording::Reader;
use backtrail_stacks::calls;
use clap::{Args, ValueEnum, ValueHint};

use crate::error::{Failure, Status};
use crate::filter::FilterArguments;
use crate::limits::Limits;
use crate::{filter, output, recorded};

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
    #[command(flatten)]
    counted: recorded::Counted,
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    view: ViewArguments,
    /// Find the programs' files below DIR: those of the recorded machine.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    sysroot: Option<PathBuf>,
    /// With --annotate: print all instructions, not only those around samples.
    #[arg(long)]
    whole: bool,
    /// Print at most N rows of a table.
    #[arg(long, value_name = "N", default_value_t = 40)]
    limit: usize,
    /// Print names of any length whole, instead of cutting them in their middle.
    #[arg(long)]
    wide: bool,
    /// Distinguish at most N frames of distinct stacks, in about 24 bytes of memory each.
    #[arg(long, value_name = "N", default_value_t = MAX_FRAMES)]
    max_frames: usize,
    #[command(flatten)]
    limits: Limits,
}

/// Tables other than that of functions: one of them.
#[derive(Args)]
#[group(multiple = false)]
struct ViewArguments {
    /// Print the functions that call FUNCTION, with the samples that it has through each.
    #[arg(long, value_name = "FUNCTION")]
    callers: Option<String>,
    /// Print the functions that FUNCTION calls.
    #[arg(long, value_name = "FUNCTION")]
    callees: Option<String>,
    /// Print the samples of threads, processes, modules, source lines, addresses, cgroups, or
    /// namespaces of process numbers, or by how their stacks were walked.
    #[arg(long, value_name = "WHAT", value_enum)]
    by: Option<By>,
    /// Print the source lines and the instructions of FUNCTION.
    #[arg(long, value_name = "FUNCTION")]
    annotate: Option<String>,
    /// Print how the shares of functions changed since the recording OTHER; with --html, show it on
    /// the page.
    #[arg(long, value_name = "OTHER", value_hint = ValueHint::DirPath)]
    diff: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    Thread,
    Process,
    Module,
    Line,
    Address,
    Cgroup,
    PidNamespace,
    Walk,
}

impl ViewArguments {
    /// Whether one of them is asked for that a page does not show.
    fn is_another_table(&self) -> bool {
        let functions = [&self.callers, &self.callees, &self.annotate];
        functions.iter().any(|function| function.is_some()) || self.by.is_some()
    }
}

pub(crate) fn run(arguments: &Report) -> Result<Status, Failure> {
    arguments.limits.set();
    if let Some(path) = &arguments.html {
        write_page(arguments, path)?;
    }
    let wants_report = arguments.flamegraph.is_some() || arguments.folded.is_some() || arguments.json.is_some();
    let is_page_alone = arguments.html.is_some() && !wants_report && !arguments.view.is_another_table();
    if is_page_alone {
        return Ok(Status::Done);
    }
    let mut reader = recorded::open(&arguments.trace)?;
    let options = Options {
        filter: arguments.filter.filter(),
        max_frames: arguments.max_frames,
        sysroot: arguments.sysroot.clone(),
        ..arguments.counted.options(&arguments.trace, &reader)?
    };
    let report = count(&arguments.trace, &mut reader, options.clone())?;
    if report.summary().samples == 0 {
        recorded::say_what_there_is(&arguments.trace, &arguments.filter)?;
    }
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
    let is_written = arguments.flamegraph.is_some() || arguments.folded.is_some() || arguments.json.is_some();
    if is_written && report.stacks_are_cut() {
        crate::error::say!(
            "backtrail: warning: there are more frames than --max-frames {}, so some stacks end in [frames left out]",
            arguments.max_frames
        );
    }
    show(arguments, &report, options, is_written)?;
    Ok(Status::Done)
}

/// Prints the table that was asked for; that of functions if nothing was written.
fn show(arguments: &Report, report: &Profiled, options: Options, is_written: bool) -> Result<(), Failure> {
    let table = TableOptions {
        limit: Some(arguments.limit),
        width: TableOptions::default().width.filter(|_| !arguments.wide),
        whole: arguments.whole,
    };
    let view = &arguments.view;
    let unknown = |function: &str| {
        let help = filter::unlike(report, function).unwrap_or_else(|| {
            "name a function as the table does; its parameters and namespaces may be left out".to_owned()
        });
        Failure::of(&arguments.trace, format!("no stack goes through a function {function}")).help(help)
    };
    if let Some(by) = view.by {
        let by = match by {
            By::Thread => GroupBy::Thread,
            By::Process => GroupBy::Process,
            By::Module => GroupBy::Module,
            By::Line => GroupBy::Line,
            By::Address => GroupBy::Address,
            By::Cgroup => GroupBy::Group,
            By::PidNamespace => GroupBy::Namespace,
            By::Walk => GroupBy::Walk,
        };
        let rows = report.rows_by(by);
        return output::to_stdout(|out| rows.write(out, &table));
    }
    if let Some(function) = &view.callers {
        let rows = report.callers(function).ok_or_else(|| unknown(function))?;
        return output::to_stdout(|out| rows.write(out, &table));
    }
    if let Some(function) = &view.callees {
        let rows = report.callees(function).ok_or_else(|| unknown(function))?;
        return output::to_stdout(|out| rows.write(out, &table));
    }
    if let Some(function) = &view.annotate {
        let mut is_found = false;
        let mut files = CodeFiles::new(arguments.sysroot.clone());
        output::to_stdout(|out| {
            is_found = report.write_annotation(function, &mut files, out, &table)?;
            Ok(())
        })?;
        return if is_found { Ok(()) } else { Err(unknown(function)) };
    }
    if let Some(other) = &view.diff {
        let before = count(other, &mut recorded::open(other)?, options)?;
        return output::to_stdout(|out| report.write_changes(&before, out, &table));
    }
    match is_written {
        true => Ok(()),
        false => output::to_stdout(|out| report.write_table(out, &table)),
    }
}

/// Counts the recording in a directory.
fn count(trace: &Path, reader: &mut Reader, options: Options) -> Result<Profiled, Failure> {
    let profile = Profile::of_recording(reader, options).map_err(|error| recorded::failed(trace, error))?;
    recorded::say_problems(trace, reader);
    let mut report = profile.finish(reader.stream_bytes());
    report.explain_calls(calls::arguments);
    Ok(report)
}

fn write_page(arguments: &Report, path: &Path) -> Result<(), Failure> {
    let samples = recorded::samples(&arguments.trace, &arguments.filter, &arguments.counted)?;
    let title = arguments.trace.display().to_string();
    let other = match &arguments.view.diff {
        Some(trace) => Some((
            recorded::samples(trace, &arguments.filter, &arguments.counted)?,
            trace.display().to_string(),
        )),
        None => None,
    };
    let recording = |samples, title| Recording { samples, title };
    let other = other.as_ref().map(|(samples, title)| recording(samples, title));
    output::to(path, |out| page::write(recording(&samples, &title), other, out))
}
