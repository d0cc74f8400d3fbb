//! Reads recordings for the verbs that show or export them.

use std::io::ErrorKind;
use std::path::Path;

use backtrail_export::{Collector, Samples};
use backtrail_profile::{Symbolizer, SystemFiles};
use backtrail_recording::{Item, ReadError, Reader};
use backtrail_trace::TraceErrorKind;

use crate::error::{Failure, shown};

/// Opens the recording.
pub(crate) fn open(trace: &Path) -> Result<Reader, Failure> {
    Reader::open(trace).map_err(|error| failed(trace, error))
}

/// Passes every item to `take`, then prints what could not be read.
pub(crate) fn each(trace: &Path, reader: &mut Reader, mut take: impl FnMut(&Item<'_>)) -> Result<(), Failure> {
    while let Some(item) = reader.next().map_err(|error| failed(trace, error))? {
        take(&item);
    }
    say_problems(trace, reader);
    Ok(())
}

/// Prints what could not be read.
pub(crate) fn say_problems(trace: &Path, reader: &Reader) {
    for problem in reader.problems() {
        crate::error::say!("backtrail: {}: {problem}", shown(trace));
    }
}

/// All samples with their names.
pub(crate) fn samples(trace: &Path) -> Result<Samples, Failure> {
    let mut reader = open(trace)?;
    let symbolizer = Symbolizer::of_recording(&mut reader, SystemFiles::default());
    let mut collector = Collector::new(reader.origin().clone(), reader.clock_offset(), symbolizer);
    each(trace, &mut reader, |item| collector.add(item))?;
    Ok(collector.finish(reader.stream_bytes()))
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
