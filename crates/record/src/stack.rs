//! Walks the stack of one sample.

use backtrail_arch::{Arch, Register, Registers};
use backtrail_process::perf::{Sample, Sampler, UserState};
use backtrail_process::stack::{Beyond, Piece, end_of_copy};
use backtrail_process::{SampledStack, this_machine};
use backtrail_recording::{Frame, FrameKind, Stop};
use backtrail_unwind::goroutine::{self, Outside, is_left};
use backtrail_unwind::{
    AddressKind, CacheEntry, Link, Memory, Modules, Position, RuleCache, Uncovered, check_end, is_at_start,
    keep_register, link, step, step_restoring,
};

use crate::chain;
use crate::deep::{DeepSample, DeepThreads};
use crate::goroutines::{CutSample, Goroutines, signal_slot};
use crate::holes::{Holes, ShortCopy};
use crate::spaces::Space;
use crate::tasks::{CutTask, Tasks};
use crate::view::SpaceView;
use crate::walks::{Walker, Walks};
use crate::watch::{Edge, Watches};

/// Frames kept at each end of a stack; those between are only counted.
const KEPT_AT_EACH_END: usize = 8192;
/// Frames after which a walk gives up: a stack of 8 MiB holds half a million of the smallest
/// frames.
const LONGEST_WALK: usize = 1 << 20;
/// The size of the cache of rules.
const CACHED_RULES: usize = 1 << 15;

/// Bytes of a stack that may soon be deeper than its copies.
const NEARLY_DEEP: u64 = 32 << 10;

/// The index of no watch.
const NO_WATCH: usize = usize::MAX;

/// Distance above the stack pointer within which unreadable memory is taken for a part of the stack
/// that was not copied.
const LARGEST_STACK: u64 = 1 << 30;

/// Walks stacks, and reuses its memory from sample to sample.
pub(crate) struct StackWalker {
    arch: &'static Arch,
    /// Whether the samples are another machine's, whose kernel may sign return addresses in other
    /// bits.
    pub(crate) is_elsewhere: bool,
    cache: Vec<CacheEntry>,
    walks: Walks,
    holes: Holes,
    watches: Watches,
    deep: DeepThreads,
    goroutines: Goroutines,
    tasks: Tasks,
    /// The registers of the frame in which the last walk could not go on for want of memory.
    cut: Option<Registers>,
    /// Words of the frame in which the last walk has left a goroutine's stack.
    left_goroutine: [u64; goroutine::KEPT_WORDS],
    /// The current sample's chain of frame pointers.
    chain: Vec<u64>,
    /// The last proved end of a stack: the modules' generation, and the outermost frame's address.
    proved_end: (u64, u64),
    /// The frames of the last walk, from the innermost outwards.
    pub(crate) frames: Vec<Frame>,
    /// Whether the last of them is proved to be the outermost one.
    has_start: bool,
    /// Whether some of them were read apart from the sample, under a watch that proves them.
    pub(crate) read_apart: bool,
}

/// A sample of a program: its registers, and the copy of its stack.
struct Program<'s> {
    pid: u32,
    tid: u32,
    time: u64,
    registers: Registers,
    sp: u64,
    copy: &'s [u8],
    /// The words that the kernel's walk has read, if it has walked the stack.
    words: &'s [(u64, u64)],
    /// Parts of the stack beyond it.
    pieces: &'s [Piece<'s>],
    /// The end of what is known from the stack pointer on without a gap.
    end: u64,
    /// The size that the copy would have had, if it had not reached the end of the stack or a page
    /// that is not present.
    wanted: u32,
}

impl<'s> Program<'s> {
    /// Whether the memory of the stack ends with the frame at `sp`. A copy also ends at a page that
    /// is not present; nothing has called from there.
    fn ends_at_start(&self, sp: Option<u64>) -> bool {
        self.is_short() && sp.is_some_and(|sp| is_at_start(sp, self.end))
    }

    /// Bytes that are known from the stack pointer on without a gap.
    fn known_bytes(&self) -> u64 {
        self.end.saturating_sub(self.sp)
    }

    /// Whether there are fewer of them than a copy may have.
    fn is_short(&self) -> bool {
        self.known_bytes() < self.wanted.into()
    }

