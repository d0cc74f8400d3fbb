//! `backtrail record` and `backtrail report`, driven from outside as any script would drive them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{self, Finished};
use crate::workload::plain_surroundings;
use crate::{Missing, scratch};

/// The command under test, with its own cache of tables.
#[derive(Debug)]
pub struct Backtrail {
    binary: PathBuf,
    cache: TempDir,
}

/// The contents of `report --json` for a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Samples in the trace.
    pub samples: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// The share of samples whose stack reaches the outermost frame, 0 to 1, as the report has it.
    pub complete: f64,
    /// The number of stacks that ended for each reason.
    pub stops: BTreeMap<String, u64>,
    /// Frames of all samples.
    pub frames: u64,
    /// Size of the recording, in bytes.
    pub trace_bytes: u64,
    /// Name, samples with it as leaf, samples with it anywhere.
    pub functions: Vec<Function>,
}

/// A function of a [`Summary`].
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Samples in which it was the innermost frame.
    pub own: u64,
    /// Samples in which it was any frame.
    pub total: u64,
}

impl Summary {
    /// Reads the JSON.
    ///
    /// # Errors
    /// The member that is missing or has another type.
    pub fn from_json(text: &str) -> Result<Summary, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
        let number = |of: &Value, name: &str| of[name].as_u64().ok_or_else(|| format!("no number {name:?} in {of}"));
        let stops = json["stops"].as_object().ok_or("no object \"stops\"")?;
        let functions = json["functions"].as_array().ok_or("no list \"functions\"")?;
        Ok(Summary {
            samples: number(&json, "samples")?,
            lost: number(&json, "lost")?,
            complete: json["complete"].as_f64().ok_or("no number \"complete\"")?,
            stops: stops
                .iter()
                .map(|(name, _)| Ok((name.clone(), number(&json["stops"], name)?)))
                .collect::<Result<_, String>>()?,
            frames: number(&json, "frames")?,
            trace_bytes: number(&json, "trace_bytes")?,
            functions: functions
                .iter()
                .map(|function| {
                    let name = function["name"]
                        .as_str()
                        .ok_or_else(|| format!("no name in {function}"))?
                        .to_owned();
                    Ok(Function {
                        name,
                        own: number(function, "self")?,
                        total: number(function, "total")?,
                    })
                })
                .collect::<Result<_, String>>()?,
        })
    }

    /// The share of complete stacks, 0 to 1, from the counts; 0 where there are no samples.
    pub fn completeness(&self) -> f64 {
        let whole = self.stops.get("end_of_stack").copied().unwrap_or(0);
        if self.samples == 0 {
            0.0
        } else {
            whole as f64 / self.samples as f64
        }
    }

    /// The incomplete stacks by reason, as text.
    pub fn incomplete(&self) -> String {
        let reasons: Vec<_> = self
            .stops
            .iter()
            .filter(|(name, count)| *name != "end_of_stack" && **count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if reasons.is_empty() {
            "none".to_owned()
        } else {
            reasons.join(", ")
        }
    }

    /// A function by its name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl Backtrail {
    /// Drives the given binary.
    pub fn new(binary: impl Into<PathBuf>) -> Backtrail {
        Backtrail {
            binary: binary.into(),
            cache: scratch(),
        }
    }

    /// `backtrail ARGUMENTS…`, not yet started.
    pub fn command<I: IntoIterator<Item: AsRef<OsStr>>>(&self, arguments: I) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments);
        self.surroundings(&mut command);
        command
    }

    /// Gives a command the surroundings in which `backtrail` is tested: its own cache, no colours,
    /// no configuration of the user's.
    pub fn surroundings(&self, command: &mut Command) {
        command.env("XDG_CACHE_HOME", self.cache.path()).env("NO_COLOR", "1");
        plain_surroundings(command);
    }

    /// `backtrail record -q -o OUT OPTIONS… -- COMMAND…`, not yet started. Quiet, so that what it
    /// says is trouble.
    pub fn record<C: AsRef<OsStr>>(&self, out: &Path, options: &[&str], recorded: &[C]) -> Command {
        let mut command = self.command(["record", "-q", "-o"]);
        command.arg(out).args(options).arg("--").args(recorded);
        command
    }

    /// Runs `backtrail report TRACE --json -`.
    ///
    /// # Panics
    /// Where the report fails or is not what it should be: every recording must be readable.
    pub fn summary(&self, trace: &Path) -> Summary {
        let report = self.report(trace, "--json", &[]);
        Summary::from_json(&report.stdout).unwrap_or_else(|error| panic!("{error}: {}", report.describe()))
    }

    /// The folded stacks of a recording, outermost frame first, with the number of samples of each.
    ///
    /// # Panics
    /// As [`Backtrail::summary`].
    pub fn folded(&self, trace: &Path) -> Vec<(Vec<String>, u64)> {
        self.folded_with(trace, &[])
    }

    /// The folded stacks of those samples that the options choose.
    ///
    /// # Panics
    /// As [`Backtrail::summary`].
    pub fn folded_with(&self, trace: &Path, options: &[&str]) -> Vec<(Vec<String>, u64)> {
        let line = |line: &str| {
            let (stack, count) = line.rsplit_once(' ')?;
            Some((stack.split(';').map(str::to_owned).collect(), count.parse().ok()?))
        };
        let report = self.report(trace, "--folded", options);
        report
            .stdout
            .lines()
            .map(|text| line(text).unwrap_or_else(|| panic!("no folded stack: {text}")))
            .collect()
    }

    fn report(&self, trace: &Path, form: &str, options: &[&str]) -> Finished {
        let mut report = self.command(["report"]);
        report.args(options);
        let finished =
            command::run(report.arg(trace).args([form, "-"]), Duration::from_secs(300)).expect("the binary is there");
        assert!(finished.status.success(), "{report:?}: {}", finished.describe());
        finished
    }
}

