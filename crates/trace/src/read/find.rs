//! Finds traces below a directory.

use crate::constants::{MAX_DIRECTORY_DEPTH, METADATA_FILE};
use crate::error::{TraceError, TraceErrorKind};
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// The directories with a metadata file in and below `path`, by name.
///
/// Links to directories below are not followed, so that none leads in a circle.
///
/// # Errors
///
/// A directory cannot be read, or there is no trace.
pub fn find_traces(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let mut found = Vec::new();
    look(path, 0, &mut found)?;
    if found.is_empty() {
        let error = Error::new(
            ErrorKind::NotFound,
            "no trace here: there is no metadata file in or below the directory",
        );
        return Err(TraceError::new(path, TraceErrorKind::Io(error)));
    }
    Ok(found)
}

#[expect(clippy::arithmetic_side_effects, reason = "`look` compares it with its limit")]
fn look(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), TraceError> {
    let io = |error| TraceError::new(directory, TraceErrorKind::Io(error));
    let mut below = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.file_name() == METADATA_FILE && entry.path().is_file() {
            found.push(directory.to_owned());
        } else if entry.file_type().map_err(io)?.is_dir() {
            below.push(entry.path());
        }
    }
    if depth < MAX_DIRECTORY_DEPTH {
        below.sort();
        below
            .iter()
            .try_for_each(|directory| look(directory, depth + 1, found))?;
    }
    Ok(())
}