    /// The copy, and what the thread's watch of this index knows beyond it.
    fn stack(&self, watches: &'s Watches, watch: usize) -> SampledStack<'s> {
        let beyond = watches.beyond(self.tid, self.time, watch);
        let outer = beyond.and_then(|_| watches.outermost(self.tid, self.time, watch));
        SampledStack::new(self.sp, self.copy, beyond)
            .with_outer(outer)
            .with_pieces(self.pieces)
            .with_words(self.words)
    }
}

impl StackWalker {
    pub(crate) fn new() -> Self {
        StackWalker {
            arch: this_machine(),
            is_elsewhere: false,
            cache: vec![CacheEntry::EMPTY; CACHED_RULES],
            walks: Walks::default(),
            holes: Holes::default(),
            watches: Watches::default(),
            deep: DeepThreads::default(),
            goroutines: Goroutines::default(),
            tasks: Tasks::default(),
            cut: None,
            left_goroutine: Default::default(),
            chain: Vec::new(),
            proved_end: (0, 0),
            frames: Vec::new(),
            has_start: false,
            read_apart: false,
        }
    }

    /// The CPU of the machine whose samples of this process are walked next.
    pub(crate) fn arch_of(&mut self, space: &Space) -> &'static Arch {
        if self.is_elsewhere {
            self.arch = self.arch.with_code_below(space.end());
        }
        self.arch
    }

    /// The end of the last walk, without a user stack that does not exist: in execve, and while a
    /// process ends, the registers are still those of a program whose memory is gone.
    pub(crate) fn without_gone_program(&mut self, sample: &Sample<'_>, stop: Stop) -> Stop {
        let kernel = sample.kernel_frames().count();
        let UserState::Native { stack, .. } = sample.user else {
            return stop;
        };
        let gone = match stop {
            Stop::NoModule => true,
            Stop::NoTable | Stop::Unreadable | Stop::BeyondCopy => stack.is_empty(),
            _ => false,
        };
        if kernel == 0 || self.frames.len() != kernel + 1 || !gone {
            return stop;
        }
        self.frames.truncate(kernel);
        Stop::NoUserStack
    }

    /// Forgets the last walks: more than a moment has passed since.
    pub(crate) fn forget(&mut self) {
        self.walks = Walks::default();
    }

    /// A thread has ended, or runs another program.
    pub(crate) fn forget_thread(&mut self, tid: u32) {
        self.walks.forget(tid);
        self.holes.forget(tid);
        self.watches.forget(tid);
        self.deep.forget(tid);
        self.goroutines.forget(tid);
        self.tasks.forget(tid);
    }

    /// Walks the stack of a sample taken at `time`: the kernel's frames as the kernel found them,
    /// then the program's. Copies hold up to `stack_bytes`.
    pub(crate) fn walk(&mut self, time: u64, sample: &Sample<'_>, stack_bytes: u32, view: &SpaceView<'_, '_>) -> Stop {
        self.frames.clear();
        self.read_apart = false;
        for (index, address) in sample.kernel_frames().enumerate() {
            let kind = if index == 0 { FrameKind::Pc } else { FrameKind::Ra };
            self.frames.push(Frame { kind, address });
        }
        let stop = match sample.user {
            UserState::Native {
                registers,
                stack,
                pieces,
            } => {
                let sp = registers.get(self.arch.sp).unwrap_or(0);
                let program = Program {
                    pid: sample.pid,
                    tid: sample.tid,
                    time,
                    registers,
                    sp,
                    copy: stack,
                    pieces,
                    end: end_of_copy(sp, stack, pieces),
                    words: &[],
                    wanted: stack_bytes,
                };
                return self.walk_program(sample, &program, view);
            }
            UserState::Walked {
                registers,
                stack,
                words,
            } => {
                let sp = registers.get(self.arch.sp).unwrap_or(0);
                let program = Program {
                    pid: sample.pid,
                    tid: sample.tid,
                    time,
                    registers,
                    sp,
                    copy: stack,
                    pieces: &[],
                    end: end_of_copy(sp, stack, &[]),
                    words,
                    wanted: 0,
                };
                // There is no more to be had: where the kernel has taken another way than this
                // walk, the stack ends.
                return reason(self.walk_with(NO_WATCH, &program, view));
            }
            UserState::Foreign => Stop::NotExpressible,
            UserState::None => self.keep_chain(sample),
        };
        if self.frames.is_empty() {
            self.frames.push(Frame {
                kind: FrameKind::Pc,
                address: sample.ip,
            });
        }
        stop
    }

