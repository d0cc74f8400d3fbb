//! Writes a trace in the other dialect.

use super::trace::TraceWriter;
use crate::dialect::Dialect;
use crate::error::{CreateError, CreateErrorKind};
use crate::read::Trace;
use std::fs;
use std::path::Path;

/// Creates the directory (or uses an empty one) and writes the trace into it, in CTF 1.8 or 2. Both
/// have the same streams, which are copied, damaged or not.
///
/// # Errors
///
/// The trace or `dialect` is neither 1.8 nor 2, the dialect cannot express the description, or the
/// trace cannot be written.
pub fn convert(trace: &Trace, directory: &Path, dialect: Dialect) -> Result<(), CreateError> {
    if trace.dialect() == Dialect::Rfc1_1 {
        let kind = CreateErrorKind::OtherDialect(Dialect::Rfc1_1);
        return Err(CreateError::new(trace.directory(), kind));
    }
    let description = trace.description().clone().adapted_to(dialect);
    TraceWriter::create(directory, description, dialect)?;
    for stream in trace.streams() {
        let target = directory.join(stream.file_name().unwrap_or_default());
        fs::copy(stream, target).map_err(|error| CreateError::io(stream, error))?;
    }
    Ok(())
}
