//! Reads recordings for the verbs that show or export them.

use std::io::ErrorKind;
use std::path::Path;

use backtrail_export::Samples;
use backtrail_profile::Options;
use backtrail_recording::{Measured, ReadError, Reader};
use backtrail_trace::TraceErrorKind;

use crate::error::{Failure, shown};
use crate::filter::FilterArguments;

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
pub(crate) fn samples(trace: &Path, filter: &FilterArguments) -> Result<Samples, Failure> {
    let mut reader = open(trace)?;
    let options = Options {
        filter: filter.filter(),
        // Other formats have no place for times off the CPU yet.
        measured: Some(Measured::Cpu),
        ..Options::default()
    };
    let mut samples = Samples::read(&mut reader, options).map_err(|error| failed(trace, error))?;
    say_problems(trace, &reader);
    if reader.origin().measured != Measured::Cpu {
        crate::error::say!(
            "backtrail: {}: times off the CPU are left out; `backtrail report` shows them",
            shown(trace)
        );
    }
    samples.notes.extend(filter.description());
    Ok(samples)
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