    /// The program's frames by its frame pointers, if there is nothing else: in recordings of perf.
    /// Nothing proves that they are all of them.
    fn keep_chain(&mut self, sample: &Sample<'_>) -> Stop {
        let before = self.frames.len();
        for (index, address) in sample.frame_pointer_chain().enumerate() {
            let kind = if index == 0 { FrameKind::Pc } else { FrameKind::Ra };
            self.frames.push(Frame { kind, address });
        }
        match self.frames.len() > before {
            true => Stop::NoStart,
            false => Stop::NoUserStack,
        }
    }

    /// The program's frames, after those of the kernel.
    fn walk_program(&mut self, sample: &Sample<'_>, program: &Program<'_>, view: &SpaceView<'_, '_>) -> Stop {
        let kernel = self.frames.len();
        let watched = self.watches.renew(program.tid, program.time, program.sp);
        let mut stop = self.walk_with(0, program, view);
        if self.walks.was_first() {
            self.holes.prepare(program.pid, program.tid, program.sp);
            if view.is_go(program.registers.pc) {
                self.goroutines.met();
            }
            if self.goroutines.is_go(program.pid) {
                self.expect_goroutine(program, view);
            }
        }
        let arch = self.arch;
        let has_left = |stop| matches!(stop, backtrail_unwind::Stop::NotExpressible(needed) if is_left(arch, needed));
        if has_left(stop) && self.goroutines.thread(program.tid).is_none() {
            // The goroutine may have been copied, though its thread was not known yet.
            self.expect_goroutine(program, view);
            if self.goroutines.thread(program.tid).is_some() {
                self.frames.truncate(kernel);
                stop = self.walk_with(0, program, view);
            }
        }
        for index in 1..watched {
            if !matches!(stop, backtrail_unwind::Stop::Unreadable(_)) {
                break;
            }
            self.frames.truncate(kernel);
            stop = self.walk_with(index, program, view);
        }
        if program.known_bytes() >= NEARLY_DEEP {
            self.expect_deep(program);
        }
        if !self.deep.is_known(program.tid) {
            let Program { pid, tid, time, sp, .. } = *program;
            let is_whole = stop == backtrail_unwind::Stop::EndOfStack;
            let end = self.walks.outermost(tid).filter(|_| is_whole);
            self.deep.know(DeepSample { pid, tid, time, sp }, end);
        }
        let backtrail_unwind::Stop::Unreadable(address) = stop else {
            if has_left(stop) {
                self.expect_goroutine(program, view);
            }
            return reason(stop);
        };
        self.chain.clear();
        self.chain.extend(sample.frame_pointer_chain());
        let mut user = self.frames.split_off(kernel);
        let mut cache = RuleCache::new(&mut self.cache);
        let further = chain::go_on(self.arch, &mut user, &self.chain, view, &mut cache);
        self.frames.append(&mut user);
        if let Some(stop) = further {
            return reason(stop);
        }
        let is_near = address >= program.sp && address - program.sp < LARGEST_STACK;
        if address != program.end {
            self.expect_goroutine(program, view);
            self.expect_task(program, view);
        }
        match self.prepare_for_next(program, address, is_near, view) || is_near {
            true => Stop::BeyondCopy,
            false => Stop::Unreadable,
        }
    }

    /// Has more copied of a stack that is, or may soon be, deeper than its copy.
    fn expect_deep(&mut self, program: &Program<'_>) {
        let Program { pid, tid, time, sp, .. } = *program;
        let outermost = self.walks.outermost(tid);
        if outermost.is_some_and(|outermost| (NEARLY_DEEP..LARGEST_STACK).contains(&outermost.wrapping_sub(sp))) {
            self.deep.begin(DeepSample { pid, tid, time, sp });
        }
    }

