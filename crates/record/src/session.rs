//! Runs a recording from start to end.

mod finished_calls;

use std::cell::OnceCell;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use backtrail_arch::{Arch, Register};
use backtrail_args::abi::Abi;
use backtrail_cfi::announced::AnnouncedAt;
use backtrail_cfi::tables::Tables;
use backtrail_elf::HeldFile;
use backtrail_process::perf::{self, Build, Cause, Record, Sampler, Trigger, UserState};
use backtrail_process::proc;
use backtrail_process::sys::{SignalSource, give_back_memory};
use backtrail_recording::{
    Detail, Module, Observer, ProcessLabels, Sample, Stop, WriteError, Writer, is_kernel_address,
};
use rustc_hash::FxHashMap;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::announced::Announced;
use crate::arena::Arena;
use crate::calls::Calls;
use crate::command::Subject;
use crate::elsewhere::Wanted;
use crate::groups::directories;
use crate::kernel::InKernel;
use crate::kernel_module;
use crate::memory_image::MappedAt;
use crate::modules::{FileKey, Known, Modules};
use crate::numbers::recorded;
use crate::probed::ProbedFiles;
use crate::process::{Code, Process};
use crate::spaces::Spaces;
use crate::stack::StackWalker;
use crate::store::Store;
use crate::view::SpaceView;
use crate::waits::{Waiting, Waits, Walked};
use crate::{Error, Incomplete, Machine, NameSources, Occasion, Options, Outcome, Progress, Target, Walk};

/// The recorder's longest sleep: it bounds the age of a sample that no full ring announces. Until
/// one shows that its thread has left its stack for another one, the thread's samples are cut.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// How often it is looked whether the programs have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest sleep, right after something has started: samples of a new stack are cut until its
/// missing pages are present. It is longer if a clock's next sample comes later.
const SHORTEST_SLEEP: Duration = Duration::from_millis(4);
/// Sleeps grow with the time since then: any period so far has at least this many of them.
const SLEEPS_SINCE_NEWS: u32 = 16;
/// How long records may wait in memory before they are written.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);
/// How often processes and files that are gone are looked for.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// Why the recording is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The programs have ended.
    Ended,
    /// The time is over, or the trace cannot be written any more; a command runs on.
    Stopped,
    /// The user does not want to wait.
    Interrupted,
    /// It is not over: memory of files that are gone can be given back now.
    Renewed,
}

/// Who gets the items of a recording that is not written, and what names come from.
pub(crate) struct Observing {
    pub(crate) observer: Observer,
    pub(crate) files: Box<dyn FnMut(HeldFile)>,
    pub(crate) functions: Box<dyn FnMut(AnnouncedAt)>,
}

/// What a recording works with.
struct Surroundings<'o> {
    sampler: Sampler,
    subject: Subject,
    signals: &'o SignalSource,
    /// `None` if items are only observed.
    store: Option<Store<'o>>,
    /// When it is over at the latest.
    end: Option<Instant>,
    shortest_sleep: Duration,
    /// When what is gone was last forgotten.
    tidied: Instant,
}

