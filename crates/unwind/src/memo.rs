//! The last walk of a thread, remembered, so that the next one compares instead of walking.
//!
//! A step depends only on the frame's registers, the words that it reads, and the tables. So if a
//! walk reaches a frame of the last walk with the same registers, the rest of the walk is the same,
//! as long as the same words are read. Comparing them is several times faster than walking: no
//! table is looked up, and no read waits for the one before.
//!
//! Frames are in a borrowed buffer that is used from both ends. The kept walk begins at the front
//! with the end of the stack and its outermost frame; the current walk grows from the back towards
//! the front, the innermost frame last. Read upwards, both have the same order, so at the end the
//! new part is moved after the kept part of the old walk, and unchanged outer frames are never
//! moved. A second buffer contains, in the same way, the words of steps that read more than return
//! address and frame pointer.
//!
//! A kept frame is found by its stack pointer: a small table gives the place where a frame with
//! such a stack pointer may be. It may be wrong, since the frame itself is checked.

use backtrail_arch::{Arch, Registers};

use crate::sink::{Each, Sink};
use crate::step::{Found, find, follow};
use crate::{Frame, MemoStep, Memory, Modules, Position, RuleCache, Stop};

/// A word that a step read.
#[derive(Clone, Copy, Debug)]
pub struct MemoRead {
    address: u64,
    word: u64,
}

impl MemoRead {
    /// Not a word of any memory: it would extend past the end of the address space. Stands for
    /// unreadable words, and never compares equal.
    pub const EMPTY: MemoRead = MemoRead {
        address: u64::MAX,
        word: 0,
    };

    #[inline]
    fn is_same(&self, memory: &mut impl Memory) -> bool {
        self.address != MemoRead::EMPTY.address && memory.is(self.address, u64::MAX, self.word)
    }
}

/// Number of places: kept frames are found by this many values of a stack pointer's bits.
const PLACES: usize = 256;

/// How much of the buffers is used, and how their walk ended.
#[derive(Clone, Copy, Debug)]
pub struct MemoState {
    steps: usize,
    reads: usize,
    /// `None` if no step is known from the outermost kept frame.
    stop: Option<Stop>,
    was_short: bool,
    /// Places where kept frames may be, by stack pointer, with their tags.
    places: [u32; PLACES],
}

impl MemoState {
    /// Nothing remembered.
    pub const EMPTY: MemoState = MemoState {
        steps: 0,
        reads: 0,
        stop: None,
        was_short: false,
        places: [0; PLACES],
    };

    /// Whether the buffers had too little room for the whole last walk, or for it beside the one
    /// before.
    pub fn was_short(&self) -> bool {
        self.was_short
    }

    /// The part of the buffer of steps that is used: the outermost frame first.
    pub fn kept<'s>(&self, steps: &'s [MemoStep]) -> &'s [MemoStep] {
        steps.get(..self.steps).unwrap_or_default()
    }

    #[inline(always)]
    fn place(sp: u64) -> usize {
        (sp >> 4) as usize % PLACES
    }

    /// Distinguishes most frames of one place, in the upper half.
    #[inline(always)]
    fn tag(step: &MemoStep) -> u32 {
        ((step.sp >> 4 ^ step.pc) as u32) << 16
    }

    /// The index of a frame if it is among the kept ones.
    #[inline(always)]
    fn find(&self, step: &MemoStep) -> Option<usize> {
        let place = self.places.get(MemoState::place(step.sp)).copied()? ^ MemoState::tag(step);
        (place <= u32::from(u16::MAX)).then_some(place as usize)
    }

    #[inline(always)]
    fn put(&mut self, step: &MemoStep, place: usize) {
        if let Some(at) = self.places.get_mut(MemoState::place(step.sp)) {
            // An index that does not fit leads to another frame, and the check fails.
            *at = place as u16 as u32 | MemoState::tag(step);
        }
    }
}

