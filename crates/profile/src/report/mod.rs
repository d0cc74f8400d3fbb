//! The report of a recording, and its output formats.

mod annotation;
mod annotation_text;
mod flame;
mod folded;
mod json;
mod listing;
mod table;
mod tree;
mod view_tables;
mod views;

use std::cmp::Reverse;

use std::sync::OnceLock;

use backtrail_recording::Stop;

pub use annotation::{Annotation, AnnotationRow};
pub use listing::{Listing, ListingRow};
pub use table::TableOptions;
pub(crate) use views::sort;
pub use views::{Change, GroupBy, Row, Rows};

use crate::calls::{self, CallArgument, CallCount, Recorded};
use crate::durations::CallDurations;
use crate::fold::Tree;
use crate::function_name::without_parameters;
use crate::modules::File;
use crate::stacks::Stacks;
use crate::symbolize::{CodeAddress, Location, LocationId, Names};
use crate::threads::{StackSample, Thread};

/// A function with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCount {
    /// Name, or `module+0xoffset` if it has none.
    pub name: String,
    /// Short name of the module.
    pub module: String,
    /// Samples that ended in it, because it was running itself. Stacks of which only the leaf is
    /// known count too.
    pub samples: u64,
    /// Samples with it on their stack, each counted once, however often it is there.
    pub total: u64,
    /// The line with most of its own samples; `None` without debugging information or own samples.
    pub hottest_line: Option<SourceLine>,
}

/// A line of source code with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as the compiler named it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function's own samples there.
    pub samples: u64,
}

/// What is counted instead of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// `off-cpu`, `wall`, or the name of an event.
    pub name: String,
    /// Whether it is a time, in microseconds.
    pub is_time: bool,
}

impl Measure {
    /// The unit, for people: `µs` or the event's name.
    pub fn unit(&self) -> &str {
        if self.is_time { "µs" } else { &self.name }
    }
}

/// Samples of one of several events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCount {
    /// The event's name.
    pub name: String,
    /// Its samples.
    pub samples: u64,
    /// How often it has happened; `None` for a clock.
    pub count: Option<u64>,
    /// How often it happens for one sample.
    pub(crate) period: u64,
    /// Whether it is the one that all other counts are of.
    pub is_shown: bool,
}