/// Records to traces, or only passes the items to an observer.
pub(crate) fn run(
    options: &Options,
    signals: &SignalSource,
    observing: Option<Observing>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Outcome, Error> {
    // If this fails and there are more threads than descriptors, opening an event reports it.
    let _ = perf::raise_open_files();
    let probed = ProbedFiles::of(&options.trigger);
    let sampling = perf::Options {
        trigger: options.trigger.clone(),
        stack_bytes: options.stack_bytes,
    };
    let mut sampler = match &options.target {
        Target::Command(_) => Sampler::for_next_child(&sampling),
        Target::Processes(pids) => Sampler::for_processes(&sampling, pids),
        Target::Machine(Machine { groups, .. }) if groups.is_empty() => Sampler::for_machine(&sampling),
        Target::Machine(Machine { groups, .. }) => Sampler::for_groups(&sampling, &directories(groups)?),
    }
    .map_err(Error::Sampling)?;
    let is_observed = observing.is_some();
    let (store, writer, files, functions) = match observing {
        Some(observing) => {
            let writer = Writer::observed(observing.observer);
            (None, writer, Some(observing.files), Some(observing.functions))
        }
        None => {
            let (store, writer) = Store::begin(options, sampler.cpus().collect(), progress)?;
            (Some(store), writer, None, None)
        }
    };
    let tables = Tables::open(options.cache.clone());
    let arena = Arena::default();
    let mut modules = Modules::new(&tables, &arena);
    modules.want_files(match files {
        _ if !options.hold_files => Wanted::Nobody,
        Some(files) => Wanted::By(files),
        None => Wanted::Kept,
    });
    let mut session = Session::new(modules, sampler.stack_bytes(), writer);
    session.announced.pass_to(functions);
    if let Trigger::Calls(functions, at_least) = &options.trigger {
        session.calls = Some(Calls::new(functions, *at_least));
    }
    if let Trigger::Entries(_) | Trigger::Calls(..) = options.trigger {
        session.passing = Abi::of(Arch::native().cpu).map_or(&[], Abi::general_registers);
    }
    session.walker.prepare(&mut sampler);
    session.modules.make_tables_aside();
    session.kernel_walks = InKernel::new(options.walk, &mut sampler);
    session.outcome.no_kernel_walks = options.walk == Walk::Kernel && session.kernel_walks.is_impossible();
    if let Trigger::Waits(_) = options.trigger {
        session.outcome.no_wakers = !sampler.knows_wakers();
        // The kernel counts switches as its own.
        session.outcome.no_places = !sampler.samples_kernel();
        session.waits.have_no_stacks = session.outcome.no_places;
    }
    if let Target::Machine(_) = options.target {
        // A command's first moments count too.
        session.enable(&mut sampler);
    }
    let subject = match signals.unblocked(|| Subject::begin(&options.target, is_observed)) {
        Ok(subject) => subject,
        Err(error) => {
            session.writer.discard();
            return Err(error);
        }
    };
    prefer_recorder();
    if let Target::Processes(_) = options.target {
        session.enable(&mut sampler);
    }
    let end = options.duration.map(|duration| Instant::now() + duration);
    let mut surroundings = Surroundings {
        sampler,
        subject,
        signals,
        store,
        end,
        shortest_sleep: shortest_sleep(&options.trigger),
        tidied: Instant::now(),
    };
    let (mut ending, mut state) = session.part(&mut surroundings);
    while ending == Ending::Renewed {
        // Tables of files that are gone go with the arena; the others are read again when a stack
        // reaches into them.
        let arena = Arena::default();
        let session = Session::renewed(state, &tables, &arena);
        (ending, state) = session.part(&mut surroundings);
    }
    let Surroundings {
        sampler,
        mut subject,
        store,
        ..
    } = surroundings;
    let kernel = sampler.samples_kernel();
    drop((sampler, store));
    let mut outcome = state.outcome;
    outcome.names = NameSources {
        held: state.modules.held(),
        announced: state.announced.into_functions(),
    };
    outcome.not_held = state.modules.not_held();
    (outcome.problems, outcome.further_problems) = state.modules.into_problems();
    outcome.kernel = kernel;
    outcome.occasion = Occasion::from(&options.trigger);
    outcome.is_replaced = probed.are_replaced();
    outcome.cpu_time = process_cpu_time();
    outcome.set_id = subject.has_set_id();
    if ending != Ending::Interrupted && !is_observed {
        subject.wait(signals, || progress(Progress::Waiting));
    }
    outcome.exit_status = subject.exit_status();
    Ok(outcome)
}

/// The shortest sleep that gains anything: what a sample has shown is useful from the next one on.
fn shortest_sleep(trigger: &Trigger) -> Duration {
    match trigger {
        &Trigger::Clock(frequency) => {
            let period = Duration::from_nanos(1_000_000_000 / frequency.max(1));
            period.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
        }
        Trigger::Entries(_) | Trigger::Calls(..) | Trigger::Waits(_) | Trigger::Counted(_) => SHORTEST_SLEEP,
    }
}

/// Asks for a higher scheduling priority, after the command has inherited ours: a late recorder
/// loses samples, and the chance to complete stacks. Most users may not raise it.
fn prefer_recorder() {
    const NICE: i32 = -11;
    if let Ok(own) = getpriority_process(None)
        && own > NICE
    {
        let _ = setpriority_process(None, NICE);
    }
}

/// The recorder's state while it records.
pub(crate) struct Session<'a> {
    pub(crate) modules: Modules<'a>,
    spaces: Spaces,
    pub(crate) walker: StackWalker,
    code: Code,
    announced: Announced,
    kernel_walks: InKernel<'a>,
    /// The most bytes of stack that a sample's copy has.
    stack_bytes: u32,
    pub(crate) writer: Writer,
    /// The kernel's module, written before the first sample in the kernel, which may never come.
    pub(crate) kernel: OnceCell<Option<Module>>,
    /// Names by thread.
    names: FxHashMap<u32, Box<str>>,
    waits: Waits,
    /// If calls are followed until they return.
    calls: Option<Calls>,
    /// Mappings that the current stack reaches into.
    touched: Vec<u32>,
    /// DWARF numbers of the registers that pass arguments, if samples are calls.
    passing: &'static [u8],
    /// Their values in the current call.
    passed: Vec<u64>,
    /// Whether something has started since the last check.
    has_news: bool,
    /// Whether a signal asked to stop, and the command has it.
    is_interrupted: bool,
    pub(crate) outcome: Outcome,
    failure: Option<WriteError>,
}

