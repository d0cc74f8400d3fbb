//! `backtrail store add`: adds recordings and crashes.

use std::path::{Path, PathBuf};

use backtrail_profile::Options;
use backtrail_recording::Reader;
use backtrail_stacks::crash::{Entry, Folder};
use backtrail_store::{
    Added, AddedCrashes, By, CrashDescription, Description, Resolution, Store, StoreError, is_service,
};
use clap::{Args, ValueEnum, ValueHint};

use crate::counted::Counted;
use crate::error::{Failure, Status, say, shown};
use crate::recorded;

/// Add recordings and crashes to a store.
///
/// Names come from the recordings, as `backtrail record` added them, and from the reports that
/// `backtrail collect` wrote. What the store has already changes nothing.
#[derive(Args)]
pub(crate) struct Add {
    /// Directories of recordings, of crashes, or single crash reports (.jsonl).
    #[arg(value_name = "TRACE|CRASH", required = true, value_hint = ValueHint::DirPath)]
    traces: Vec<PathBuf>,
    #[cfg_attr(
        not(feature = "s3"),
        doc = "Write to the store in this directory; a new or empty one becomes a store."
    )]
    #[cfg_attr(
        feature = "s3",
        doc = "Write to the store in this directory, or at s3://BUCKET/PREFIX; a new or empty one becomes a store."
    )]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    to: PathBuf,
    /// Set the service [default: the name of the recorded or crashed program].
    #[arg(long, value_name = "SERVICE", value_parser = service)]
    service: Option<String>,
    /// Set the host [default: as recorded].
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Add a label; 'version' is the one that `store query changed` compares. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Store each sample, or count equal stacks by the minute.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Resolved::Exact)]
    resolution: Resolved,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Resolved {
    /// Time, thread and CPU of each sample
    Exact,
    /// One row for equal stacks of a minute
    Minute,
}

fn service(text: &str) -> Result<String, String> {
    match is_service(text) {
        true => Ok(text.to_owned()),
        false => Err("a service's name has letters, digits, '-', '_' and '.' only".to_owned()),
    }
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

/// A label; with a column's name, `store query --where` would never find it.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = pair(text)?;
    match By::named(&key) {
        None | Some(By::Version) => Ok((key, value)),
        Some(_) => Err(format!("'{key}' is a column of the samples, not a label")),
    }
}

/// Something to add, opened.
enum Input {
    Recording(Box<Reader>),
    Crashes(Vec<Entry>),
}

impl Input {
    fn open(path: &Path) -> Result<Input, Failure> {
        if !path.exists() {
            return Err(Failure::of(path, "no such file or directory"));
        }
        match crashes(path)? {
            Some(entries) => Ok(Input::Crashes(entries)),
            None => recorded::open(path).map(|reader| Input::Recording(Box::new(reader))),
        }
    }

    /// Adds it; returns a summary.
    fn add(self, path: &Path, store: &Store, arguments: &Add) -> Result<String, Failure> {
        match self {
            Input::Recording(mut reader) => add(store, path, &mut reader, arguments).map(|added| summary(path, &added)),
            Input::Crashes(entries) => add_crashes(store, path, &entries, arguments),
        }
    }
}

pub(crate) fn run(arguments: &Add) -> Result<Status, Failure> {
    // Created once there is something to add: a mistyped name must not leave an empty store.
    let mut store = None;
    let mut status = Status::Done;
    for path in &arguments.traces {
        let done = match Input::open(path) {
            Ok(input) => {
                let store = match &store {
                    Some(store) => store,
                    None => store.insert(open_store(&arguments.to)?),
                };
                input.add(path, store, arguments)
            }
            Err(failure) => Err(failure),
        };
        // The others are added in any case.
        match done {
            Ok(summary) if !arguments.quiet => say!("backtrail: {summary}"),
            Ok(_) => {}
            Err(failure) if arguments.traces.len() == 1 => return Err(failure),
            Err(failure) => {
                failure.report();
                status = Status::Bad;
            }
        }
    }
    Ok(status)
}

fn open_store(folder: &Path) -> Result<Store, Failure> {
    Store::open_or_create(folder).map_err(|error| super::failed(folder, &error))
}