/// A summary of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Samples; if `measure` is set, all counts of samples are of that.
    pub samples: u64,
    /// How often threads waited, if times are counted instead of samples.
    pub waits: Option<u64>,
    /// How many stacks were walked in which way.
    pub walks: Vec<(&'static str, u64)>,
    /// What all counts of samples are in, if not in samples.
    pub measure: Option<Measure>,
    /// The events, if there are several.
    pub events: Vec<EventCount>,
    /// The samples themselves, if something else is counted.
    pub taken: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// Samples with a complete stack.
    pub complete: u64,
    /// Samples with frames that were read from the running process after the sample was taken.
    pub live: u64,
    /// The reasons why stacks end, by name, with their counts; `stack_lost` if only the leaf is
    /// known. The counts add up to `samples`.
    pub stops: Vec<(&'static str, u64)>,
    /// Frames of all samples, without inlined calls and frames left out by the recorder.
    pub frames: u64,
    /// Bytes of the recording on disk.
    pub trace_bytes: u64,
    /// Names of processes, most sampled first.
    pub processes: Vec<(String, u64)>,
    /// Times of the first and the last sample, in nanoseconds of the trace's clock.
    pub times: Option<(u64, u64)>,
}

impl Summary {
    /// The reasons why stacks are incomplete, by name, with their counts, most frequent first.
    pub fn incomplete(&self) -> Vec<(&'static str, u64)> {
        let mut reasons = self.stops.clone();
        reasons.retain(|&(name, samples)| name != Stop::EndOfStack.name() && samples > 0);
        reasons.sort_by_key(|&(_, samples)| Reverse(samples));
        reasons
    }

    /// The fraction of samples with complete stacks, from 0 to 1; 0 if there are no samples.
    pub fn complete_fraction(&self) -> f64 {
        if self.samples == 0 {
            return 0.0;
        }
        self.complete as f64 / self.samples as f64
    }
}

/// The results of a recording.
#[derive(Debug)]
pub struct Report {
    summary: Summary,
    functions: Vec<FunctionCount>,
    calls: Vec<CallCount>,
    durations: Vec<CallDurations>,
    stacks: Stacks,
    names: Names,
    threads: Vec<(Thread, u64)>,
    samples: Vec<StackSample>,
    /// Made from the stacks once it is needed.
    tree: OnceLock<Tree>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(
        summary: Summary,
        mut functions: Vec<FunctionCount>,
        calls: Vec<CallCount>,
        notes: Vec<String>,
    ) -> Report {
        functions.sort_by(|a, b| {
            (b.samples, b.total)
                .cmp(&(a.samples, a.total))
                .then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
        });
        Report {
            summary,
            functions,
            calls,
            durations: Vec::new(),
            stacks: Stacks::with_limit(0),
            names: Names::default(),
            threads: Vec::new(),
            samples: Vec::new(),
            tree: OnceLock::new(),
            notes,
        }
    }

    pub(crate) fn with_durations(self, durations: Vec<CallDurations>) -> Report {
        Report { durations, ..self }
    }

    pub(crate) fn with_stacks(
        self,
        stacks: Stacks,
        names: Names,
        threads: Vec<(Thread, u64)>,
        samples: Vec<StackSample>,
    ) -> Report {
        Report {
            stacks,
            names,
            threads,
            samples,
            ..self
        }
    }

    /// The summary of the recording.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// All functions, sorted by their own samples, then by their total samples.
    pub fn functions(&self) -> &[FunctionCount] {
        &self.functions
    }

    /// Names of functions that contain a text, in whatever case, those with most samples first,
    /// without parameters.
    pub fn functions_like(&self, text: &str, limit: usize) -> Vec<&str> {
        let text = text.to_lowercase();
        let mut found: Vec<&FunctionCount> = self.functions.iter().collect();
        found.retain(|function| without_parameters(&function.name).to_lowercase().contains(&text));
        found.sort_by_key(|function| Reverse(function.total));
        let mut names: Vec<&str> = Vec::new();
        for function in found {
            let name = without_parameters(&function.name);
            if names.len() < limit && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The calls in a recording of calls; once they are [explained](Self::explain_calls), those
    /// with the same arguments are merged, most frequent first.
    pub fn calls(&self) -> &[CallCount] {
        &self.calls
    }

    /// How long calls took, by function, in a recording of finished calls.
    pub fn durations(&self) -> &[CallDurations] {
        &self.durations
    }

    /// Sets the arguments of calls: `explain` gets the calls in a file that was mapped at an
    /// address, and returns the arguments of each, in order; empty if unknown.
    pub fn explain_calls(&mut self, mut explain: impl FnMut(&File, u64, &[&Recorded]) -> Vec<Vec<CallArgument>>) {
        calls::explain(&mut self.calls, &mut explain);
    }

    /// The distinct stacks with their samples: frames are places in code.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// Whether stacks end in [`LEFT_OUT`](crate::LEFT_OUT), as there are more than
    /// [`Options::max_frames`](crate::Options) frames.
    pub fn stacks_are_cut(&self) -> bool {
        self.stacks.is_cut()
    }

    /// The names of a location in [`Report::stacks`].
    pub fn location(&self, id: LocationId) -> &Location {
        &self.names.locations()[id.index()]
    }

    /// Where the code of a location is.
    pub fn address(&self, id: LocationId) -> CodeAddress<'_> {
        self.names.address(id)
    }

    /// All threads with the number of their samples. A thread that got another name during the
    /// recording is there once for each name.
    pub fn threads(&self) -> &[(Thread, u64)] {
        &self.threads
    }

    /// All samples in the order of their times, if [`Options::keep_samples`](crate::Options) is
    /// set.
    pub fn samples(&self) -> &[StackSample] {
        &self.samples
    }

    /// The stacks of functions, folded: inlined calls are frames like others.
    pub fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| tree::of_functions(&self.stacks, &self.names))
    }

    /// Notes for the reader of the report, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod view_tests;
