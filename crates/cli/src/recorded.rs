//! Reads recordings for the verbs that show or export them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use backtrail_export::Samples;
use backtrail_profile::{Options, Profile};
use backtrail_recording::{Measured, ReadError, Reader};
use backtrail_trace::{TraceError, TraceErrorKind};
use clap::Args;

use crate::error::{Failure, one_line, shown};
use crate::filter::FilterArguments;

/// Limit of the entries of a folder that are looked at.
const MOST_ENTRIES: usize = 100_000;

/// What is counted of a recording with times off the CPU.
#[derive(Args)]
pub(crate) struct Counted {
    /// Count microseconds off the CPU, of a recording that has them [default: what was recorded].
    #[arg(long, conflicts_with = "wall")]
    off_cpu: bool,
    /// Count microseconds on and off the CPU together.
    #[arg(long)]
    wall: bool,
    /// Of a recording of several events, count this one [default: the first].
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,
    /// Of a recording with --min-duration, count the microseconds that calls took, not calls. The
    /// time of a recorded call within another one counts for its own stack only.
    #[arg(long)]
    durations: bool,
    /// Continue the stack of each wait with that of the thread that ended it.
    #[arg(long)]
    wakers: bool,
}

impl Counted {
    /// `None`: what was recorded.
    fn measured(&self) -> Option<Measured> {
        match (self.off_cpu, self.wall) {
            (true, _) => Some(Measured::OffCpu),
            (_, true) => Some(Measured::Wall),
            _ => None,
        }
    }
}

impl Counted {
    /// The options that say what is counted, for this recording.
    pub(crate) fn options(&self, trace: &Path, reader: &Reader) -> Result<Options, Failure> {
        let origin = reader.origin();
        if let Some(name) = &self.event {
            let single = origin.event.iter().map(|(name, _)| name);
            let all: Vec<&String> = origin.events.iter().map(|(name, _)| name).chain(single).collect();
            if !all.contains(&name) {
                let names: Vec<&str> = all.iter().map(|name| name.as_str()).collect();
                let has = match names.is_empty() {
                    true => "it has samples of a clock only, or calls".to_owned(),
                    false => format!("its events are {}", names.join(", ")),
                };
                return Err(Failure::of(trace, format!("no samples of the event {name}")).help(one_line(&has)));
            }
        }
        if self.durations && origin.min_duration.is_none() {
            return Err(Failure::of(trace, "has no durations of calls")
                .help("record them with --entry FUNCTION --min-duration TIME"));
        }
        if (self.off_cpu || self.wall || self.wakers) && origin.measured == Measured::Cpu {
            return Err(Failure::of(trace, "has no times off the CPU").help("record them with --off-cpu or --wall"));
        }
        Ok(Options {
            measured: self.measured(),
            wakers: self.wakers,
            event: self.event.clone(),
            durations: self.durations,
            ..Options::default()
        })
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
        ..counted.options(trace, &reader)?
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
        // The user typed the directory, not the file within it.
        ReadError::Trace(TraceError {
            kind: TraceErrorKind::Io(error),
            ..
        }) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => match trace.try_exists() {
            Ok(false) => Failure::of(trace, "no such file or directory"),
            _ => match recordings_in(trace) {
                None => Failure::of(trace, "not a recording").help("name the directory that `backtrail record` wrote"),
                Some((count, last)) => {
                    let of_several = Failure::of(trace, format!("a folder of recordings: it has {count}"));
                    of_several.help(format!("name one of them, such as the last one, {}", shown(&last)))
                }
            },
        },
        ReadError::Trace(error) => Failure::new(error),
        error => Failure::of(trace, error),
    }
}

/// How many recordings a folder has directly in it, and the last one by its name; `None` if it has
/// none. `record --rotate` and `--snapshot-on` write such folders.
fn recordings_in(folder: &Path) -> Option<(usize, PathBuf)> {
    let entries = std::fs::read_dir(folder).ok()?.take(MOST_ENTRIES).flatten();
    let recordings = entries.map(|entry| entry.path());
    let recordings: Vec<PathBuf> = recordings.filter(|path| path.join("metadata").is_file()).collect();
    let last = recordings.iter().max()?.clone();
    Some((recordings.len(), last))
}
