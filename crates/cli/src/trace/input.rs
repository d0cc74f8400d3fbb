//! Finds the traces to read, and reports those that cannot be read completely.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use backtrail_trace::{
    DecodeErrorKind, Moment, Options, Statistics, StreamReader, Trace, TraceError, TraceErrorKind, find_traces,
};
use backtrail_trace_rfc::{Key, open, source_line};
use clap::{Args, ValueHint};

use crate::counted::Counted;
use crate::error::{Failure, shown};

/// The traces to read.
#[derive(Args)]
pub(super) struct Input {
    /// Trace directories, or directories with traces somewhere below.
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::DirPath)]
    pub(super) traces: Vec<PathBuf>,
    /// Read the 32-byte key for encrypted packets from FILE.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

/// The times between which to read.
#[derive(Args)]
pub(super) struct Span {
    /// Leave out events before TIME: [-]SECONDS from the clock's origin, 'YYYY-MM-DD hh:mm:ss', or
    /// hh:mm:ss on the day of the first event; each may have a fraction of a second.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    begin: Option<Moment>,
    /// Leave out events after TIME.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    end: Option<Moment>,
    /// Same as --begin BEGIN --end END.
    #[arg(long, value_name = "BEGIN,END", value_parser = moments, allow_hyphen_values = true, conflicts_with_all = ["begin", "end"])]
    timerange: Option<(Moment, Moment)>,
    /// Read and print dates and times of day in UTC [default: local time].
    #[arg(long)]
    pub(super) clock_gmt: bool,
}

fn moment(text: &str) -> Result<Moment, String> {
    Moment::parse(text).ok_or_else(|| "not a time, such as 1700000000.5, 22:13:20 or '2023-11-14 22:13:20'".to_owned())
}

fn moments(text: &str) -> Result<(Moment, Moment), String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let (begin, end) = inner.split_once(',').ok_or("not two times with a comma between them")?;
    Ok((moment(begin.trim())?, moment(end.trim())?))
}

impl Span {
    /// Whether there is a begin or an end.
    pub(super) fn is_given(&self) -> bool {
        self.begin.is_some() || self.end.is_some() || self.timerange.is_some()
    }

    /// How to read the events between these times.
    pub(super) fn options(&self, traces: &[Trace]) -> Result<Options, Failure> {
        let (begin, end) = match self.timerange {
            Some((begin, end)) => (Some(begin), Some(end)),
            None => (self.begin, self.end),
        };
        let first = || traces.iter().filter_map(first_time).min();
        let resolve = |moment: Option<Moment>| match moment {
            None => Ok(None),
            Some(moment) => match moment.nanoseconds(first, self.clock_gmt) {
                Some(time) => Ok(Some(time)),
                None => Err(Failure::new(
                    "no event has a time that this time of day could be on the day of",
                )),
            },
        };
        let mut options = Options::default();
        (options.begin, options.end) = (resolve(begin)?, resolve(end)?);
        match (options.begin, options.end) {
            (Some(begin), Some(end)) if end < begin => Err(Failure::new("the end is before the begin")),
            _ => Ok(options),
        }
    }
}

/// The time of the trace's first event.
fn first_time(trace: &Trace) -> Option<i64> {
    let mut events = trace.events(Options::default()).ok()?;
    events.next().ok()??.time()
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
        crate::error::say!(
            "backtrail: {path}: the tracer discarded {}",
            Counted(discarded, "event")
        );
    }
    if lost_packets > 0 {
        crate::error::say!("backtrail: {path}: {} missing", Counted(lost_packets, "packet"));
    }
    for problem in stream.problems() {
        crate::error::say!(
            "backtrail: {path}: packet at offset {:#x}: {}",
            problem.offset,
            problem.error
        );
    }
    if damaged > 0 {
        let packets = Counted(damaged, "damaged packet");
        crate::error::say!("backtrail: {path}: {packets}; what could be read is shown");
    }
}