impl Default for MemoState {
    fn default() -> Self {
        MemoState::EMPTY
    }
}

/// The last walk, in a borrowed buffer. It never changes an answer: if registers or words differ or
/// are unknown, the walk is taken as usual.
///
/// It belongs to one thread's stack and one set of tables: call [`Memo::clear`] before the tables
/// change.
#[derive(Debug)]
pub struct Memo<'m> {
    state: &'m mut MemoState,
    steps: &'m mut [MemoStep],
    reads: &'m mut [MemoRead],
    /// Where the current walk begins in the buffers.
    new_steps: usize,
    new_reads: usize,
    /// Number of words that the current step has read.
    pending: u16,
    /// Whether reads are still recorded.
    noting: bool,
    /// Whether the last walk was dropped to make room.
    crowded: bool,
}

/// Memory whose reads are recorded.
struct Noted<'n, 'm, M> {
    memory: &'n mut M,
    memo: &'n mut Memo<'m>,
}

impl<M: Memory> Memory for Noted<'_, '_, M> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = self.memory.word(address);
        self.memo.push_read(match word {
            Some(word) => MemoRead { address, word },
            None => MemoRead::EMPTY,
        });
        word
    }
}

/// Where a walk ends that has joined the last one.
#[derive(Clone, Copy)]
enum End {
    /// Where that did.
    Kept,
    Limit,
}

/// What is known about the current frame.
#[allow(
    clippy::large_enum_variant,
    reason = "there is only one, on the stack, and no heap for the large variant"
)]
enum Known {
    /// Its stack pointer and its frame pointer.
    Few,
    /// The registers with which the walk began.
    First,
    /// The registers restored by a signal frame.
    All(Registers),
}

/// Whether the step from a frame needs only SP and FP.
fn is_narrow(arch: &Arch, here: &MemoStep, found: &Found, modules: &impl Modules) -> bool {
    found.is_narrow(arch, |in_table| modules.uncovered(here.pc, here.kind(), in_table))
}

impl<'m> Memo<'m> {
    /// A memo of `steps` and `reads`, which must be the buffers that `state` was used with before,
    /// unless `state` is empty. Buffers may have any length; empty ones remember nothing. Each
    /// frame takes one step, and a frame after a signal some twenty reads.
    #[inline]
    pub fn new(state: &'m mut MemoState, steps: &'m mut [MemoStep], reads: &'m mut [MemoRead]) -> Self {
        if state.steps > steps.len() || state.reads > reads.len() {
            state.steps = 0;
            state.reads = 0;
        }
        Memo {
            new_steps: steps.len(),
            new_reads: reads.len(),
            pending: 0,
            noting: !steps.is_empty(),
            crowded: false,
            state,
            steps,
            reads,
        }
    }

    /// The outermost frame of the last walk, if all of it was remembered.
    #[cfg(feature = "local")]
    pub(crate) fn outermost(&self) -> Option<&MemoStep> {
        let [end, outermost, ..] = self.steps.get(..self.state.steps)? else {
            return None;
        };
        end.has(MemoStep::END).then_some(outermost)
    }

    /// Forgets the walk.
    pub fn clear(&mut self) {
        self.state.steps = 0;
        self.state.reads = 0;
        self.state.stop = None;
    }