/// What remains of a session without its tables.
struct State {
    modules: Known,
    announced: Announced,
    spaces: Spaces,
    walker: StackWalker,
    kernel_walks: InKernel<'static>,
    stack_bytes: u32,
    writer: Writer,
    kernel: OnceCell<Option<Module>>,
    names: FxHashMap<u32, Box<str>>,
    waits: Waits,
    calls: Option<Calls>,
    passing: &'static [u8],
    is_interrupted: bool,
    outcome: Outcome,
    failure: Option<WriteError>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(modules: Modules<'a>, stack_bytes: u32, writer: Writer) -> Self {
        Session {
            modules,
            spaces: Spaces::default(),
            walker: StackWalker::new(),
            code: Code::default(),
            announced: Announced::default(),
            kernel_walks: InKernel::default(),
            stack_bytes,
            writer,
            kernel: OnceCell::new(),
            names: FxHashMap::default(),
            waits: Waits::default(),
            calls: None,
            touched: Vec::new(),
            passing: &[],
            passed: Vec::new(),
            has_news: false,
            is_interrupted: false,
            outcome: Outcome::default(),
            failure: None,
        }
    }

    /// Everything that does not depend on tables.
    fn into_state(self) -> State {
        State {
            modules: self.modules.without_contents(),
            announced: self.announced,
            spaces: self.spaces,
            walker: self.walker,
            kernel_walks: self.kernel_walks.without_tables(),
            stack_bytes: self.stack_bytes,
            writer: self.writer,
            kernel: self.kernel,
            names: self.names,
            waits: self.waits,
            calls: self.calls,
            passing: self.passing,
            is_interrupted: self.is_interrupted,
            outcome: self.outcome,
            failure: self.failure,
        }
    }

