//! Turns a recording's items into counts.

use std::collections::{BTreeMap, HashMap};

use backtrail_recording::{Frame, FrameKind, Item, Sample, Stop, is_kernel_address};
use rustc_hash::FxHashMap;

use crate::calls::Calls;
use crate::fold::{LabelId, LabelKind, Tree};
use crate::processes::Processes;
use crate::report::{FunctionCount, Report, SourceLine, Summary};
use crate::symbolize::{LocationId, Origin, Symbolizer, SystemFiles};

/// How stacks are grouped and named.
#[derive(Clone, Debug)]
pub struct Options {
    /// Put the name of its process at the root of each stack.
    pub process_root: bool,
    /// Put the name of its thread there too (after that of its process).
    pub thread_root: bool,
    /// Put incomplete stacks under a frame that says why, `[incomplete: no_table]`: their outermost
    /// frame is not where the program began. Stacks whose outer frames were read later go under
    /// `[read late]`.
    pub mark_incomplete: bool,
    /// Nanoseconds by which the recording's times are ahead of the monotonic clock, which jitdumps
    /// use.
    pub clock_offset: u64,
    /// Where to look for names that are not in any module's file.
    pub system: SystemFiles,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            process_root: true,
            thread_root: false,
            mark_incomplete: true,
            clock_offset: 0,
            system: SystemFiles::default(),
        }
    }
}

/// The frame above a stack of which only the leaf is known.
pub const STACK_LOST: &str = "[stack lost]";
/// The frame above a stack whose outer frames were read from the running process after the sample
/// was taken: they may be of another moment.
pub const READ_LATE: &str = "[read late]";
/// The frame that represents frames left out by the recorder.
pub const OMITTED: &str = "[frames omitted]";
/// The frame of a sample without frames.
pub const NO_STACK: &str = "[no stack]";

/// Counts a recording: takes its items in time order, and returns a [`Report`].
pub struct Profile {
    options: Options,
    processes: Processes,
    symbolizer: Symbolizer,
    /// The location of an address in a process, valid until its modules change.
    located: FxHashMap<u32, FxHashMap<(FrameKind, u64), LocationId>>,
    functions: Functions,
    tree: Tree,
    markers: Markers,
    summary: Summary,
    stops: BTreeMap<Option<Stop>, u64>,
    processes_sampled: HashMap<String, u64>,
    /// Samples by the location that ran.
    leaves: FxHashMap<LocationId, u64>,
    calls: Calls,
    /// The path of the current sample; its memory is reused.
    path: Vec<LabelId>,
}

/// Labels of frames that are not functions.
#[derive(Debug)]
struct Markers {
    lost: LabelId,
    late: LabelId,
    omitted: LabelId,
    no_stack: LabelId,
    incomplete: [LabelId; Stop::ALL.len()],
}

impl Profile {
    /// Starts without items; names come from this machine's files.
    pub fn new(options: Options) -> Profile {
        let symbolizer = Symbolizer::new(options.system.clone());
        Self::with_symbolizer(options, symbolizer)
    }

    pub(crate) fn with_symbolizer(options: Options, symbolizer: Symbolizer) -> Profile {
        let mut tree = Tree::default();
        let mut marker = |text: &str| tree.label(text, LabelKind::Marker);
        let markers = Markers {
            lost: marker(STACK_LOST),
            late: marker(READ_LATE),
            omitted: marker(OMITTED),
            no_stack: marker(NO_STACK),
            incomplete: Stop::ALL.map(|stop| marker(&format!("[incomplete: {}]", stop.name()))),
        };
        Profile {
            options,
            processes: Processes::default(),
            symbolizer,
            located: FxHashMap::default(),
            functions: Functions::default(),
            tree,
            markers,
            summary: Summary::default(),
            stops: BTreeMap::new(),
            processes_sampled: HashMap::new(),
            leaves: FxHashMap::default(),
            calls: Calls::default(),
            path: Vec::new(),
        }
    }