/// The bytes of all files in a directory and below.
pub fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes_in(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What babeltrace2 makes of a trace.
#[derive(Debug)]
pub struct Babeltrace {
    /// Events that it printed.
    pub events: u64,
    /// Events by name.
    pub by_name: BTreeMap<String, u64>,
    /// What it had to say on standard error: nothing, for a trace without fault.
    pub complaints: String,
    /// Whether it read to the end.
    pub success: bool,
}

/// Has babeltrace2 read a trace.
///
/// # Errors
/// [`Missing`] where it is not installed.
pub fn babeltrace2(trace: &Path) -> Result<Babeltrace, Missing> {
    let mut reader = Command::new("babeltrace2");
    reader
        .args(["--names=none", "--color=never", "--no-delta", "--clock-seconds"])
        .arg(trace);
    let finished = command::run(&mut reader, Duration::from_secs(300))?;
    let mut by_name = BTreeMap::new();
    for line in finished.stdout.lines() {
        *by_name.entry(event_name(line).to_owned()).or_default() += 1;
    }
    let events = by_name.values().sum();
    Ok(Babeltrace {
        events,
        by_name,
        complaints: finished.stderr,
        success: finished.status.success(),
    })
}

/// The event's name in a line of babeltrace2: the last `NAME:` before the first field.
fn event_name(line: &str) -> &str {
    let head = line.split(" { ").next().unwrap_or(line);
    let head = head
        .split(": {")
        .next()
        .unwrap_or(head)
        .trim_end_matches(": ")
        .trim_end_matches(':');
    head.rsplit(' ').next().unwrap_or(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_and_its_absence_noticed() {
        let text = r#"{"samples": 200, "lost": 1, "complete": 0.995, "stops": {"end_of_stack": 199, "no_table": 1}, "frames": 2000,
            "trace_bytes": 7000, "functions": [{"name": "leaf", "self": 150, "total": 199}]}"#;
        let summary = Summary::from_json(text).expect("it is whole");
        assert_eq!(
            (summary.complete, summary.completeness(), summary.incomplete().as_str()),
            (0.995, 0.995, "no_table 1")
        );
        assert_eq!(
            summary.function("leaf"),
            Some(&Function {
                name: "leaf".to_owned(),
                own: 150,
                total: 199
            })
        );
        let without = text.replace("\"lost\"", "\"left\"");
        assert!(
            Summary::from_json(&without)
                .expect_err("a member is missing")
                .contains("lost")
        );
        assert!(Summary::from_json("{").is_err());
    }

    #[test]
    fn event_names_are_found() {
        let with_fields = "[1700000000.000000001] host backtrail:sample: { cpu_id = 1 }, { stack = 7 }";
        assert_eq!(event_name(with_fields), "backtrail:sample");
        assert_eq!(
            event_name("[1.2] (+0.1) backtrail:lost: { count = 7 }"),
            "backtrail:lost"
        );
    }
}