    /// Has the goroutine's stack copied too from now on, if this is a thread of Go's runtime.
    fn expect_goroutine(&mut self, program: &Program<'_>, view: &SpaceView<'_, '_>) {
        let Program {
            pid,
            tid,
            time,
            ref registers,
            ..
        } = *program;
        let sample = CutSample {
            pid,
            tid,
            time,
            registers,
            kept: self.left_goroutine,
        };
        let (arch, cache) = (self.arch, &mut self.cache);
        let mut copied = program.stack(&self.watches, 0);
        self.goroutines.begin(sample, &mut copied, || {
            let mut memory = SampledStack::new(program.sp, program.copy, None).with_pieces(program.pieces);
            let mut cache = RuleCache::new(cache);
            let (mut registers, mut kind) = (program.registers, AddressKind::Pc);
            for _ in 0..KEPT_AT_EACH_END {
                let sp = registers.get(arch.sp)?;
                kind = step(arch, &mut registers, kind, view, &mut memory, &mut cache).ok()?;
                if kind == AddressKind::Pc {
                    return signal_slot(arch, sp);
                }
            }
            None
        });
    }

    /// Has the stack of the thread's task copied too from now on, if it is cut in C that the task
    /// has called.
    fn expect_task(&mut self, program: &Program<'_>, view: &SpaceView<'_, '_>) {
        let Some(registers) = self.cut else { return };
        let copied = self.tasks.copied_word(program.tid, &registers);
        let is_copied = copied.is_some_and(|word| program.stack(&self.watches, 0).word(word).is_some());
        if !is_copied
            && let Uncovered::Tagged { stack: Some(stack), .. } = view.uncovered(registers.pc, AddressKind::Ra, false)
        {
            self.tasks.begin(CutTask {
                pid: program.pid,
                tid: program.tid,
                time: program.time,
                registers: &registers,
                stack,
            });
        }
    }

    /// This stack is cut at `address`, beyond its copy or on another stack; the next one may be
    /// complete. Returns whether anything can be known about that address.
    fn prepare_for_next(
        &mut self,
        program: &Program<'_>,
        address: u64,
        is_near: bool,
        view: &SpaceView<'_, '_>,
    ) -> bool {
        let Program { pid, tid, time, .. } = *program;
        let Program { sp, end, .. } = *program;
        let is_below = address < sp && sp - address <= self.arch.red_zone;
        if is_below && self.deep.look_below(DeepSample { pid, tid, time, sp }) {
            return true;
        }
        let is_far = address.wrapping_sub(sp) > u64::from(program.wanted);
        if is_far && self.deep.leave(DeepSample { pid, tid, time, sp }, address) {
            return true;
        }
        let is_deep = is_near && address - sp >= NEARLY_DEEP;
        let is_new_edge = is_deep && self.deep.cut(DeepSample { pid, tid, time, sp }, address);
        if is_near && program.is_short() {
            self.holes.mend(ShortCopy {
                time,
                pid,
                tid,
                end,
                wanted: program.sp.saturating_add(program.wanted.into()),
            });
            return true;
        }
        if is_new_edge {
            return true;
        }
        let mut cache = RuleCache::new(&mut self.cache);
        let edge = Edge {
            pid,
            tid,
            time,
            address,
        };
        self.watches.begin(edge, |beyond| {
            return_addresses_beyond(self.arch, program, beyond, view, &mut cache)
        })
    }

    /// Samples are going to be taken.
    pub(crate) fn prepare(&mut self, sampler: &mut Sampler) {
        self.deep.want();
        self.deep.prepare(sampler);
    }

    /// There are no newer samples than those already walked.
    pub(crate) fn prepare_for_newer(&mut self, sampler: &mut Sampler) {
        self.deep.prepare(sampler);
        self.goroutines.prepare(sampler);
        self.tasks.prepare(sampler);
        self.watches.begin_newest();
    }

    /// Walks with the memory beyond the copy that the thread's watch of this index has proved.
    fn walk_with(&mut self, watch: usize, program: &Program<'_>, view: &SpaceView<'_, '_>) -> backtrail_unwind::Stop {
        let begin = self.frames.len();
        self.has_start = false;
        self.left_goroutine = Default::default();
        self.cut = None;
        let mut stop = self.walk_by_tables(watch, program, view);
        if matches!(
            stop,
            backtrail_unwind::Stop::NotExpressible(_) | backtrail_unwind::Stop::NoTable
        ) {
            self.frames.truncate(begin);
            stop = self.walk_restoring(watch, program, view);
        }
        if self.read_apart {
            self.watches.was_useful(program.tid, program.time, watch);
        }
        if self.is_new_thread(begin, stop, program, view) {
            return backtrail_unwind::Stop::EndOfStack;
        }
        if self.has_start {
            return stop;
        }
        self.check_end(begin, stop, program, view)
    }

