//! `backtrail import`: turns what another tool has recorded into a recording.

use std::path::{Path, PathBuf};

use backtrail_process::perf::FileError;
use backtrail_profile::Options;
use backtrail_record::{Dialect, ImportError, ImportOptions, Imported, Stop};
use clap::{Args, ValueHint};

use crate::counted::Counted;
use crate::error::{Failure, Status, one_line, say, shown};
use crate::file_problems;
use crate::output::directory;

/// Turn a perf.data file into a recording.
///
/// The copies of stacks that `perf record --call-graph dwarf` makes are walked with SFrame tables
/// of the programs' files, which must be those that ran: their build IDs are compared. Call chains
/// of `perf record -g` are kept as they are. Compressed files (`perf record -z`), directories
/// (`perf record --threads`) and what perf wrote to a pipe are read too.
#[derive(Args)]
pub(crate) struct Import {
    /// File or directory that perf wrote; '-' is standard input.
    #[arg(value_name = "PERF.DATA", value_hint = ValueHint::FilePath)]
    input: PathBuf,
    /// Write the trace to this directory, which must not exist.
    #[arg(short, long, value_name = "TRACE", value_hint = ValueHint::DirPath, value_parser = directory())]
    output: PathBuf,
    /// Import the samples of this event; repeatable. [default: the first event]
    #[arg(long = "event", value_name = "NAME")]
    events: Vec<String>,
    /// Take the programs' files from below DIR: those of the machine that perf ran on, under their
    /// paths or by build ID as in a folder of `perf archive`.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    sysroot: Option<PathBuf>,
    /// Leave the names of functions, their lines and inlined calls out of the trace.
    #[arg(long)]
    no_symbols: bool,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Import) -> Result<Status, Failure> {
    let options = ImportOptions {
        input: arguments.input.clone(),
        events: arguments.events.clone(),
        output: arguments.output.clone(),
        sysroot: arguments.sysroot.clone(),
        dialect: Dialect::V1_8,
        cache: None,
    };
    let imported = backtrail_record::import(&options).map_err(|error| match error {
        ImportError::Create(error) => Failure::new(error).help("name a directory that does not exist, with -o"),
        ImportError::NoEvent(_, ref events) if !events.is_empty() => {
            Failure::of(&arguments.input, error).help("name one of these, with --event")
        }
        ImportError::File(FileError::NoPerfData) => Failure::of(&arguments.input, error)
            .help("name the file that `perf record` wrote, not the text of perf script"),
        error => Failure::of(&arguments.input, error),
    })?;
    say_what_is_left_out(&imported, &arguments.input);
    say_what_is_missing(&imported, arguments);
    if imported.is_cut {
        say!(
            "backtrail: warning: {}: ends in the middle of its records",
            shown(&arguments.input)
        );
    }
    if imported.damaged > 0 {
        say!(
            "backtrail: warning: {}: {} could not be understood",
            shown(&arguments.input),
            Counted(imported.damaged, "record")
        );
    }
    if imported.outcome.samples == 0 {
        say!("backtrail: warning: {}: has no samples", shown(&arguments.input));
    }
    if let Some(incomplete) = imported.outcome.incomplete {
        return Err(Failure::new(incomplete));
    }
    if !arguments.no_symbols && imported.outcome.samples > 0 {
        let options = Options {
            sysroot: arguments.sysroot.clone(),
            ..Options::default()
        };
        if let Err(error) = backtrail_profile::pack(&arguments.output, options) {
            say!(
                "backtrail: warning: {}: no symbols were added: {error}",
                shown(&arguments.output)
            );
        }
    }
    if !arguments.quiet {
        say!("backtrail: {}", summary(&imported, &arguments.output));
    }
    Ok(Status::Done)
}

fn say_what_is_left_out(imported: &Imported, input: &Path) {
    let input = shown(input);
    for event in &imported.other_events {
        say!(
            "backtrail: {input}: {} of the event {} left out; --event names events to import",
            Counted(event.samples, "sample"),
            one_line(&event.name)
        );
    }
    if imported.hardware_traces > 0 {
        say!(
            "backtrail: {input}: {} pieces of hardware traces are left out",
            imported.hardware_traces
        );
    }
}

fn say_what_is_missing(imported: &Imported, arguments: &Import) {
    let is_missing = file_problems::report(&imported.outcome);
    match &arguments.sysroot {
        Some(sysroot) if is_missing => say!(
            "help: copy these files to their paths below {}, or unpack there what `perf archive` has packed",
            shown(sysroot)
        ),
        None if is_missing => {
            say!("help: functions of such files have no names; --sysroot DIR finds files of another machine below DIR")
        }
        _ => {}
    }
    if let [first, others @ ..] = &imported.unchecked[..] {
        let also = match others.len() {
            0 => String::new(),
            count => format!(" and {}", Counted(count, "more file")),
        };
        say!(
            "backtrail: warning: {}: has no build ID of {}{also}; if they are not those that ran, stacks and names \
             are wrong",
            shown(&arguments.input),
            one_line(first)
        );
    }
}

fn summary(imported: &Imported, output: &Path) -> String {
    let outcome = &imported.outcome;
    let complete = outcome.stops[Stop::EndOfStack as usize] as f64 / outcome.samples.max(1) as f64;
    format!(
        "{}, {} lost, {:.1} % of the stacks complete, {} KiB in {}",
        Counted(outcome.samples, "sample"),
        outcome.lost,
        100.0 * complete,
        outcome.trace_bytes.div_ceil(1024),
        shown(output)
    )
}
