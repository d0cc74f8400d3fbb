//! Finds the traces to read, and reports those that cannot be read completely.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use backtrail_trace::{DecodeErrorKind, Statistics, StreamReader, Trace, TraceError, TraceErrorKind, find_traces};
use backtrail_trace_rfc::{Key, open, source_line};
use clap::{Args, ValueHint};

use crate::error::{Failure, shown};

/// The traces to read.
#[derive(Args)]
pub(super) struct Input {
    /// Trace directories, or directories with traces somewhere below.
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::DirPath)]
    traces: Vec<PathBuf>,
    /// Read the 32-byte key for encrypted packets from FILE.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

impl Input {
    /// The directories of all traces.
    pub(super) fn directories(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut directories = Vec::new();
        for path in &self.traces {
            directories.extend(traces_below(path)?);
        }
        Ok(directories)
    }

    pub(super) fn open(&self) -> Result<Vec<Trace>, Failure> {
        let (directories, key) = (self.directories()?, self.key()?);
        directories
            .iter()
            .map(|directory| open(directory, key).map_err(|error| failure(&error)))
            .collect()
    }

    /// The key for encrypted packets.
    pub(super) fn key(&self) -> Result<Option<Key>, Failure> {
        self.key_file.as_deref().map(read_key).transpose()
    }
}

/// The directories of traces at `path` and below.
pub(super) fn traces_below(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    find_traces(path).map_err(|error| {
        let file = matches!(&error.kind, TraceErrorKind::Io(error) if error.kind() == ErrorKind::NotADirectory);
        let failure = Failure::new(error);
        match file {
            true => failure.help("a trace is a directory with a file 'metadata'; name the directory, or one above it"),
            false => failure,
        }
    })
}

/// A key file is tiny; anything longer is not a key file and need not be read.
const MAX_KEY_FILE: u64 = 4096;

pub(super) fn read_key(path: &Path) -> Result<Key, Failure> {
    let length = fs::metadata(path).map_err(|error| Failure::of(path, error))?.len();
    if length > MAX_KEY_FILE {
        return Err(Failure::of(path, format_args!("a key has 32 bytes, not {length}")));
    }
    let bytes = fs::read(path).map_err(|error| Failure::of(path, error))?;
    Key::try_from(bytes.as_slice()).map_err(|error| Failure::of(path, error))
}

/// A trace's error, with a hint if there is one.
pub(super) fn failure(error: &TraceError) -> Failure {
    let failure = Failure::new(error).show(excerpt(error));
    match &error.kind {
        TraceErrorKind::Packet { error, .. } if error.kind == DecodeErrorKind::NoKey => {
            failure.help("--key-file FILE names the file with the key")
        }
        TraceErrorKind::Packet { error: bad, .. } if matches!(bad.kind, DecodeErrorKind::Magic(_)) => {
            let packed = |end: &OsStr| ["bz2", "gz", "xz", "zst"].iter().any(|known| end == *known);
            match error.path.extension().is_some_and(packed) {
                true => failure.help("the file was compressed as a whole: unpack it first"),
                false => failure,
            }
        }
        _ => failure,
    }
}

/// The line of metadata that contains the error, with a mark below the place. A long line is cut to
/// the part around it.
fn excerpt(error: &TraceError) -> Vec<String> {
    /// Characters on each side of the place.
    const MOST: usize = 70;
    let Some(line) = source_line(error) else {
        return Vec::new();
    };
    let place = line.column.saturating_sub(1) as usize;
    let before = place.saturating_sub(MOST);
    // Tabs would shift the mark.
    let shown = line.text.chars().map(|c| if c == '\t' { ' ' } else { c });
    let shown: String = shown.skip(before).take(2 * MOST).collect();
    let (number, mark) = (line.number.to_string(), " ".repeat(place - before));
    let margin = " ".repeat(number.len());
    vec![
        format!("{margin} |"),
        format!("{number} | {}", shown.trim_end()),
        format!("{margin} | {mark}^"),
    ]
}

/// Reports on standard error what a stream has lost, as babeltrace2 does.
pub(super) fn tell_losses(stream: &StreamReader) {
    let Statistics {
        discarded,
        lost_packets,
        damaged,
        ..
    } = stream.statistics();
    let path = shown(stream.path());
    if discarded > 0 {
        crate::error::say!("backtrail: {path}: the tracer discarded {discarded} events");
    }
    if lost_packets > 0 {
        crate::error::say!("backtrail: {path}: {lost_packets} packets are missing");
    }
    for problem in stream.problems() {
        crate::error::say!(
            "backtrail: {path}: packet at offset {:#x}: {}",
            problem.offset,
            problem.error
        );
    }
    if damaged > 0 {
        crate::error::say!("backtrail: {path}: {damaged} packets are damaged, what could be read is shown");
    }
}