    /// Whether this is a thread's first moment: after the call that has created it, with the result
    /// that only the new one gets.
    fn is_new_thread(
        &self,
        begin: usize,
        stop: backtrail_unwind::Stop,
        program: &Program<'_>,
        view: &SpaceView<'_, '_>,
    ) -> bool {
        const RESULT: Register = Register(0);
        use backtrail_unwind::Stop::{NoCall, NoStart, NoTable, Unreadable};
        matches!(stop, NoCall | NoStart | NoTable | Unreadable(_))
            && self.frames.len() == begin + 1
            && program.registers.get(RESULT) == Some(0)
            && view.makes_thread(program.registers.pc)
    }

    /// Whether a table marks the code at this address as the start of a stack.
    fn is_outermost(&mut self, address: u64, kind: AddressKind, view: &SpaceView<'_, '_>) -> bool {
        let mut cache = RuleCache::new(&mut self.cache);
        link(self.arch, address, kind, view, &mut cache) == Link::Outermost
    }

    /// What the outermost of the frames from `begin` on proves about how the walk ended.
    fn check_end(
        &mut self,
        begin: usize,
        stop: backtrail_unwind::Stop,
        program: &Program<'_>,
        view: &SpaceView<'_, '_>,
    ) -> backtrail_unwind::Stop {
        let Some(&last) = self.frames.last() else {
            return stop;
        };
        let is_caller = last.kind == FrameKind::Ra && self.frames.len() > begin + 1;
        if stop == backtrail_unwind::Stop::NoModule && is_caller {
            // No call has left this address: it contains no code.
            self.frames.pop();
        }
        let is_proved = || (view.generation(), last.address) == self.proved_end;
        if (stop != backtrail_unwind::Stop::EndOfStack || !is_proved())
            && let [.., callee, frame] = self.frames[begin..]
            && frame.kind == FrameKind::Ra
            && view.is_made_up(frame.address, callee.address)
            && !self.is_outermost(frame.address, AddressKind::Ra, view)
        {
            self.frames.pop();
            return backtrail_unwind::Stop::EndOfStack;
        }
        match stop {
            // A word of zero where a row supposes the return address is no start.
            backtrail_unwind::Stop::EndOfStack if last.kind == FrameKind::Pc => {
                match self.is_outermost(last.address, AddressKind::Pc, view) {
                    true => stop,
                    false => backtrail_unwind::Stop::NoStart,
                }
            }
            backtrail_unwind::Stop::EndOfStack if is_caller => {
                let end = (view.generation(), last.address);
                if end == self.proved_end {
                    return stop;
                }
                let mut cache = RuleCache::new(&mut self.cache);
                let walks = &self.walks;
                let checked = check_end(self.arch, last.address, stop, view, &mut cache, |ra| {
                    view.never_returns(ra) || program.ends_at_start(walks.outermost(program.tid))
                });
                if checked == stop {
                    self.proved_end = end;
                }
                checked
            }
            _ => stop,
        }
    }

    fn walk_by_tables(
        &mut self,
        watch: usize,
        program: &Program<'_>,
        view: &SpaceView<'_, '_>,
    ) -> backtrail_unwind::Stop {
        let mut memory = program.stack(&self.watches, watch);
        let walker = Walker {
            tid: program.tid,
            generation: view.generation(),
        };
        let mut kept = TwoEnds::new(&mut self.frames);
        let mut stop = self.walks.walk(
            walker,
            self.arch,
            &Position::interrupted(program.registers),
            view,
            &mut memory,
            &mut RuleCache::new(&mut self.cache),
            LONGEST_WALK,
            |frame| kept.push(recorded(frame.address, frame.kind)),
        );
        kept.finish();
        self.read_apart = note_reads(&mut self.deep, program, &memory);
        // Walks that restore registers also read goroutines' stacks, which are copied on their own.
        let Program { pid, tid, time, sp, .. } = *program;
        for piece in memory.used_pieces() {
            self.deep.was_left(DeepSample { pid, tid, time, sp }, piece);
        }
        // FP was not where the tables say, and what was taken for it led back: it had not been
        // popped (in libffi's ffi_call_unix64), but lies below the copy.
        if let (backtrail_unwind::Stop::DidNotAdvance, Some(slot)) = (stop, memory.missed_below()) {
            stop = backtrail_unwind::Stop::Unreadable(slot);
        }
        stop
    }

