//! Counts a recording while it runs: since its start, and over the last seconds.

use std::collections::{BTreeMap, VecDeque};

use backtrail_cfi::announced::AnnouncedAt;
use backtrail_elf::HeldFile;
use backtrail_recording::Item;
use rustc_hash::FxHashSet;

use crate::profile::{Options, Profile};
use crate::report::{Row, Rows, sort};
use crate::symbolize::Kept;
use crate::threads::{Thread, ThreadId};

/// What live samples are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LiveBy {
    /// Functions.
    Function,
    /// Processes.
    Process,
    /// Threads.
    Thread,
}

/// Which live samples count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Those that [`Live::forget_before`] has left.
    Recent,
    /// All.
    Whole,
}

/// Whose symbols are kept: builds and tests run any number of programs.
const MOST_KEPT: Kept = Kept {
    files: 64,
    bytes: 256 << 20,
};

/// The counts of a recording that is still being made. It takes memory per function and per recent
/// sample, so it can run for days.
pub struct Live {
    profile: Profile,
    recent: VecDeque<Sampled>,
    /// By [`Span`].
    counts: [Counts; 2],
    lost: u64,
    /// Memory for the functions of a sample.
    functions: Vec<u32>,
}

/// A sample, as far as it counts.
struct Sampled {
    time: u64,
    thread: ThreadId,
    is_complete: bool,
    /// The functions on its stack, each once; the innermost first.
    functions: Box<[u32]>,
}

#[derive(Default)]
struct Counts {
    samples: u64,
    complete: u64,
    /// By function: own samples, and those with it on their stack.
    functions: Vec<(u64, u64)>,
    threads: Vec<u64>,
}

impl Counts {
    /// Adds a sample, or takes it away again.
    fn count(&mut self, sampled: &Sampled, change: fn(&mut u64)) {
        change(&mut self.samples);
        if sampled.is_complete {
            change(&mut self.complete);
        }
        let highest = sampled
            .functions
            .iter()
            .max()
            .map_or(0, |&function| function as usize + 1);
        if self.functions.len() < highest {
            self.functions.resize(highest, (0, 0));
        }
        for &function in &sampled.functions {
            change(&mut self.functions[function as usize].1);
        }
        if let Some(&own) = sampled.functions.first() {
            change(&mut self.functions[own as usize].0);
        }
        let thread = sampled.thread.index();
        if self.threads.len() <= thread {
            self.threads.resize(thread + 1, 0);
        }
        change(&mut self.threads[thread]);
    }
}

impl Live {
    /// Starts without items; names come from this machine's files.
    pub fn new(options: Options) -> Live {
        let mut profile = Profile::new(Options {
            process_root: false,
            keep_samples: true,
            // Only functions are counted, so there is no tree of stacks that could grow.
            max_frames: 0,
            ..options
        });
        profile.keep_symbols_of(MOST_KEPT);
        Live {
            profile,
            recent: VecDeque::new(),
            counts: Default::default(),
            lost: 0,
            functions: Vec::new(),
        }
    }

    /// Takes an open file, whose names are not those of the file at its path, before the first item
    /// that names it.
    pub fn hold(&mut self, file: HeldFile) {
        self.profile.hold(file);
    }

    /// Takes a function that a process made at run time and announced, before the first sample in
    /// it.
    pub fn announce(&mut self, at: &AnnouncedAt) {
        self.profile.announce_at(at);
    }

    /// Takes the next item.
    pub fn add(&mut self, item: &Item<'_>) {
        if let Item::Lost { count, .. } = item {
            self.lost = self.lost.saturating_add(*count);
        }
        self.functions.clear();
        let Some((time, thread, is_complete)) = self.profile.add_live(item, &mut self.functions) else {
            return;
        };
        // The first is the innermost; of the rest, each once.
        let mut seen = FxHashSet::default();
        self.functions.retain(|&function| seen.insert(function));
        let sampled = Sampled {
            time,
            thread,
            is_complete,
            functions: self.functions.as_slice().into(),
        };
        for counts in &mut self.counts {
            counts.count(&sampled, |count| *count += 1);
        }
        self.recent.push_back(sampled);
    }

    /// Samples before this time are no longer recent.
    pub fn forget_before(&mut self, time: u64) {
        while let Some(old) = self.recent.pop_front_if(|sampled| sampled.time < time) {
            self.counts[Span::Recent as usize].count(&old, |count| *count -= 1);
        }
    }