    /// Walks like [`walk`](crate::walk()).
    #[allow(
        clippy::too_many_arguments,
        reason = "the arguments of a walk, and the memo of the last one"
    )]
    pub fn walk(
        &mut self,
        arch: &Arch,
        from: &Position,
        modules: &impl Modules,
        memory: &mut impl Memory,
        cache: &mut RuleCache<'_>,
        limit: usize,
        visit: impl FnMut(Frame),
    ) -> Stop {
        let first = MemoStep::new(arch, &from.registers, from.kind);
        let registers = || from.registers;
        self.walk_from(
            arch,
            first,
            &registers,
            modules,
            memory,
            cache,
            limit,
            &mut Each::new(visit),
        )
    }

    /// Walks from a frame whose other registers are only requested when needed, which is rare.
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[inline(always)]
    pub(crate) fn walk_from<M: Modules>(
        &mut self,
        arch: &Arch,
        first: MemoStep,
        registers: &impl Fn() -> Registers,
        modules: &M,
        memory: &mut impl Memory,
        cache: &mut RuleCache<'_>,
        limit: usize,
        sink: &mut impl Sink,
    ) -> Stop {
        let mut here = first;
        let mut known = match first.has(MemoStep::WHOLE) {
            true => Known::Few,
            false => Known::First,
        };
        let mut left = limit;
        // Frames visited again because the walk returns to the last frame of which enough is known.
        let mut again = 0;
        self.state.was_short = false;
        self.new_steps = self.steps.len();
        self.new_reads = self.reads.len();
        self.noting = !self.steps.is_empty();
        self.crowded = false;
        // An identical stack is kept as it is.
        if limit > 0
            && let Some(kept) = self.joined(&here)
            && kept + 1 == self.state.steps
            && let (rest, Some(end)) = self.follow(arch, kept, 0, memory, limit - 1)
        {
            sink.push(&here);
            sink.push_kept(self.steps.get(rest..kept).unwrap_or_default());
            return self.reason(end);
        }
        loop {
            // Frames of the last walk that are known to be those of this one.
            let mut same = 0;
            if M::CAN_LAST && again == 0 {
                let begin = here.sp;
                (here, same) = self.run(arch, here, memory, cache, &mut left, sink);
                if here.sp != begin {
                    known = Known::Few;
                }
            }
            self.push_step(here);
            let joined = self.joined(&here);
            if again > 0 {
                again -= 1;
            } else if left == 0 {
                match joined {
                    Some(kept) => self.keep_to(kept),
                    None => self.keep(0, 0, None),
                }
                return Stop::Limit;
            } else {
                sink.push(&here);
                left -= 1;
            }
            if let Some(kept) = joined {
                self.drop_kept(kept);
                let (rest, end) = self.follow(arch, kept, same, memory, left);
                sink.push_kept(self.steps.get(rest..kept).unwrap_or_default());
                if let Some(end) = end {
                    self.keep(kept, self.state.reads, self.state.stop);
                    return self.reason(end);
                }
                if rest < kept {
                    left -= kept - rest;
                    let from = self.diverge(kept, rest);
                    again = from - rest;
                    if from < kept {
                        here = self.steps.get(self.new_steps).copied().unwrap_or(MemoStep::EMPTY);
                        known = Known::Few;
                    }
                }
            }
            let found = find(arch, here.pc, here.kind(), modules, cache);
            if let Found::Packed(rule) = found
                && rule.is_plain()
                && here.is_returning()
                && let Some(caller) = here.caller(arch, rule, memory)
            {
                here = caller;
                known = Known::Few;
                continue;
            }
            match self.step(arch, here, &mut known, registers, &found, modules, memory) {
                Ok(caller) => here = caller,
                Err(stop) => return self.end(is_narrow(arch, &here, &found, modules), stop),
            }
        }
    }

    /// Takes ordinary steps by known rules, and stops at a frame where something is unusual: a
    /// rule, a word, or that the last walk seems to have been there; then some frames after it are
    /// known to be the same, whose number is returned. The loop is small because most frames of new
    /// stacks go through it.
    #[inline(always)]
    fn run(
        &mut self,
        arch: &Arch,
        from: MemoStep,
        memory: &mut impl Memory,
        cache: &RuleCache<'_>,
        left: &mut usize,
        sink: &mut impl Sink,
    ) -> (MemoStep, usize) {
        let mut here = from;
        let kept = self.state.steps;
        let Some((old, new)) = self.steps.split_at_mut_checked(kept) else {
            return (here, 0);
        };
        if !self.noting || !here.is_returning() || here.pc == 0 {
            return (here, 0);
        }
        let free = self.new_steps.saturating_sub(kept);
        let room = new.get_mut(free.saturating_sub(*left)..free).unwrap_or_default();
        let (mut taken, mut same) = (0, 0);
        for place in room.iter_mut().rev() {
            if let Some(place) = self.state.find(&here)
                && let Some(frames) = may_join(arch, old, place, here, memory)
            {
                same = frames;
                break;
            }
            let Some(rule) = cache.at(here.pc) else { break };
            let Some(caller) = here.caller(arch, rule, memory) else {
                break;
            };
            taken += 1;
            *place = here;
            sink.push(&here);
            here = caller;
        }
        *left -= taken;
        self.new_steps -= taken;
        (here, same)
    }

    /// Takes a step of any kind, recording its reads.
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[inline(never)]
    fn step(
        &mut self,
        arch: &Arch,
        here: MemoStep,
        known: &mut Known,
        first: &impl Fn() -> Registers,
        found: &Found,
        modules: &impl Modules,
        memory: &mut impl Memory,
    ) -> Result<MemoStep, Stop> {
        let mut registers = match known {
            Known::Few => here.position(arch).registers,
            Known::First => first(),
            Known::All(registers) => *registers,
        };
        self.pending = 0;
        let is_narrow = is_narrow(arch, &here, found, modules);
        let mut noted = Noted { memory, memo: self };
        match follow(arch, &mut registers, here.kind(), found, modules, &mut noted) {
            Ok(kind) => {
                let mut caller = MemoStep::new(arch, &registers, kind);
                if is_narrow {
                    caller.add(MemoStep::NARROW);
                }
                *known = match caller.has(MemoStep::WHOLE) {
                    true => Known::Few,
                    false => Known::All(registers),
                };
                self.settle(arch, &mut caller);
                Ok(caller)
            }
            Err(stop) => Err(stop),
        }
    }

    /// Keeps the walk, whose last step has found the end.
    fn end(&mut self, is_narrow: bool, stop: Stop) -> Stop {
        let end = MemoStep::end(is_narrow, self.pending);
        self.push_step(end);
        self.keep(0, 0, Some(stop).filter(|_| self.noting));
        stop
    }

    /// Stores the current step's words in its frame, if they fit there.
    fn settle(&mut self, arch: &Arch, caller: &mut MemoStep) {
        let pending = usize::from(self.pending);
        // The last one is first.
        let read = |back: usize| {
            let read = self.reads.get(self.new_reads + pending.checked_sub(back)?)?;
            Some((read.address, read.word))
        };
        let fits = match (pending, read(1), read(2)) {
            (1, Some(ra), _) => caller.became_plain(arch, ra, None),
            // By a rule, or by the chain of frame pointers.
            (2, Some(first), Some(second)) => {
                caller.became_plain(arch, first, Some(second)) || caller.became_plain(arch, second, Some(first))
            }
            _ => false,
        };
        match fits && self.noting {
            true => self.new_reads += pending,
            false => caller.set_reads(self.pending),
        }
    }

    /// The index of a kept frame from which the walk continues as from this one.
    #[inline(always)]
    fn joined(&self, here: &MemoStep) -> Option<usize> {
        self.state.find(here).filter(|place| self.is_joined(*place, here))
    }

    /// Whether the walk continues as from this kept frame.
    #[inline(always)]
    fn is_joined(&self, place: usize, here: &MemoStep) -> bool {
        let steps = self.steps.get(..self.state.steps).unwrap_or_default();
        let next = place.checked_sub(1).and_then(|next| steps.get(next));
        let (Some(kept), Some(next)) = (steps.get(place), next) else {
            return false;
        };
        kept.is_like(here) && (kept.has(MemoStep::WHOLE) && here.has(MemoStep::WHOLE) || next.has(MemoStep::NARROW))
    }

    /// Number of words read that are not stored in the frames themselves.
    #[inline]
    fn reads_of(&self, steps: core::ops::Range<usize>) -> usize {
        match self.state.reads {
            0 => 0,
            _ => self
                .steps
                .get(steps)
                .unwrap_or_default()
                .iter()
                .map(|step| usize::from(step.reads()))
                .sum(),
        }
    }

    /// Drops this kept frame, which the new walk contains itself, and those further inside.
    #[inline]
    fn drop_kept(&mut self, kept: usize) {
        let reads = self.reads_of(kept..self.state.steps);
        self.state.reads = self.state.reads.saturating_sub(reads);
        self.state.steps = kept;
    }

    fn keep_to(&mut self, kept: usize) {
        self.drop_kept(kept);
        self.keep(kept, self.state.reads, self.state.stop);
    }

    /// Follows the last walk after `kept` frames, of which the next ones are known to be the
    /// `same`, as long as the same words are read, for at most `left` frames. Returns how many
    /// frames were not reached, and why the walk ended there.
    #[inline(always)]
    fn follow(
        &self,
        arch: &Arch,
        kept: usize,
        same: usize,
        memory: &mut impl Memory,
        left: usize,
    ) -> (usize, Option<End>) {
        // It must be known whether there is one more frame.
        let last = kept.saturating_sub(left.saturating_add(1));
        let mut rest = kept.saturating_sub(same).max(last);
        let steps = self.steps.get(last..rest).unwrap_or_default();
        let mut reads = self.state.reads;
        for step in steps.iter().rev() {
            let is_same = match step.has(MemoStep::PLAIN) {
                true => step.is_read_again(arch, memory),
                false => step.reads() == 0 || self.are_read_again(step, &mut reads, memory),
            };
            if !is_same {
                return (rest, None);
            }
            rest -= 1;
        }
        match steps.first() {
            Some(end) if end.has(MemoStep::END) => (rest + 1, Some(End::Kept)),
            _ if kept - rest > left => (rest + 1, Some(End::Limit)),
            _ => (rest, None),
        }
    }

    fn reason(&self, end: End) -> Stop {
        match (end, self.state.stop) {
            (End::Kept, Some(stop)) => stop,
            _ => Stop::Limit,
        }
    }

    /// Whether the words that a step has read, stored before these `reads`, are unchanged.
    #[inline(never)]
    fn are_read_again(&self, step: &MemoStep, reads: &mut usize, memory: &mut impl Memory) -> bool {
        let begin = reads.saturating_sub(usize::from(step.reads()));
        let read = self.reads.get(begin..*reads).unwrap_or_default();
        *reads = begin;
        read.iter().rev().all(|read| read.is_same(memory))
    }

    /// Makes the followed part of the last walk part of the new one: from `kept`, where it was
    /// joined, to the frame before the `rest`. Returns the number of frames before the one from
    /// which the walk continues, which is the last of the new ones.
    #[inline(never)]
    fn diverge(&mut self, kept: usize, rest: usize) -> usize {
        let mut from = rest;
        // Registers that a step through a signal frame restored are not kept.
        while from < kept && !self.steps.get(from).is_some_and(|step| step.has(MemoStep::WHOLE)) {
            from += 1;
        }
        let (passed, dropped) = (self.reads_of(from..kept), self.reads_of(rest..from));
        // There is room for everything that leaves the kept part.
        self.new_steps -= kept - from;
        copy(self.steps, from..kept, self.new_steps);
        let end = self.state.reads;
        self.new_reads -= passed;
        copy(self.reads, end.saturating_sub(passed)..end, self.new_reads);
        self.state.reads = end.saturating_sub(passed + dropped);
        self.state.steps = rest;
        from
    }

    /// Records a frame.
    #[inline(always)]
    fn push_step(&mut self, step: MemoStep) {
        if self.new_steps == self.state.steps {
            self.make_room(step.reads());
        }
        if self.noting {
            self.new_steps -= 1;
            if let Some(place) = self.steps.get_mut(self.new_steps) {
                *place = step;
            }
        }
    }

    /// Forgets the kept walk, which is in the way; stops recording if there still is no room.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, reads: u16) {
        self.crowded = true;
        self.clear();
        if self.new_steps == 0 {
            self.stop_noting(reads);
        }
    }

    /// Records a read of the current step.
    fn push_read(&mut self, read: MemoRead) {
        if self.noting && self.new_reads == self.state.reads {
            self.crowded = true;
            self.clear();
            if self.new_reads == 0 {
                self.stop_noting(self.pending);
            }
        }
        if self.noting {
            self.new_reads -= 1;
            self.pending += 1;
            if let Some(place) = self.reads.get_mut(self.new_reads) {
                *place = read;
            }
        }
    }

    /// There is no more room: the outermost recorded frame stays as one from which no step is
    /// known, and the reads of its step are dropped.
    #[cold]
    fn stop_noting(&mut self, reads: u16) {
        if self.noting {
            self.new_reads += usize::from(reads);
        }
        self.noting = false;
        self.pending = 0;
    }

    /// Moves the new part after this much of the kept part.
    #[inline]
    fn keep(&mut self, steps: usize, reads: usize, stop: Option<Stop>) {
        let count = self.steps.len() - self.new_steps;
        let kept = steps + count;
        match self.steps.split_at_mut_checked(self.new_steps) {
            Some((front, new)) if kept <= self.new_steps => {
                let places = front.get_mut(steps..kept).unwrap_or_default();
                for (at, (place, step)) in (steps..).zip(places.iter_mut().zip(new.iter())) {
                    self.state.put(step, at);
                    *place = *step;
                }
            }
            _ => {
                copy(self.steps, self.new_steps..self.steps.len(), steps);
                let moved = self.steps.get(steps..kept).unwrap_or_default();
                (steps..).zip(moved).for_each(|(at, step)| self.state.put(step, at));
            }
        }
        copy(self.reads, self.new_reads..self.reads.len(), reads);
        self.state.steps = kept;
        self.state.reads = reads + self.reads.len() - self.new_reads;
        self.state.stop = stop;
        self.state.was_short = !self.noting || self.crowded;
    }
}

