//! Reads recordings for the verbs that show or export them.

use std::io::ErrorKind;
use std::path::Path;

use backtrail_export::Samples;
use backtrail_profile::{Options, Profile};
use backtrail_recording::{Measured, ReadError, Reader};
use backtrail_trace::TraceErrorKind;
use clap::Args;

use crate::error::{Failure, one_line, shown};
use crate::filter::FilterArguments;

/// What is counted of a recording with times off the CPU.
#[derive(Args)]
pub(crate) struct Counted {
    /// Count microseconds off the CPU, of a recording that has them [default: what was recorded].
    #[arg(long, conflicts_with = "wall")]
    off_cpu: bool,
    /// Count microseconds on and off the CPU together.
    #[arg(long)]
    wall: bool,
    /// Continue the stack of each wait with that of the thread that ended it.
    #[arg(long)]
    pub(crate) wakers: bool,
}

impl Counted {
    /// `None`: what was recorded.
    pub(crate) fn measured(&self) -> Option<Measured> {
        match (self.off_cpu, self.wall) {
            (true, _) => Some(Measured::OffCpu),
            (_, true) => Some(Measured::Wall),
            _ => None,
        }
    }
}

/// Opens the recording.
pub(crate) fn open(trace: &Path) -> Result<Reader, Failure> {
    Reader::open(trace).map_err(|error| failed(trace, error))
}

/// Prints what could not be read.
pub(crate) fn say_problems(trace: &Path, reader: &Reader) {
    for problem in reader.problems() {
        crate::error::say!("backtrail: {}: {problem}", shown(trace));
    }
}

/// The samples that count, with their names.
pub(crate) fn samples(trace: &Path, filter: &FilterArguments, counted: &Counted) -> Result<Samples, Failure> {
    let mut reader = open(trace)?;
    let options = Options {
        filter: filter.filter(),
        measured: counted.measured(),
        wakers: counted.wakers,
        ..Options::default()
    };
    let mut samples = Samples::read(&mut reader, options).map_err(|error| failed(trace, error))?;
    say_problems(trace, &reader);
    if samples.rows.is_empty() {
        say_what_there_is(trace, filter)?;
    }
    samples.notes.extend(filter.description());
    Ok(samples)
}

/// No sample counts: says what the recording has instead, if that is for the filter.
pub(crate) fn say_what_there_is(trace: &Path, filter: &FilterArguments) -> Result<(), Failure> {
    let Some(description) = filter.description() else {
        return Ok(());
    };
    let mut reader = open(trace)?;
    let profile = Profile::of_recording(&mut reader, Options::default()).map_err(|error| failed(trace, error))?;
    let report = profile.finish(0);
    crate::error::say!(
        "backtrail: warning: {}: no samples: {}",
        shown(trace),
        one_line(&description)
    );
    if let Some(help) = filter.what_there_is(&report) {
        crate::error::say!("help: {}", one_line(&help));
    }
    Ok(())
}

/// Why a recording cannot be read.
pub(crate) fn failed(trace: &Path, error: ReadError) -> Failure {
    match error {
        ReadError::Trace(error) => {
            let missing = match &error.kind {
                TraceErrorKind::Io(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
                _ => false,
            };
            match missing {
                // The user typed the directory, not the file within it.
                true => Failure::of(trace, "not a recording").help("name the directory that `backtrail record` wrote"),
                false => Failure::new(error),
            }
        }
        error => Failure::of(trace, error),
    }
}
