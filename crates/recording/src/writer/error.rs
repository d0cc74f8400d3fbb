//! Why a recording could not be written.

use std::fmt;
use std::io;

use backtrail_trace::{CreateError, CreateErrorKind, EncodeError};

/// A failed write. The trace is readable up to there.
#[derive(Debug)]
pub struct WriteError(Cause);

#[derive(Debug)]
enum Cause {
    Io(io::Error),
    Trace(CreateError),
    Encode(EncodeError),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Io(error) => error.fmt(f),
            Cause::Trace(error) => error.fmt(f),
            Cause::Encode(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        WriteError(Cause::Io(error))
    }
}

impl From<CreateError> for WriteError {
    fn from(error: CreateError) -> Self {
        WriteError(Cause::Trace(error))
    }
}

impl From<EncodeError> for WriteError {
    fn from(error: EncodeError) -> Self {
        WriteError(Cause::Encode(error))
    }
}

/// Whether the trace could not be created because its path is occupied.
pub fn is_occupied(error: &CreateError) -> bool {
    match &error.kind {
        CreateErrorKind::NotEmpty => true,
        CreateErrorKind::Io(error) => error.kind() == io::ErrorKind::AlreadyExists,
        _ => false,
    }
}
