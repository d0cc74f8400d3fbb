//! Streams of a converted trace.

use super::error::ConvertError;
use backtrail_trace::{CreateError, CreateErrorKind};
use std::path::Path;

/// A stream, and what its file is in the converted trace.
pub(super) struct Target {
    /// Index of the stream.
    pub(super) stream: usize,
    /// Id of its class in the converted description.
    pub(super) class: u64,
    /// Number of the stream among those of its class, or of its CPU.
    pub(super) instance: u64,
    /// The CPU that its packets name.
    pub(super) cpu: Option<u32>,
}

pub(super) fn name_of(stream: &Path) -> &str {
    stream.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

pub(super) fn failed(path: &Path, error: ConvertError) -> CreateError {
    CreateError::new(path, CreateErrorKind::Inexpressible(Box::new(error)))
}