    /// Repeats the walk with all registers that can be restored: in a few stacks, rows depend on
    /// registers that tables do not restore.
    fn walk_restoring(
        &mut self,
        watch: usize,
        program: &Program<'_>,
        view: &SpaceView<'_, '_>,
    ) -> backtrail_unwind::Stop {
        let mut memory = program.stack(&self.watches, watch);
        let mut cache = RuleCache::new(&mut self.cache);
        let mut kept = TwoEnds::new(&mut self.frames);
        let (mut registers, mut kind) = (program.registers, AddressKind::Pc);
        let goroutine = self.goroutines.thread(program.tid);
        let mut callees = 0;
        let stop = loop {
            kept.push(recorded(registers.pc, kind));
            if callees == LONGEST_WALK {
                break backtrail_unwind::Stop::Limit;
            }
            let mut stepped = step_restoring(self.arch, &mut registers, kind, view, &mut memory, &mut cache);
            if let Err(backtrail_unwind::Stop::NotExpressible(needed)) = stepped
                && callees == 1
                && keep_register(needed, &program.registers, &mut registers, view)
            {
                stepped = step_restoring(self.arch, &mut registers, kind, view, &mut memory, &mut cache);
            }
            callees += 1;
            match stepped {
                Ok((next, _)) => kind = next,
                Err(backtrail_unwind::Stop::NotExpressible(needed)) if is_left(self.arch, needed) => {
                    let outside = goroutine.and_then(|thread| thread.outside(self.arch, &registers, view, &mut memory));
                    match outside {
                        Some(Outside::Goroutine(between, caller)) => {
                            if let Some(between) = between {
                                kept.push(recorded(between, AddressKind::Ra));
                            }
                            (registers, kind) = (caller, AddressKind::Ra);
                        }
                        Some(Outside::Start(start)) => {
                            kept.push(recorded(start, AddressKind::Ra));
                            self.has_start = true;
                            break backtrail_unwind::Stop::EndOfStack;
                        }
                        None => {
                            self.left_goroutine = goroutine::kept(self.arch, &registers, &mut memory);
                            break backtrail_unwind::Stop::NotExpressible(needed);
                        }
                    }
                }
                Err(stop) => {
                    self.cut = matches!(stop, backtrail_unwind::Stop::Unreadable(_)).then_some(registers);
                    break stop;
                }
            }
        };
        kept.finish();
        self.read_apart = note_reads(&mut self.deep, program, &memory);
        stop
    }
}

/// Notes which edges of the stack were useful, and where it was read apart from the sample: that is
/// only known while a watch holds, and is copied from then on. Returns whether it was.
fn note_reads(deep: &mut DeepThreads, program: &Program<'_>, memory: &SampledStack<'_>) -> bool {
    let Program { pid, tid, time, sp, .. } = *program;
    for start in memory.used_pieces() {
        deep.was_useful(tid, time, start);
    }
    if let Some(address) = memory.first_apart()
        && (NEARLY_DEEP..LARGEST_STACK).contains(&address.wrapping_sub(sp))
    {
        deep.cut(DeepSample { pid, tid, time, sp }, address);
    }
    memory.was_read_apart()
}

/// The slots of the return addresses that a walk finds beyond the copy, if `beyond` was there at
/// the time of the sample.
fn return_addresses_beyond(
    arch: &Arch,
    program: &Program<'_>,
    beyond: Beyond<'_>,
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
) -> Vec<u64> {
    let edge = beyond.anchor;
    let mut memory = Noted {
        stack: SampledStack::new(program.sp, program.copy, Some(beyond)).with_pieces(program.pieces),
        read: Vec::new(),
    };
    let (mut registers, mut kind) = (program.registers, AddressKind::Pc);
    let mut found = Vec::new();
    for _ in 0..KEPT_AT_EACH_END {
        memory.read.clear();
        match step(arch, &mut registers, kind, modules, &mut memory, cache) {
            Ok(next) => kind = next,
            Err(_) => break,
        }
        let mut read = memory.read.iter();
        let place = read.find(|&&(address, word)| word == registers.pc && address > edge);
        found.extend(place.map(|&(address, _)| address));
    }
    found
}