    /// Takes the next item.
    pub fn add(&mut self, item: &Item<'_>) {
        match item {
            Item::Module(module) => {
                self.symbolizer.map(module);
                if is_kernel_address(module.base) {
                    self.located.clear();
                } else {
                    self.located.remove(&module.pid);
                    self.processes.mapped(module);
                }
            }
            Item::Exec { pid, .. } => {
                self.forget_modules(*pid);
                self.processes.executed(*pid);
            }
            Item::ThreadName(name) => self.processes.named(name.pid, name.tid, &name.name),
            Item::Fork { pid, tid, parent, .. } => {
                // A reused process number must not show the mappings of the earlier process.
                if self.processes.forked(*pid, *tid, *parent) {
                    self.forget_modules(*pid);
                }
            }
            Item::Exit { pid, tid, .. } => {
                self.processes.exited(*pid, *tid);
                if pid == tid {
                    self.located.remove(pid);
                }
            }
            Item::Lost { count, .. } => self.summary.lost = self.summary.lost.saturating_add(*count),
            Item::Sample(sample) => self.add_sample(sample),
        }
    }

    /// Counts, and looks up names. `trace_bytes` is the size of the recording on disk.
    pub fn finish(mut self, trace_bytes: u64) -> Report {
        self.summary.trace_bytes = trace_bytes;
        self.summary.stops = self
            .stops
            .into_iter()
            .map(|(stop, count)| (stop.map_or("stack_lost", Stop::name), count))
            .collect();
        self.summary.processes = self.processes_sampled.into_iter().collect();
        self.summary
            .processes
            .sort_by(|(a_name, a), (b_name, b)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
        let mut notes = self.symbolizer.notes();
        if self.tree.cut_samples() > 0 {
            notes.push(format!(
                "too many different stacks for the tree of calls: {} samples end in {} there; the functions' counts are whole",
                self.tree.cut_samples(),
                crate::fold::LEFT_OUT
            ));
        }
        let functions = self.functions.into_counts(&self.leaves, &self.symbolizer);
        let calls = self.calls.into_counts(&self.symbolizer);
        Report::new(self.summary, functions, calls, self.tree, notes)
    }

    fn forget_modules(&mut self, pid: u32) {
        self.symbolizer.clear(pid);
        self.located.remove(&pid);
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        self.summary.count(sample);
        let monotonic = sample.time.saturating_sub(self.options.clock_offset);
        if self.symbolizer.advance(sample.pid, monotonic) {
            self.located.remove(&sample.pid);
        }
        *self.stops.entry(sample.stop).or_default() += 1;
        self.path.clear();
        let process = self.processes.process_name(sample.pid);
        if self.options.process_root {
            self.path.push(self.tree.label(&process, LabelKind::Marker));
        }
        if self.options.thread_root {
            let thread = self.processes.thread_name(sample.pid, sample.tid);
            self.path.push(self.tree.label(&thread, LabelKind::Marker));
        }
        if sample.live && self.options.mark_incomplete {
            self.path.push(self.markers.late);
        }
        match sample.stop {
            None => self.path.push(self.markers.lost),
            Some(Stop::EndOfStack | Stop::NoUserStack) => {}
            Some(stop) if self.options.mark_incomplete => self.path.push(self.markers.incomplete[stop as usize]),
            Some(_) => {}
        }
        match self.processes_sampled.get_mut(&*process) {
            Some(count) => *count += 1,
            None => {
                self.processes_sampled.insert(process.into_owned(), 1);
            }
        }
        if sample.frames.is_empty() {
            self.path.push(self.markers.no_stack);
        }
        let mut leaf = None;
        let user = sample.frames.iter().position(|frame| !is_kernel_address(frame.address));
        let user = user.unwrap_or(sample.frames.len());
        for (index, frame) in sample.frames.iter().enumerate().rev() {
            leaf = self.add_frame(sample.pid, frame, index < user);
        }
        if let Some(location) = leaf {
            *self.leaves.entry(location).or_default() += 1;
            self.calls.add(sample, location, &self.symbolizer);
        }
        self.tree.add(self.path.iter().copied(), 1);
    }

    /// Adds the calls of a frame to the path.
    fn add_frame(&mut self, pid: u32, frame: &Frame, in_kernel: bool) -> Option<LocationId> {
        if frame.kind == FrameKind::Omitted {
            self.path.push(self.markers.omitted);
            return None;
        }
        let symbolizer = &mut self.symbolizer;
        let location = if is_kernel_address(frame.address) && !in_kernel {
            symbolizer.resolve_outside_kernel(pid, frame.kind, frame.address)
        } else {
            *self
                .located
                .entry(pid)
                .or_default()
                .entry((frame.kind, frame.address))
                .or_insert_with(|| symbolizer.resolve(pid, frame.kind, frame.address))
        };
        let calls = self.functions.of(location, symbolizer, &mut self.tree);
        for function in calls {
            let function = self.functions.calls[function];
            self.functions.see(function, self.summary.samples);
            self.path.push(self.functions.counts[function].label);
        }
        Some(location)
    }
}

/// The functions seen so far, with their counts.
#[derive(Debug, Default)]
struct Functions {
    counts: Vec<Counted>,
    /// By module and name.
    numbers: HashMap<(String, String), usize>,
    /// The calls of each location, by its number: their range in `calls`.
    of_location: FxHashMap<LocationId, (usize, usize)>,
    /// Numbers of functions, the outermost call of each location first.
    calls: Vec<usize>,
}

#[derive(Debug)]
struct Counted {
    label: LabelId,
    /// Samples with it on their stack, each counted once.
    total: u64,
    /// The last sample counted in `total`, so that recursion does not count twice.
    last_sample: u64,
}

impl Functions {
    /// The calls of a location, as a range of `calls`.
    fn of(&mut self, id: LocationId, symbolizer: &Symbolizer, tree: &mut Tree) -> std::ops::Range<usize> {
        if let Some(&(start, end)) = self.of_location.get(&id) {
            return start..end;
        }
        let location = symbolizer.location(id);
        let kind = match location.origin {
            Origin::Kernel => LabelKind::Kernel,
            Origin::File | Origin::Generated => LabelKind::Function,
        };
        let start = self.calls.len();
        for call in location.calls.iter().rev() {
            let number = self.number(&location.module, &call.function, || tree.label(&call.function, kind));
            self.calls.push(number);
        }
        self.of_location.insert(id, (start, self.calls.len()));
        start..self.calls.len()
    }

