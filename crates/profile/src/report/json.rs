//! Writes the report as JSON.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::Report;
use crate::calls::CallCount;
use crate::durations::CallDurations;

/// The document; scripts rely on the names here.
#[derive(Serialize)]
struct Document<'a> {
    samples: u64,
    /// The number of waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<u64>,
    /// What all counts of samples are, if not samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    /// If there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event<'a>>,
    lost: u64,
    /// Fraction from 0 to 1.
    complete: f64,
    stops: BTreeMap<&'a str, u64>,
    frames: u64,
    trace_bytes: u64,
    live: u64,
    processes: BTreeMap<&'a str, u64>,
    functions: Vec<Function<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<Calls<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    durations: Vec<Durations<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    module: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct Calls<'a> {
    function: &'a str,
    module: &'a str,
    count: u64,
    args: Vec<Argument<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    shown: bool,
}

#[derive(Serialize)]
struct Durations<'a> {
    function: &'a str,
    module: &'a str,
    count: u64,
    total_ns: u64,
    min_ns: u64,
    median_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl<'a> Durations<'a> {
    fn of(function: &'a CallDurations) -> Durations<'a> {
        Durations {
            function: &function.function,
            module: &function.module,
            count: function.count,
            total_ns: function.total,
            min_ns: function.min,
            median_ns: function.median,
            p99_ns: function.p99,
            max_ns: function.max,
        }
    }
}

#[derive(Serialize)]
struct Argument<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    type_name: Option<&'a str>,
    value: Option<&'a str>,
}

impl<'a> Calls<'a> {
    fn of(call: &'a CallCount) -> Calls<'a> {
        let arguments = call.arguments.iter().map(|argument| Argument {
            name: &argument.name,
            type_name: argument.type_name.as_deref(),
            value: argument.value.as_deref(),
        });
        Calls {
            function: &call.function,
            module: &call.module,
            count: call.count,
            args: arguments.collect(),
        }
    }
}

impl Report {
    /// Writes one JSON document and a line feed: `samples`, `lost`, `complete` (fraction of samples
    /// with complete stacks), `stops`, `frames`, `trace_bytes`, `live`, `processes`, `functions`
    /// (all of them, in the order of the table, with `self` and `total` in samples; `file` and
    /// `line` are where most of its own samples are, if known) and `notes`; for a recording of
    /// calls also `calls` (`function`, `module`, `count`, and `args` with `name`, `type` and
    /// `value`), of finished calls `durations` in nanoseconds by function (`count`, `total_ns`,
    /// `min_ns`, `median_ns`, `p99_ns`, `max_ns`), and of several events `events` (`name`,
    /// `samples`, `count`, and whether the other counts are of it, `shown`). If something else than
    /// samples is counted, `unit` is `microseconds` or the name of an event; for times off the CPU,
    /// `waits` is how many there are.
    pub fn write_json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let summary = &self.summary;
        let document = Document {
            samples: summary.samples,
            waits: summary.waits,
            unit: summary
                .measure
                .as_ref()
                .map(|measure| if measure.is_time { "microseconds" } else { &measure.name }),
            events: summary
                .events
                .iter()
                .map(|event| Event {
                    name: &event.name,
                    samples: event.samples,
                    count: event.count,
                    shown: event.is_shown,
                })
                .collect(),
            lost: summary.lost,
            complete: summary.complete_fraction(),
            stops: summary.stops.iter().copied().collect(),
            frames: summary.frames,
            trace_bytes: summary.trace_bytes,
            live: summary.live,
            processes: summary
                .processes
                .iter()
                .map(|(name, samples)| (name.as_str(), *samples))
                .collect(),
            functions: self
                .functions
                .iter()
                .map(|function| Function {
                    name: &function.name,
                    own: function.samples,
                    total: function.total,
                    module: &function.module,
                    file: function.hottest_line.as_ref().map(|line| line.file.as_str()),
                    line: function.hottest_line.as_ref().map(|line| line.line),
                })
                .collect(),
            calls: self.calls.iter().map(Calls::of).collect(),
            durations: self.durations.iter().map(Durations::of).collect(),
            notes: &self.notes,
        };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        out.write_all(b"\n")
    }
}
