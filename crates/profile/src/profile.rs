//! Turns a recording's items into counts.

mod live;
mod path;

use std::path::PathBuf;

use backtrail_cfi::announced::AnnouncedAt;
use backtrail_elf::HeldFile;
use backtrail_recording::{
    Detail, Entry, FrameKind, Item, Measured, Module, NumberedSample, Origin, Sample, Stop, Symbols, Wait, WaitKind,
    is_kernel_address,
};
use rustc_hash::FxHashMap;

use crate::calls::Calls;
use crate::durations::Durations;
use crate::filter::Filter;
use crate::fold::LEFT_OUT;
use crate::functions::{Functions, Unplaced};
use crate::processes::Processes;
use crate::report::{EventCount, FunctionCount, Measure, Report, Summary};
use crate::stacks::{StackFrame, Stacks};
use crate::symbolize::{FetchDebugFile, Kept, LocationId, NO_FILE, Symbolizer, SystemFiles};
use crate::threads::{StackSample, ThreadId, Threads};
use path::{Memo, Walked};

const NO_WALK: &str = "no user stack";
const WALKED_IN_KERNEL: &str = "in the kernel";
const WALKED_IN_KERNEL_LATE: &str = "in the kernel, outer frames read later";
const WALKED_COPY: &str = "from a copy";
const WALKED_COPY_LATE: &str = "from a copy, outer frames read later";

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
    /// What is counted: samples of time on the CPU, or microseconds off the CPU, or of both.
    /// `None`: what the recording measures.
    pub measured: Option<Measured>,
    /// Of a recording of several events, the one to count; `None`: the first.
    pub event: Option<String>,
    /// Of a recording of finished calls: whether microseconds are counted, not calls. A call within
    /// another one counts for its own stack only.
    pub durations: bool,
    /// Whether stacks of waits continue with those of the threads that ended them.
    pub wakers: bool,
    /// The samples to count; the others are ignored.
    pub filter: Filter,
    /// The folder with the files of the recorded machine; `None` if it is this one.
    pub sysroot: Option<PathBuf>,
    /// Recorded files that are open, because no path leads to them.
    pub held: Vec<HeldFile>,
    /// Functions that processes announced to debuggers while they were recorded.
    pub announced: Vec<AnnouncedAt>,
    /// Where debug files come from that are not on this machine.
    pub fetch: Option<FetchDebugFile>,
    /// Keep every sample's time, thread and stack for [`Report::samples`], in 24 bytes each.
    pub keep_samples: bool,
    /// Frames of distinct stacks to distinguish, each in about 24 bytes. If there are more, the
    /// report has a note, and stacks end in [`LEFT_OUT`](crate::LEFT_OUT).
    pub max_frames: usize,
}

/// The usual [`Options::max_frames`]: 800 MB at most.
pub const MAX_FRAMES: usize = 1 << 25;