/// A stack that records which words are read.
struct Noted<'a> {
    stack: SampledStack<'a>,
    read: Vec<(u64, u64)>,
}

impl Memory for Noted<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = self.stack.word(address)?;
        self.read.push((address, word));
        Some(word)
    }
}

fn recorded(address: u64, kind: AddressKind) -> Frame {
    Frame {
        kind: match kind {
            AddressKind::Pc => FrameKind::Pc,
            AddressKind::Ra => FrameKind::Ra,
        },
        address,
    }
}

fn reason(stop: backtrail_unwind::Stop) -> Stop {
    match stop {
        backtrail_unwind::Stop::EndOfStack => Stop::EndOfStack,
        backtrail_unwind::Stop::NoModule => Stop::NoModule,
        backtrail_unwind::Stop::NoTable => Stop::NoTable,
        backtrail_unwind::Stop::Unreadable(_) => Stop::Unreadable,
        backtrail_unwind::Stop::DidNotAdvance => Stop::DidNotAdvance,
        backtrail_unwind::Stop::NotExpressible(_) => Stop::NotExpressible,
        backtrail_unwind::Stop::Limit => Stop::Limit,
        backtrail_unwind::Stop::NoCall => Stop::NoCall,
        backtrail_unwind::Stop::NoStart => Stop::NoStart,
    }
}

/// Keeps the first and the last frames of a sequence, and counts those between.
struct TwoEnds<'f> {
    frames: &'f mut Vec<Frame>,
    /// The start of the ring of last frames in `frames`, once the first ones are full.
    ring: usize,
    /// Frames that came after the first ones.
    after_head: usize,
}

impl<'f> TwoEnds<'f> {
    fn new(frames: &'f mut Vec<Frame>) -> Self {
        let ring = frames.len() + KEPT_AT_EACH_END;
        TwoEnds {
            frames,
            ring,
            after_head: 0,
        }
    }

    fn push(&mut self, frame: Frame) {
        if self.frames.len() < self.ring + KEPT_AT_EACH_END {
            self.frames.push(frame);
        } else {
            self.frames[self.ring + self.after_head % KEPT_AT_EACH_END] = frame;
        }
        if self.frames.len() > self.ring {
            self.after_head += 1;
        }
    }

    /// Puts the last frames in order, after the count of those that were left out.
    fn finish(self) {
        let omitted = self.after_head.saturating_sub(KEPT_AT_EACH_END);
        if omitted == 0 {
            return;
        }
        self.frames[self.ring..].rotate_left(self.after_head % KEPT_AT_EACH_END);
        let gap = Frame {
            kind: FrameKind::Omitted,
            address: omitted as u64,
        };
        self.frames.insert(self.ring, gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(count: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut kept = TwoEnds::new(&mut frames);
        for address in 0..count as u64 {
            kept.push(Frame {
                kind: FrameKind::Ra,
                address,
            });
        }
        kept.finish();
        frames
    }

    #[test]
    fn both_ends_of_a_deep_stack_stay() {
        for count in [0, 1, KEPT_AT_EACH_END, 2 * KEPT_AT_EACH_END] {
            let frames = collect(count);
            assert_eq!(frames.len(), count);
            assert!(frames.iter().zip(0..).all(|(frame, address)| frame.address == address));
        }
        for extra in [1, 2, 1000, KEPT_AT_EACH_END, 3 * KEPT_AT_EACH_END + 17] {
            let count = 2 * KEPT_AT_EACH_END + extra;
            let frames = collect(count);
            assert_eq!(frames.len(), 2 * KEPT_AT_EACH_END + 1);
            assert_eq!(frames[KEPT_AT_EACH_END].kind, FrameKind::Omitted);
            assert_eq!(frames[KEPT_AT_EACH_END].address, extra as u64);
            let tail = &frames[KEPT_AT_EACH_END + 1..];
            assert!(
                tail.iter()
                    .zip(count - KEPT_AT_EACH_END..)
                    .all(|(frame, i)| frame.address == i as u64)
            );
        }
    }
}