    /// The counts, in order of descending samples.
    pub fn rows(&self, by: LiveBy, span: Span) -> Rows {
        let counts = &self.counts[span as usize];
        let (heading, module_heading) = match by {
            LiveBy::Function => ("function", "module"),
            LiveBy::Process => ("process", ""),
            LiveBy::Thread => ("thread", "process"),
        };
        let mut rows: Vec<Row> = match by {
            LiveBy::Function => self.functions(counts),
            LiveBy::Process => self.threads(counts, |thread| {
                (format!("{} {}", thread.process, thread.pid), String::new())
            }),
            LiveBy::Thread => self.threads(counts, |thread| {
                (
                    format!("{} {}", thread.name, thread.tid),
                    format!("{} {}", thread.process, thread.pid),
                )
            }),
        };
        sort(&mut rows);
        Rows {
            heading: heading.to_owned(),
            module_heading: module_heading.to_owned(),
            rows,
            samples: counts.samples,
        }
    }

    /// Samples.
    pub fn samples(&self, span: Span) -> u64 {
        self.counts[span as usize].samples
    }

    /// Samples with a complete stack.
    pub fn complete(&self, span: Span) -> u64 {
        self.counts[span as usize].complete
    }

    /// Samples that the kernel could not deliver, since the start.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Notes about the names, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.profile.name_notes()
    }

    fn functions(&self, counts: &Counts) -> Vec<Row> {
        let named = self.profile.functions().filter_map(|(module, name, number)| {
            let &(samples, total) = counts.functions.get(number as usize)?;
            (total > 0).then(|| Row {
                name: name.to_owned(),
                module: module.to_owned(),
                samples,
                total,
            })
        });
        named.collect()
    }

    fn threads(&self, counts: &Counts, key: impl Fn(&Thread) -> (String, String)) -> Vec<Row> {
        let mut samples: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (thread, &count) in self.profile.threads().zip(&counts.threads) {
            if count > 0 {
                *samples.entry(key(thread)).or_default() += count;
            }
        }
        let rows = samples.into_iter().map(|((name, module), samples)| Row {
            name,
            module,
            samples,
            total: samples,
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use backtrail_recording::{Detail, Frame, FrameKind, Sample, Stop, ThreadName};

    use super::*;

    fn sample(time: u64, tid: u32, addresses: &[u64]) -> (u64, u32, Vec<Frame>) {
        let frame = |(index, &address): (usize, &u64)| Frame {
            kind: if index == 0 { FrameKind::Pc } else { FrameKind::Ra },
            address,
        };
        (time, tid, addresses.iter().enumerate().map(frame).collect())
    }

    fn live(samples: &[(u64, u32, Vec<Frame>)]) -> Live {
        let mut live = Live::new(Options::default());
        live.add(&Item::ThreadName(ThreadName {
            time: 0,
            pid: 7,
            tid: 7,
            name: "program".to_owned(),
        }));
        for (time, tid, frames) in samples {
            live.add(&Item::Sample(Sample {
                time: *time,
                cpu: 0,
                pid: 7,
                tid: *tid,
                frames,
                stop: Some(Stop::EndOfStack),
                live: false,
                in_kernel: false,
                wait: None,
                passed: &[],
                detail: Detail::Nothing,
            }));
        }
        live
    }

    fn rows(live: &Live, by: LiveBy, span: Span) -> Vec<(String, u64, u64)> {
        let rows = live.rows(by, span).rows.into_iter();
        rows.map(|row| (row.name, row.samples, row.total)).collect()
    }

    #[test]
    fn recent_samples_are_forgotten_and_all_are_counted() {
        let recursive = [0x10, 0x11, 0x31, 0x11];
        let mut live = live(&[
            sample(10, 7, &recursive),
            sample(20, 8, &[0x30, 0x21]),
            sample(30, 8, &[0x30]),
        ]);
        let row = |name: &str, own, total| (name.to_owned(), own, total);
        let at_start = rows(&live, LiveBy::Function, Span::Recent);
        let all = [
            row("[unknown]+0x30", 2, 3),
            row("[unknown]+0x10", 1, 1),
            row("[unknown]+0x20", 0, 1),
        ];
        assert_eq!(at_start, all, "recursion counts once");
        live.forget_before(20);
        assert_eq!((live.samples(Span::Recent), live.samples(Span::Whole)), (2, 3));
        assert_eq!(
            rows(&live, LiveBy::Function, Span::Recent),
            [row("[unknown]+0x30", 2, 2), row("[unknown]+0x20", 0, 1)]
        );
        assert_eq!(rows(&live, LiveBy::Function, Span::Whole), all);
        assert_eq!(rows(&live, LiveBy::Process, Span::Recent), [row("program 7", 2, 2)]);
        assert_eq!(
            rows(&live, LiveBy::Thread, Span::Whole),
            [row("[tid 8] 8", 2, 2), row("program 7", 1, 1)]
        );
        live.forget_before(u64::MAX);
        assert_eq!(rows(&live, LiveBy::Function, Span::Recent), []);
        assert_eq!(live.complete(Span::Whole), 3);
    }
}