/// Whether the walk has reached a frame of the last one, and will stay with it for some frames: the
/// number of plain steps after it that were checked. Different stacks often have a single frame in
/// common, and following it would cost more than it saves.
#[inline(never)]
fn may_join(arch: &Arch, kept: &[MemoStep], place: usize, here: MemoStep, memory: &mut impl Memory) -> Option<usize> {
    const ENOUGH: usize = 4;
    if !kept.get(place).is_some_and(|kept| kept.is_like(&here)) {
        return None;
    }
    let next = kept.get(place.saturating_sub(ENOUGH)..place).unwrap_or_default();
    let mut same = 0;
    for step in next.iter().rev() {
        if !step.has(MemoStep::PLAIN) {
            break;
        }
        if !step.is_read_again(arch, memory) {
            return None;
        }
        same += 1;
    }
    (!next.is_empty()).then_some(same)
}

/// `copy_within` that cannot panic: elements outside the slice are left out. Mostly copies a frame
/// or two.
#[inline]
fn copy<T: Copy>(items: &mut [T], from: core::ops::Range<usize>, to: usize) {
    let mut one = |index: usize| {
        if let Some(item) = items.get(from.start + index).copied()
            && let Some(place) = items.get_mut(to + index)
        {
            *place = item;
        }
    };
    let count = from.end.saturating_sub(from.start);
    match to < from.start {
        true => (0..count).for_each(&mut one),
        false => (0..count).rev().for_each(&mut one),
    }
}