    fn number(&mut self, module: &str, name: &str, label: impl FnOnce() -> LabelId) -> usize {
        let key = (module.to_string(), name.to_string());
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.counts.len();
        self.counts.push(Counted {
            label: label(),
            total: 0,
            last_sample: 0,
        });
        self.numbers.insert(key, number);
        number
    }

    /// The function is on the stack of the sample with this number (from 1).
    fn see(&mut self, function: usize, sample: u64) {
        let counted = &mut self.counts[function];
        if counted.last_sample != sample {
            counted.last_sample = sample;
            counted.total += 1;
        }
    }

    /// The functions' counts; their own samples come from the samples of each location, whose
    /// innermost call was running.
    fn into_counts(self, leaves: &FxHashMap<LocationId, u64>, symbolizer: &Symbolizer) -> Vec<FunctionCount> {
        let mut own = vec![0; self.counts.len()];
        let mut lines: BTreeMap<(usize, &str, u32), u64> = BTreeMap::new();
        for (location, &samples) in leaves {
            let (_, end) = self.of_location[location];
            let function = self.calls[end - 1];
            own[function] += samples;
            let innermost = &symbolizer.location(*location).calls[0];
            if let (Some(file), Some(line)) = (&innermost.file, innermost.line) {
                *lines.entry((function, file, line)).or_default() += samples;
            }
        }
        let mut hottest: Vec<Option<(&str, u32, u64)>> = vec![None; self.counts.len()];
        for ((function, file, line), samples) in lines {
            if hottest[function].is_none_or(|(_, _, most)| samples > most) {
                hottest[function] = Some((file, line, samples));
            }
        }
        self.numbers
            .into_iter()
            .map(|((module, name), number)| FunctionCount {
                name,
                module,
                samples: own[number],
                total: self.counts[number].total,
                hottest_line: hottest[number].map(|(file, line, samples)| SourceLine {
                    file: file.to_string(),
                    line,
                    samples,
                }),
            })
            .collect()
    }
}