impl Default for Options {
    fn default() -> Self {
        Options {
            process_root: true,
            thread_root: false,
            mark_incomplete: true,
            clock_offset: 0,
            system: SystemFiles::default(),
            measured: None,
            event: None,
            durations: false,
            wakers: false,
            filter: Filter::default(),
            sysroot: None,
            held: Vec::new(),
            announced: Vec::new(),
            fetch: None,
            keep_samples: false,
            max_frames: MAX_FRAMES,
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
    spaces: FxHashMap<u32, Space>,
    functions: Functions,
    stacks: Stacks,
    /// By [`StackId`], if only stacks through a function count: whether it is on the stack.
    through: Vec<bool>,
    markers: Markers,
    summary: Summary,
    /// By reason; the last one is for lost stacks.
    stops: [u64; Stop::ALL.len() + 1],
    threads: Threads,
    samples: Vec<StackSample>,
    unplaced: Unplaced,
    calls: Calls,
    durations: Durations,
    /// The number of the event that counts, of several.
    event: Option<u8>,
    /// The time of the first sample, counted or not.
    begin: Option<u64>,
    /// The locations of the current sample, if it has no room in the tree.
    beyond: Vec<LocationId>,
    /// What is counted; `None` if everything is looked at for its names.
    measured: Option<Measured>,
    /// What a sample that is no wait counts for.
    period: u64,
    /// Memory for the steps of a path.
    steps: Vec<path::Pending>,
}

/// What is known of a process until its modules change; of threads, until names change.
#[derive(Debug, Default)]
struct Space {
    located: FxHashMap<(FrameKind, u64), LocationId>,
    threads: FxHashMap<u32, ThreadId>,
    /// By thread if threads are roots, else one for all, of thread 0.
    memos: FxHashMap<u32, Memo>,
}

impl Space {
    fn forget_code(&mut self) {
        self.located.clear();
        self.memos.clear();
    }

    fn forget_names(&mut self) {
        self.threads.clear();
        self.memos.clear();
    }
}

/// Frames that are not functions.
#[derive(Debug)]
struct Markers {
    lost: StackFrame,
    late: StackFrame,
    omitted: StackFrame,
    no_stack: StackFrame,
    left_out: StackFrame,
    incomplete: [StackFrame; Stop::ALL.len()],
}

impl Profile {
    /// Starts without items; names come from this machine's files.
    pub fn new(options: Options) -> Profile {
        let symbolizer = Symbolizer::new(options.system.clone()).below(options.sysroot.clone());
        Self::with_symbolizer(options, symbolizer)
    }

    pub(crate) fn with_symbolizer(options: Options, symbolizer: Symbolizer) -> Profile {
        let mut stacks = Stacks::with_limit(options.max_frames);
        let mut marker = |text: &str| stacks.marker_of(text);
        let markers = Markers {
            lost: marker(STACK_LOST),
            late: marker(READ_LATE),
            omitted: marker(OMITTED),
            no_stack: marker(NO_STACK),
            left_out: marker(LEFT_OUT),
            incomplete: Stop::ALL.map(|stop| marker(&format!("[incomplete: {}]", stop.name()))),
        };
        let measured = options.measured.unwrap_or_default();
        Profile {
            measured: Some(measured),
            period: 1,
            options,
            processes: Processes::default(),
            symbolizer,
            spaces: FxHashMap::default(),
            functions: Functions::default(),
            stacks,
            through: vec![false],
            markers,
            summary: Summary::default(),
            stops: Default::default(),
            threads: Threads::default(),
            samples: Vec::new(),
            unplaced: Unplaced::default(),
            calls: Calls::default(),
            durations: Durations::default(),
            event: None,
            begin: None,
            beyond: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Takes the next entry: much faster than [`Profile::add`] if stacks repeat.
    pub fn add_entry(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Item(item) => self.add(item),
            Entry::Sample(sample) => self.add_numbered(sample),
        }
    }

    /// Takes the next item.
    pub fn add(&mut self, item: &Item<'_>) {
        match item {
            Item::Module(module) => self.map(module),
            Item::Exec { pid, .. } => {
                self.forget_modules(*pid);
                self.processes.executed(*pid);
            }
            Item::ThreadName(name) => {
                if self.processes.named(name.pid, name.tid, &name.name) {
                    self.forget_names(name.pid);
                }
            }
            Item::ProcessLabels(labels) => {
                if self.processes.labelled(labels) {
                    self.forget_names(labels.pid);
                }
            }
            Item::Fork { pid, tid, parent, .. } => {
                // A reused process number must not show the mappings of the earlier process.
                if self.processes.forked(*pid, *tid, *parent) {
                    self.forget_modules(*pid);
                }
                self.forget_names(*pid);
            }
            Item::Exit { pid, tid, .. } => {
                self.processes.exited(*pid, *tid);
                if pid == tid {
                    self.spaces.remove(pid);
                }
            }
            Item::Lost { count, .. } => self.summary.lost = self.summary.lost.saturating_add(*count),
            Item::Sample(sample) => self.add_sample(sample),
        }
    }

    /// After each checkpoint of a recording, all modules come again, mostly the same ones.
    fn map(&mut self, module: &Module) {
        let is_news = self.symbolizer.map(module);
        if is_kernel_address(module.base) {
            if is_news {
                self.spaces.values_mut().for_each(Space::forget_code);
            }
            return;
        }
        if is_news {
            self.spaces.remove(&module.pid);
        }
        if self.processes.mapped(module) {
            self.forget_names(module.pid);
        }
    }

    /// Counts, and looks up names. `trace_bytes` is the size of the recording on disk.
    pub fn finish(mut self, trace_bytes: u64) -> Report {
        self.summary.trace_bytes = trace_bytes;
        let lost = Stop::ALL.len();
        let stops = std::iter::once(("stack_lost", self.stops[lost]));
        let stops = stops.chain(Stop::ALL.iter().map(|&stop| (stop.name(), self.stops[stop as usize])));
        self.summary.stops = stops.filter(|&(_, samples)| samples > 0).collect();
        self.summary.processes = self.threads.by_process();
        self.stacks.close();
        let mut notes = self.symbolizer.notes();
        if self.unplaced.samples > 0 {
            notes.push(format!(
                "more different stacks than {} frames, so {} samples end in {LEFT_OUT} in trees of calls, which \
                 --max-frames can avoid; the functions' counts are whole",
                self.options.max_frames, self.unplaced.samples,
            ));
        }
        let calls = self.calls.into_counts(&self.symbolizer);
        let durations = self.durations.into_counts(&self.symbolizer);
        let names = self.symbolizer.into_names();
        let functions = self
            .functions
            .into_counts(&self.stacks, &self.unplaced, names.locations());
        notes.extend(note_of_generated_code(&functions, self.summary.samples));
        let report = Report::new(self.summary, functions, calls, notes);
        report
            .with_durations(durations)
            .with_stacks(self.stacks, names, self.threads.into_list(), self.samples)
    }

    /// Starts to collect the names of all addresses, for [`Profile::into_symbols`]. `earlier` are
    /// names that the recording has already: they are kept where there are no others now.
    pub fn collecting(options: Options, earlier: Option<Symbols>) -> Profile {
        let mut symbolizer = Symbolizer::new(options.system.clone())
            .below(options.sysroot.clone())
            .fetching(options.fetch.clone())
            .holding(options.held.clone())
            .announced_before(&options.announced)
            .noting_moments();
        if let Some(symbols) = earlier {
            symbolizer = symbolizer.falling_back_to(symbols);
        }
        let options = Options {
            wakers: true,
            ..options
        };
        Profile {
            measured: None,
            ..Self::with_symbolizer(options, symbolizer)
        }
    }

    /// Counts what a recording with this origin measures, unless the options say otherwise.
    pub(crate) fn of_origin(mut self, origin: &Origin) -> Profile {
        let measured = self.options.measured.unwrap_or(origin.measured);
        self.measured = Some(measured);
        let time = |name: &str| Measure {
            name: name.to_owned(),
            is_time: true,
        };
        self.summary.measure = match (measured, &origin.event) {
            (Measured::OffCpu, _) => Some(time("off-cpu")),
            (Measured::Wall, _) => Some(time("wall")),
            (Measured::Cpu, Some((name, count))) => {
                self.period = *count;
                Some(Measure {
                    name: name.clone(),
                    is_time: false,
                })
            }
            (Measured::Cpu, None) => None,
        };
        if origin.min_duration.is_some() {
            let is_time = self.options.durations;
            let name = if is_time { "call time" } else { "calls" };
            self.summary.measure = Some(Measure {
                name: name.to_owned(),
                is_time,
            });
        }
        if origin.events.len() > 1 {
            let wanted = self.options.event.as_ref();
            let number = origin
                .events
                .iter()
                .position(|(name, _)| Some(name) == wanted)
                .unwrap_or(0);
            let (name, count) = &origin.events[number];
            self.event = u8::try_from(number).ok();
            self.period = (*count).max(1);
            // Samples of a clock are what is counted without events.
            self.summary.measure = (*count > 0).then(|| Measure {
                name: name.clone(),
                is_time: false,
            });
            let counted = origin.events.iter().zip(0..).map(|((name, count), at)| EventCount {
                name: name.clone(),
                samples: 0,
                count: Some(0).filter(|_| *count > 0),
                period: *count,
                is_shown: at == number,
            });
            self.summary.events = counted.collect();
        }
        if measured != Measured::Cpu {
            self.period = origin.frequency.map_or(0, |frequency| 1_000_000 / frequency);
            self.summary.waits = Some(0);
        }
        self
    }

    /// The names of all addresses of the recording.
    pub fn into_symbols(self) -> Symbols {
        self.symbolizer.into_symbols()
    }

    /// Keeps the symbols of these files, and reads those of others again.
    pub(crate) fn keep_symbols_of(&mut self, most: Kept) {
        self.symbolizer.keep_symbols_of(most);
    }

    /// The next items name this file.
    pub(crate) fn hold(&mut self, file: HeldFile) {
        self.symbolizer.hold(vec![file]);
    }

    /// A process has announced a function.
    pub(crate) fn announce_at(&mut self, at: &AnnouncedAt) {
        self.symbolizer.announce_at(at);
    }

    fn forget_modules(&mut self, pid: u32) {
        self.symbolizer.clear(pid);
        self.spaces.remove(&pid);
    }

    fn forget_names(&mut self, pid: u32) {
        if let Some(space) = self.spaces.get_mut(&pid) {
            space.forget_names();
        }
    }

    fn add_numbered(&mut self, sample: &NumberedSample<'_>) {
        let item = Sample {
            time: sample.time,
            cpu: sample.cpu,
            pid: sample.pid,
            tid: sample.tid,
            frames: &[],
            stop: None,
            live: false,
            in_kernel: false,
            wait: sample.wait.map(|wait| Wait {
                kind: wait.kind,
                duration: wait.duration,
                ready: wait.ready,
                waker: None,
            }),
            passed: sample.passed,
            detail: sample.detail,
        };
        let Some(thread) = self.accept(&item) else {
            return;
        };
        let mut walked = self.walk_numbered(sample, thread);
        if let Some(waker) = sample.wait.and_then(|wait| wait.waker)
            && self.options.wakers
        {
            let frames = waker.frames();
            self.add_waker(&mut walked, (waker.pid, waker.tid, waker.interrupt), &frames);
        }
        self.count(&item, thread, &walked, sample.ip);
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        let Some(thread) = self.accept(sample) else {
            return;
        };
        let is_unseen = sample.wait.is_some() && matches!(sample.frames, [frame] if frame.address == 0);
        let frames = if is_unseen { &[] } else { sample.frames };
        let mut walked = self.walk_frames(sample.pid, frames, (sample.stop, sample.live), thread);
        walked.in_kernel = sample.in_kernel;
        if let Some(waker) = sample.wait.and_then(|wait| wait.waker) {
            self.add_waker(&mut walked, (waker.pid, waker.tid, waker.interrupt), waker.frames);
        }
        let ip = sample.frames.first().map_or(0, |frame| frame.address);
        self.count(sample, thread, &walked, ip);
    }

    /// The thread of the sample, if the sample counts as far as its stack need not be known.
    fn accept(&mut self, sample: &Sample<'_>) -> Option<ThreadId> {
        let begin = *self.begin.get_or_insert(sample.time);
        let is_measured = match (self.measured, sample.wait.map(|wait| wait.kind)) {
            (None | Some(Measured::Wall), _) => true,
            (Some(Measured::Cpu), wait) => wait.is_none(),
            (Some(Measured::OffCpu), wait) => matches!(wait, Some(WaitKind::Blocked | WaitKind::Unfinished)),
        };
        if !is_measured {
            return None;
        }
        let monotonic = sample.time.saturating_sub(self.options.clock_offset);
        if self.symbolizer.advance(sample.pid, monotonic)
            && let Some(space) = self.spaces.get_mut(&sample.pid)
        {
            space.forget_code();
        }
        let filter = &self.options.filter;
        if !filter.has_time(sample.time.saturating_sub(begin)) || !filter.has_cpu(sample.cpu) {
            return None;
        }
        let space = self.spaces.entry(sample.pid).or_default();
        let thread = *space
            .threads
            .entry(sample.tid)
            .or_insert_with(|| self.threads.number(&self.processes, sample.pid, sample.tid));
        let is_wanted = filter.is_everyone() || filter.has_thread(self.threads.get(thread));
        (is_wanted && self.is_of_event(sample.detail)).then_some(thread)
    }

    /// Counts a sample for its event, and returns whether that is the one that is looked at.
    fn is_of_event(&mut self, detail: Detail) -> bool {
        let (number, own) = match detail {
            Detail::Event(number) => (number, None),
            Detail::Counted { event, count } => (event, Some(count)),
            _ => return true,
        };
        if self.measured.is_none() {
            return true;
        }
        if let Some(event) = self.summary.events.get_mut(usize::from(number)) {
            event.samples += 1;
            let more = own.unwrap_or(event.period);
            event.count = event.count.map(|count| count.saturating_add(more));
        }
        self.event.is_none_or(|event| event == number)
    }

    fn count(&mut self, sample: &Sample<'_>, thread: ThreadId, walked: &Walked, ip: u64) {
        if self.options.filter.function.is_some() && !self.is_through(walked) {
            return;
        }
        let microseconds = |nanoseconds: u64| nanoseconds.saturating_add(500) / 1000;
        let mut weight = match (sample.wait, sample.detail) {
            (Some(wait), _) => microseconds(wait.duration),
            (None, Detail::Counted { count, .. }) => count,
            (None, _) => self.period,
        };
        if let Detail::Call(call) = sample.detail {
            let own = self.durations.add((sample.pid, sample.tid), walked.leaf, call);
            if self.options.durations {
                weight = microseconds(own);
            }
        }
        self.summary.taken += 1;
        if let Some(waits) = self.summary.waits.as_mut().filter(|_| sample.wait.is_some()) {
            *waits += 1;
        }
        let add = |count: &mut u64, is_so: bool| *count = count.saturating_add(if is_so { weight } else { 0 });
        add(&mut self.summary.samples, true);
        let stop = walked.stop;
        add(&mut self.summary.complete, stop == Some(Stop::EndOfStack));
        add(&mut self.summary.live, walked.live);
        self.summary.frames += u64::from(walked.frames);
        let (first, last) = self.summary.times.unwrap_or((sample.time, sample.time));
        self.summary.times = Some((first.min(sample.time), last.max(sample.time)));
        add(
            &mut self.stops[stop.map_or(Stop::ALL.len(), |stop| stop as usize)],
            true,
        );
        let walk = match (stop, walked.in_kernel, walked.live) {
            (Some(Stop::NoUserStack), ..) => NO_WALK,
            (_, true, false) => WALKED_IN_KERNEL,
            (_, true, true) => WALKED_IN_KERNEL_LATE,
            (_, false, false) => WALKED_COPY,
            (_, false, true) => WALKED_COPY_LATE,
        };
        let walks = &mut self.summary.walks;
        match walks.iter_mut().find(|(name, _)| *name == walk) {
            Some((_, count)) => add(count, true),
            None => walks.push((walk, weight)),
        }
        self.threads.count(thread, weight);
        self.stacks.count(walked.stack, weight);
        if walked.is_cut {
            add(&mut self.unplaced.samples, true);
            self.count_unplaced(walked, weight);
        }
        if !sample.passed.is_empty()
            && let Some(leaf) = walked.leaf
        {
            self.calls.add(sample.pid, ip, sample.passed, leaf, &self.symbolizer);
        }
        if self.options.keep_samples {
            self.samples.push(StackSample {
                time: sample.time,
                stack: walked.stack,
                thread,
                cpu: sample.cpu,
                weight,
                stop,
                live: walked.live,
            });
        }
    }
}

/// How much of the time is in code without names that a process has made: its functions are
/// addresses, most of them in the table's last line.
fn note_of_generated_code(functions: &[FunctionCount], samples: u64) -> Option<String> {
    let generated = functions.iter().filter(|function| function.module == NO_FILE);
    let generated = generated.fold(0_u64, |sum, function| sum.saturating_add(function.samples));
    let share = generated as f64 / samples.max(1) as f64;
    (share >= 0.01).then(|| {
        format!(
            "{:.1} % of the samples ran code that is in no file and has no name; code that a program makes at run \
             time has names if the program writes a perf map or a jitdump",
            100.0 * share
        )
    })
}
