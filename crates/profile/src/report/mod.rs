//! The report of a recording, and its output formats.

mod flame;
mod folded;
mod json;
mod table;

use std::cmp::Reverse;

use backtrail_recording::{FrameKind, Sample, Stop};

pub use table::TableOptions;

use crate::calls::{self, CallArgument, CallCount, Recorded};
use crate::fold::Tree;
use crate::modules::File;

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

/// A summary of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Samples.
    pub samples: u64,
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
    pub(crate) fn count(&mut self, sample: &Sample<'_>) {
        self.samples += 1;
        self.complete += u64::from(sample.stop == Some(Stop::EndOfStack));
        self.live += u64::from(sample.live);
        self.frames += sample
            .frames
            .iter()
            .filter(|frame| frame.kind != FrameKind::Omitted)
            .count() as u64;
        let (first, last) = self.times.unwrap_or((sample.time, sample.time));
        self.times = Some((first.min(sample.time), last.max(sample.time)));
    }

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
    tree: Tree,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(
        summary: Summary,
        mut functions: Vec<FunctionCount>,
        calls: Vec<CallCount>,
        tree: Tree,
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
            tree,
            notes,
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

    /// The calls in a recording of calls; once they are [explained](Self::explain_calls), those
    /// with the same arguments are merged, most frequent first.
    pub fn calls(&self) -> &[CallCount] {
        &self.calls
    }

    /// Sets the arguments of calls: `explain` gets the calls in a file that was mapped at an
    /// address, and returns the arguments of each, in order; empty if unknown.
    pub fn explain_calls(&mut self, mut explain: impl FnMut(&File, u64, &[&Recorded]) -> Vec<Vec<CallArgument>>) {
        calls::explain(&mut self.calls, &mut explain);
    }

    /// The stacks, folded.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Notes for the reader of the report, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests;