    /// Continues with tables in a new arena.
    fn renewed(state: State, tables: &'a Tables, arena: &'a Arena) -> Session<'a> {
        Session {
            announced: state.announced,
            spaces: state.spaces,
            walker: state.walker,
            kernel_walks: state.kernel_walks,
            kernel: state.kernel,
            names: state.names,
            waits: state.waits,
            calls: state.calls,
            passing: state.passing,
            is_interrupted: state.is_interrupted,
            outcome: state.outcome,
            failure: state.failure,
            ..Session::new(
                Modules::again(state.modules, tables, arena),
                state.stack_bytes,
                state.writer,
            )
        }
    }

    /// Records until it is over, or until memory can be given back.
    fn part(mut self, with: &mut Surroundings<'_>) -> (Ending, State) {
        let ending = self.record(with);
        if ending != Ending::Renewed {
            let _ = with.sampler.set_enabled(false);
            self.drain(&mut with.sampler);
            self.modules.take_made(true);
            self.finish(with.store.as_mut());
        }
        (ending, self.into_state())
    }

    fn record(&mut self, with: &mut Surroundings<'_>) -> Ending {
        let begin = Instant::now();
        let end = with.end;
        let mut last_flush = begin;
        let mut last_news = begin;
        let mut tables = 0;
        // A command may have ended before its signal could be collected.
        let mut last_look: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if self.failure.is_some() || end.is_some_and(|end| now >= end) {
                return Ending::Stopped;
            }
            let mut others = vec![with.signals.as_fd()];
            others.extend(with.subject.descriptors());
            let longest = ((now - last_news) / SLEEPS_SINCE_NEWS).clamp(with.shortest_sleep, LONGEST_SLEEP);
            let longest = end.map_or(longest, |end| longest.min(end - now));
            let is_signalled = with.sampler.wait(&others, longest);
            self.drain(&mut with.sampler);
            if std::mem::take(&mut self.has_news) {
                last_news = now;
            }
            if last_flush.elapsed() >= FLUSH_INTERVAL {
                last_flush = Instant::now();
                let flushed = self.writer.flush();
                self.check(flushed);
                if let Some(store) = &mut with.store {
                    store.measure();
                }
                // Making tables takes several times their memory, for a moment.
                if std::mem::replace(&mut tables, self.modules.tables()) != self.modules.tables() {
                    give_back_memory();
                }
            }
            if self.tidy(with) {
                return Ending::Renewed;
            }
            if !is_signalled && last_look.is_some_and(|look| now - look < LOOK_INTERVAL) {
                continue;
            }
            last_look = Some(now);
            while let Some(signal) = with.signals.next() {
                let is_request = |store: &mut Store<'_>| store.takes(signal.number);
                if signal.number == libc::SIGCHLD || with.store.as_mut().is_some_and(is_request) {
                    continue;
                }
                if self.is_interrupted || matches!(with.subject, Subject::Processes(_) | Subject::Machine) {
                    return Ending::Interrupted;
                }
                // The first signal is for the command: its end is part of the recording. A signal
                // from the terminal has reached it already.
                self.is_interrupted = true;
                if signal.sent {
                    with.subject.forward(signal.number);
                }
            }
            if with.subject.ended() {
                return Ending::Ended;
            }
        }
    }

    /// Lets the store do what is due, and forgets what is gone. Returns whether much memory can be
    /// given back.
    fn tidy(&mut self, with: &mut Surroundings<'_>) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let names = || name_sources(&self.modules, &self.announced);
        let looked = with.store.as_mut().map_or(Ok(false), |store| {
            store.look(&mut self.writer, Instant::now(), with.signals, &names)
        });
        let is_another = matches!(looked, Ok(true));
        self.check(looked.map(drop));
        if is_another {
            self.modules.release_held();
            self.announced.release();
        }
        if !is_another && with.tidied.elapsed() < TIDY_INTERVAL {
            return false;
        }
        with.tidied = Instant::now();
        self.spaces.forget_ended(&mut self.modules);
        self.names.retain(|tid, _| proc::exists(*tid));
        self.modules.forget_unused();
        self.modules.give_back();
        self.modules.are_mostly_gone()
    }

    fn enable(&mut self, sampler: &mut Sampler) {
        let enabled = sampler.set_enabled(true).map_err(WriteError::from);
        self.check(enabled);
    }

    fn drain(&mut self, sampler: &mut Sampler) {
        sampler.drain(|stream, time, record| {
            if self.failure.is_none() {
                let done = self.take(stream, time, record);
                self.check(done);
            }
        });
        self.modules.take_made(false);
        self.walker.prepare_for_newer(sampler);
        self.kernel_walks.prepare(sampler, self.outcome.lost);
    }

    pub(crate) fn finish(&mut self, store: Option<&mut Store<'_>>) {
        let now = perf::monotonic_ns();
        for (tid, waiting) in self.waits.drain() {
            if self.failure.is_none() {
                let written = self.wait(0, now, tid, waiting, false);
                self.check(written);
            }
        }
        if let Some(calls) = &mut self.calls {
            calls.end_all();
        }
        let written = self.write_finished_calls(0, now);
        self.check(written);
        self.outcome.calls = self.calls.as_ref().map(|calls| calls.counts);
        if self.failure.is_none() {
            let finished = self.writer.flush();
            self.check(finished);
        }
        self.outcome.trace_bytes = self.writer.bytes();
        if let Some(store) = store {
            if self.failure.is_none() {
                let names = name_sources(&self.modules, &self.announced);
                let ended = store.end(&mut self.writer, names);
                self.check(ended);
            }
            self.outcome.trace_bytes = store.bytes(&self.writer);
            (self.outcome.recordings, self.outcome.forgotten) = (store.recordings, store.forgotten);
        }
        (self.outcome.kernel_table_bytes, self.outcome.kernel_rows) = self.kernel_walks.size();
        self.outcome.missed = self.kernel_walks.missed();
        self.outcome.incomplete = self.failure.as_ref().map(Incomplete::new);
    }

    pub(crate) fn check(&mut self, result: Result<(), WriteError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    pub(crate) fn take(&mut self, stream: usize, time: u64, record: Record<'_>) -> Result<(), WriteError> {
        match record {
            Record::Sample(sample) => match sample.cause {
                Cause::Event(probe) if self.calls.is_some() => self.probe(stream, time, probe, &sample),
                Cause::Event(number) => {
                    let detail = Detail::Event(u8::try_from(number).unwrap_or(u8::MAX));
                    self.sample(stream, time, &sample, detail)
                }
                Cause::Counted { event, count } => {
                    let event = u8::try_from(event).unwrap_or(u8::MAX);
                    self.sample(stream, time, &sample, Detail::Counted { event, count })
                }
                Cause::Time => self.sample(stream, time, &sample, Detail::Nothing),
                Cause::Switch => {
                    let stack = self.stack_of(time, &sample);
                    self.waits.leave(time, &sample, stack);
                    Ok(())
                }
                Cause::Waking { woken, interrupt } => {
                    if self.waits.is_blocked(woken) {
                        let stack = self.stack_of(time, &sample);
                        self.waits.wake(time, woken, interrupt, &sample, stack);
                    }
                    Ok(())
                }
            },
            Record::Switch {
                pid,
                tid,
                out,
                preempted,
            } => {
                if out {
                    self.waits.left(time, (pid, tid), preempted);
                    return Ok(());
                }
                match self.waits.end(tid) {
                    Some(waiting) => self.wait(stream, time, tid, waiting, true),
                    None => Ok(()),
                }
            }
            Record::Mapping(mapping) => {
                self.map(&mapping);
                Ok(())
            }
            Record::Name { pid, tid, exec, name } => {
                self.names.insert(tid, String::from_utf8_lossy(name).into());
                self.writer.forget_name(recorded(tid));
                if exec {
                    self.has_news = true;
                    self.walker.forget_thread(tid);
                    self.spaces.exec(pid);
                    self.announced.forget(pid);
                    self.kernel_walks.forget(pid);
                    self.leave_calls(stream, time, |calls| calls.forget_process(pid))?;
                    self.writer.exec(time, recorded(pid))?;
                }
                Ok(())
            }
            Record::Fork(task) => {
                self.waits.begin(task.tid);
                // A new process has its parent's stack; a new thread has one that nobody has
                // touched.
                self.has_news |= task.parent_pid == task.pid;
                self.spaces.fork(task.parent_pid, task.pid);
                if task.parent_pid != task.pid {
                    self.writer.forget_process(recorded(task.pid));
                }
                // A new thread has the name of its creator until it sets another.
                if let Some(name) = self.names.get(&task.parent_tid).cloned() {
                    self.names.insert(task.tid, name);
                }
                self.writer
                    .fork(time, recorded(task.pid), recorded(task.tid), recorded(task.parent_pid))
            }
            Record::Exit(task) => {
                self.names.remove(&task.tid);
                self.waits.exit(task.tid);
                self.leave_calls(stream, time, |calls| calls.exit(task.pid, task.tid))?;
                self.walker.forget_thread(task.tid);
                self.writer.exit(time, recorded(task.pid), recorded(task.tid))?;
                self.writer.forget_name(recorded(task.tid));
                if self.spaces.exit(task.pid) {
                    self.announced.forget(task.pid);
                    self.leave_calls(stream, time, |calls| calls.forget_process(task.pid))?;
                    self.writer.forget_labels(recorded(task.pid));
                    self.kernel_walks.forget(task.pid);
                    self.writer.forget_process(recorded(task.pid));
                }
                Ok(())
            }
            Record::Lost(count) => {
                self.outcome.lost += count;
                self.waits.records_lost();
                if let Some(calls) = &mut self.calls {
                    calls.records_lost();
                }
                self.spaces.records_lost();
                self.walker.forget();
                self.writer.lost(stream, time, count)
            }
            Record::Throttled => {
                self.outcome.throttled += 1;
                Ok(())
            }
            Record::Other => Ok(()),
        }
    }

    fn map(&mut self, mapping: &perf::Mapping<'_>) {
        let at = MappedAt {
            pid: mapping.pid,
            start: mapping.start,
            end: mapping.start.saturating_add(mapping.len),
            file_offset: mapping.file_offset,
        };
        let key = match mapping.build {
            Build::Id(id) if !id.is_empty() => FileKey::BuildId(id.to_vec()),
            Build::Inode { major, minor, inode } if inode != 0 => FileKey::Inode {
                device: (major, minor),
                inode,
            },
            _ => FileKey::Unidentified,
        };
        let path = String::from_utf8_lossy(mapping.path).into_owned();
        if self.spaces.map(at, key, path, &mut self.modules) {
            self.writer.forget_process(mapping.pid);
        }
    }

    /// The stack of a thread that leaves the CPU or wakes another one.
    fn stack_of(&mut self, time: u64, sample: &perf::Sample<'_>) -> Walked {
        let stop = self.walk_again(time, sample);
        Walked {
            frames: std::mem::take(&mut self.walker.frames),
            stop: Some(stop),
            live: self.walker.read_apart,
        }
    }

    /// Records that a thread goes on, or that it still waits at the end.
    fn wait(
        &mut self,
        stream: usize,
        time: u64,
        tid: u32,
        mut waiting: Waiting,
        is_over: bool,
    ) -> Result<(), WriteError> {
        let pid = waiting.pid;
        std::mem::swap(&mut self.walker.frames, &mut waiting.stack.frames);
        let stop = waiting.stack.stop.unwrap_or(Stop::NoUserStack);
        self.announce(time, pid, tid, stop)?;
        std::mem::swap(&mut self.walker.frames, &mut waiting.stack.frames);
        if let Some(waker) = waiting.waker() {
            let (pid, tid) = (waker.pid, waker.tid);
            self.walker.frames.clone_from(&waker.stack.frames);
            let stop = waker.stack.stop.unwrap_or(Stop::NoUserStack);
            self.announce(time, pid, tid, stop)?;
            self.outcome.wakers += 1;
        }
        self.outcome.waits += 1;
        self.outcome.count(stop, waiting.stack.live, waiting.stack.frames.len());
        let mut wait = waiting.wait(time, is_over);
        if let Some(waker) = &mut wait.waker {
            (waker.pid, waker.tid) = (recorded(waker.pid), recorded(waker.tid));
        }
        self.writer.sample(
            stream,
            &Sample {
                time,
                cpu: 0,
                pid: recorded(pid),
                tid: recorded(tid),
                frames: &waiting.stack.frames,
                stop: Some(stop),
                live: waiting.stack.live,
                in_kernel: false,
                wait: Some(wait),
                passed: &[],
                detail: Detail::Nothing,
            },
        )
    }

    /// Walks a stack, and again if its process has mappings that no record has described.
    fn walk_again(&mut self, time: u64, sample: &perf::Sample<'_>) -> Stop {
        let mut stop = self.walk(time, sample);
        // The mapping may be in a lost record, or older than the recording.
        if stop == Stop::NoModule && self.spaces.refresh(sample.pid, &mut self.modules) {
            stop = self.walk(time, sample);
        }
        self.walker.without_gone_program(sample, stop)
    }

    fn note_passed(&mut self, sample: &perf::Sample<'_>) {
        self.passed.clear();
        if let UserState::Native { registers, .. } = &sample.user {
            let passed = self.passing.iter().map(|&number| registers.get(Register(number)));
            self.passed.extend(passed.map_while(|value| value));
        }
    }

    fn sample(
        &mut self,
        stream: usize,
        time: u64,
        sample: &perf::Sample<'_>,
        detail: Detail,
    ) -> Result<(), WriteError> {
        let (pid, tid) = (sample.pid, sample.tid);
        let stop = self.walk_again(time, sample);
        self.has_news |= stop == Stop::BeyondCopy;
        self.prepare_walks(sample, stop);
        self.announce(time, pid, tid, stop)?;
        self.outcome
            .count(stop, self.walker.read_apart, self.walker.frames.len());
        self.note_passed(sample);
        self.writer.sample(
            stream,
            &Sample {
                time,
                cpu: 0,
                pid: recorded(pid),
                tid: recorded(tid),
                frames: &self.walker.frames,
                stop: Some(stop),
                live: self.walker.read_apart,
                in_kernel: matches!(sample.user, UserState::Walked { .. }),
                wait: None,
                passed: &self.passed,
                detail,
            },
        )
    }

    /// Has the kernel walk the next stacks of this process, or copy them, as this one has shown.
    fn prepare_walks(&mut self, sample: &perf::Sample<'_>, stop: Stop) {
        match sample.user {
            UserState::Native { .. } => {
                if let Some(walks) = self.kernel_walks.wanted(sample.pid, stop) {
                    let space = self.spaces.get(sample.pid, &mut self.modules);
                    walks.install(sample.pid, space, &self.modules);
                }
            }
            UserState::Walked { .. } => {
                self.outcome.walked_in_kernel += 1;
                // The kernel's tables were not those of the process at that moment.
                if stop != Stop::EndOfStack {
                    self.kernel_walks.forget(sample.pid);
                }
            }
            _ => {}
        }
    }

    fn walk(&mut self, time: u64, sample: &perf::Sample<'_>) -> Stop {
        let space = self.spaces.get(sample.pid, &mut self.modules);
        let process = Process {
            pid: sample.pid,
            arch: self.walker.arch_of(space),
            space,
            modules: &self.modules,
        };
        let view = SpaceView::new(process, &self.code, &self.announced);
        let stop = self.walker.walk(time, sample, self.stack_bytes, &view);
        self.announced.note(&process, &self.code, time, &self.walker.frames);
        stop
    }

    /// Writes what a reader needs for the current stack: the modules that it reaches into, and the
    /// thread's name.
    fn announce(&mut self, time: u64, pid: u32, tid: u32, stop: Stop) -> Result<(), WriteError> {
        let is_cut = may_be_for_lack_of_a_table(stop);
        let leaf = self.walker.frames.first();
        if leaf.is_some_and(|leaf| is_kernel_address(leaf.address))
            && self.writer.announce_module(kernel_module::NO_PROCESS, 0)
            && let Some(kernel) = self.kernel.get_or_init(kernel_module::kernel)
        {
            self.writer.module(recorded(tid), &Module { time, ..kernel.clone() })?;
        }
        let space = self.spaces.get(pid, &mut self.modules);
        self.touched.clear();
        // A frame's caller is mostly in the same module.
        let mut last = 0..0;
        for frame in &self.walker.frames {
            if last.contains(&frame.address) {
                continue;
            }
            let Some(mapping) = space.find(frame.address) else {
                continue;
            };
            last = mapping.start..mapping.end;
            if self.touched.contains(&mapping.id) {
                continue;
            }
            self.touched.push(mapping.id);
            if self.writer.announce_module(recorded(pid), mapping.id) {
                if let Some(mut module) = self.modules.describe(mapping, time, pid) {
                    module.pid = recorded(pid);
                    self.writer.module(recorded(tid), &module)?;
                    self.modules.count_sample(mapping.module, self.outcome.samples, is_cut);
                    continue;
                }
                // Code made at run time: its name may be in a file that the process has mapped.
                for dump in space.mappings().filter(|mapping| self.modules.is_jit_dump(mapping)) {
                    if self.writer.announce_module(recorded(pid), dump.id) {
                        self.writer
                            .module(recorded(tid), &self.modules.describe_place(dump, time, recorded(pid)))?;
                    }
                }
                // Or the name of the file that was there before.
                if mapping.replaces {
                    let module = self.modules.describe_place(mapping, time, recorded(pid));
                    self.writer.module(recorded(tid), &module)?;
                }
            }
            self.modules.count_sample(mapping.module, self.outcome.samples, is_cut);
        }
        self.announce_labels(time, pid)?;
        self.announce_name(time, pid, tid)?;
        // The process has the name of its first thread, which may never run.
        if pid != tid && pid != 0 {
            self.announce_name(time, pid, pid)?;
        }
        Ok(())
    }

    fn announce_labels(&mut self, time: u64, pid: u32) -> Result<(), WriteError> {
        if pid == 0 || recorded(pid) != pid || !self.writer.announce_labels(pid) {
            return Ok(());
        }
        // A process that has ended has none any more.
        let Ok(group) = proc::control_group(pid) else {
            return Ok(());
        };
        let (namespace, inner_pid) = proc::pid_namespace(pid).unwrap_or((0, pid));
        self.writer.labels(&ProcessLabels {
            time,
            pid,
            group,
            namespace,
            inner_pid,
        })
    }

    fn announce_name(&mut self, time: u64, pid: u32, tid: u32) -> Result<(), WriteError> {
        if !self.writer.announce_name(recorded(tid)) {
            return Ok(());
        }
        let name = self
            .names
            .entry(tid)
            .or_insert_with(|| proc::thread_name(pid, tid).unwrap_or_default().into());
        // A waker that is gone keeps the name that it had.
        if name.is_empty() {
            return Ok(());
        }
        self.writer.thread_name(time, recorded(pid), recorded(tid), name)
    }
}

fn name_sources(modules: &Modules<'_>, announced: &Announced) -> NameSources {
    NameSources {
        held: modules.held(),
        announced: announced.functions().to_vec(),
    }
}

/// Whether a walk that ended for this reason might have gone on with the tables of all files. Those
/// of perf's call chains do not depend on any.
fn may_be_for_lack_of_a_table(stop: Stop) -> bool {
    match stop {
        Stop::NoModule
        | Stop::NoTable
        | Stop::Unreadable
        | Stop::DidNotAdvance
        | Stop::NotExpressible
        | Stop::NoCall => true,
        Stop::EndOfStack | Stop::Limit | Stop::NoUserStack | Stop::BeyondCopy | Stop::NoStart => false,
    }
}

fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