fn add(store: &Store, trace: &Path, reader: &mut Reader, arguments: &Add) -> Result<Added, Failure> {
    let origin = reader.origin();
    let unknown = |text: &str| {
        if text.is_empty() {
            "unknown".to_owned()
        } else {
            text.to_owned()
        }
    };
    let description = Description {
        service: arguments.service.clone().unwrap_or_else(|| program(&origin.command)),
        host: arguments.host.clone().unwrap_or_else(|| unknown(&origin.hostname)),
        labels: arguments.label.clone(),
        resolution: match arguments.resolution {
            Resolved::Exact => Resolution::Exact,
            Resolved::Minute => Resolution::Minute,
        },
    };
    let added = store
        .add(reader, &description, Options::default())
        .map_err(|error| match error {
            StoreError::Recording(error) => recorded::failed(trace, error),
            StoreError::Times(what) => Failure::of(trace, what),
            error => super::failed(store.folder(), &error),
        })?;
    recorded::say_problems(trace, reader);
    for note in &added.notes {
        say!("backtrail: {}: {note}", shown(trace));
    }
    Ok(added)
}

/// The crashes of a folder that `collect` has written, or of a report; `None` for anything else.
fn crashes(path: &Path) -> Result<Option<Vec<Entry>>, Failure> {
    if path.is_file() && path.extension().is_some_and(|extension| extension == "jsonl") {
        return match Entry::open(path) {
            Ok(entry) => Ok(Some(vec![entry])),
            Err(error) => Err(Failure::of(path, error)),
        };
    }
    if path.join("metadata").exists() || !path.is_dir() {
        return Ok(None);
    }
    let (entries, unreadable) = Folder::at(path).list().map_err(|error| Failure::of(path, error))?;
    if unreadable > 0 {
        say!(
            "backtrail: {}: crashes of {unreadable} other users cannot be read",
            shown(path)
        );
    }
    Ok(Some(entries).filter(|entries| !entries.is_empty()))
}

/// Reports that are read before they are written.
const AT_ONCE: usize = 500;

fn add_crashes(store: &Store, path: &Path, entries: &[Entry], arguments: &Add) -> Result<String, Failure> {
    let description = CrashDescription {
        service: arguments.service.clone(),
        host: arguments.host.clone(),
        labels: arguments.label.clone(),
    };
    let (mut sum, mut unreadable) = (AddedCrashes::default(), 0);
    for some in entries.chunks(AT_ONCE) {
        let mut reports = Vec::new();
        for entry in some {
            match entry.details() {
                Ok(report) => reports.push(report),
                Err(error) => {
                    Failure::of(&entry.path, error).report();
                    unreadable += 1;
                }
            }
        }
        let added = store
            .add_crashes(&reports, &description)
            .map_err(|error| super::failed(store.folder(), &error))?;
        sum.crashes += added.crashes;
        sum.new += added.new;
        sum.files += added.files;
        sum.bytes += added.bytes;
        sum.refused += added.refused;
    }
    if unreadable + sum.refused > 0 {
        let what = format!(
            "{} reports are damaged; all others were added",
            unreadable + sum.refused
        );
        return Err(Failure::of(path, what));
    }
    Ok(format!(
        "{}: {}, {} of them new, {} KiB in {}",
        shown(path),
        Counted(sum.crashes, "crash"),
        sum.new,
        sum.bytes.div_ceil(1024),
        Counted(sum.files, "file")
    ))
}

/// The recorded program's name as that of a service.
fn program(command: &str) -> String {
    let word = command.split_whitespace().next().unwrap_or_default();
    let name = word.rsplit('/').next().unwrap_or_default();
    let fine: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '_'
            }
        })
        .take(100)
        .collect();
    match is_service(&fine) {
        true => fine,
        false => "unknown".to_owned(),
    }
}

fn summary(trace: &Path, added: &Added) -> String {
    let trace = shown(trace);
    if added.samples == 0 {
        return format!("{trace}: no samples");
    }
    if added.was_there {
        return format!("{trace}: {}, in the store already", Counted(added.samples, "sample"));
    }
    format!(
        "{trace}: {}, {} KiB in {}",
        Counted(added.samples, "sample"),
        added.bytes.div_ceil(1024),
        Counted(added.files, "file")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_no_column() {
        for (text, is_fine) in [
            ("version=1", true),
            ("zone=", true),
            ("all=1", true),
            ("host=a", false),
            ("=a", false),
        ] {
            assert_eq!(label(text).is_ok(), is_fine, "{text}");
        }
    }

    #[test]
    fn a_service_is_called_as_its_program() {
        for (command, name) in [
            ("/usr/bin/my server --port 80", "my"),
            ("./a+b c", "a_b"),
            ("", "unknown"),
            ("/", "unknown"),
            (".hidden", "unknown"),
        ] {
            assert_eq!(program(command), name, "{command}");
        }
    }
}
