//! The last walk of a thread, remembered, so that the next one compares instead of walking.
//!
//! A step depends only on the frame's registers, the words that it reads, and the tables. So if a
//! walk reaches a frame of the last walk with the same registers, the rest of the walk is the same,
//! as long as the same words are read. Comparing them is several times faster than walking: no
//! table is looked up, and no read waits for the one before. A frame pointer that no step needs may
//! differ: see [`join`].
//!
//! Frames are in a borrowed buffer. The kept walk begins with the end of the stack and its
//! outermost frame; the current walk grows towards the buffer's front, above the kept walk or below
//! it, the innermost frame last. Read upwards, both have the same order, so at the end either the
//! new part is moved after the kept part of the old walk, or that part before the new one,
//! whichever is shorter. A second buffer contains the words of steps that read more than return
//! address and frame pointer: the kept walk's at the front, the current walk's at the back.
//!
//! A kept frame is found by its stack pointer: a small table gives the place where a frame with
//! such a stack pointer may be. It may be wrong, since the frame itself is checked.

mod join;
#[cfg(test)]
mod tests;

use backtrail_arch::{Arch, Registers};

use crate::cache::at;
use crate::circle::Circle;
use crate::copy::copy;
use crate::sink::{Each, Sink};
use crate::step::{Found, find, follow};
use crate::{CacheEntry, Frame, MemoStep, Memory, Modules, Position, RuleCache, Stop};
use join::stays;

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
const PLACES: usize = 1024;

/// After this many frames, a walk is compared with the last one. Different stacks often have a
/// single frame in common, which costs more to follow than it saves.
const UNCHECKED: usize = 4;
/// Room that a walk may need beyond that of the last one.
const SPARE: usize = 8;

/// Repeats a block for some variables: a loop over them would not be unrolled.
macro_rules! for_each {
    ($($item:ident)*, $name:ident => $body:block) => {
        $( { let $name = &mut *$item; $body } )*
    };
}

/// How much of the buffers is used, and how their walk ended.
#[derive(Clone, Copy, Debug)]
pub struct MemoState {
    /// The kept walk in the buffer: the place of its end, and the number of steps.
    begin: usize,
    steps: usize,
    reads: usize,
    /// `None` if no step is known from the outermost kept frame.
    stop: Option<Stop>,
    was_short: bool,
    /// The number of walks that differed from the one before.
    number: u64,
    /// Places where kept frames may be, by stack pointer.
    places: [u16; PLACES],
}

impl MemoState {
    /// Nothing remembered.
    pub const EMPTY: MemoState = MemoState {
        begin: 0,
        steps: 0,
        reads: 0,
        stop: None,
        was_short: false,
        number: 0,
        places: [0; PLACES],
    };

    /// Whether the buffers had too little room for the whole last walk, or for it beside the one
    /// before.
    pub fn was_short(&self) -> bool {
        self.was_short
    }

    /// The part of the buffer of steps that is used: the outermost frame first.
    pub fn kept<'s>(&self, steps: &'s [MemoStep]) -> &'s [MemoStep] {
        steps.get(self.begin..self.end()).unwrap_or_default()
    }

    #[cfg(feature = "local")]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Forgets the walk, but not its number.
    #[cfg(feature = "local")]
    pub(crate) fn forget(&mut self) {
        let number = self.number;
        *self = MemoState::EMPTY;
        self.number = number;
    }

    /// The place after the innermost kept frame.
    #[inline(always)]
    fn end(&self) -> usize {
        self.begin + self.steps
    }

    #[inline(always)]
    fn place(sp: u64) -> usize {
        (sp >> 4) as usize % PLACES
    }

    /// The place where a kept frame with this stack pointer may be.
    #[inline(always)]
    fn find(&self, sp: u64) -> usize {
        self.places.get(MemoState::place(sp)).copied().unwrap_or(0).into()
    }

    #[inline(always)]
    fn put(&mut self, sp: u64, place: usize) {
        if let Some(at) = self.places.get_mut(MemoState::place(sp)) {
            // A place that does not fit leads to another frame, and the check fails.
            *at = place as u16;
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
    /// The place after its innermost frame.
    new_end: usize,
    /// Whether it is above the kept walk, otherwise below.
    is_above: bool,
    /// What [`Memo::run_until_met`] returns besides the registers that it returns.
    run: Run,
    /// Number of words that the current step has read.
    pending: u16,
    /// Whether reads are still recorded.
    noting: bool,
    /// Whether the last walk was dropped to make room.
    crowded: bool,
    /// The place of a kept step that uses the frame pointer of each frame further inside, as far as
    /// this walk has looked.
    fp_needed: usize,
    circle: Circle,
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

/// The frame that a run has reached, except for program counter and stack pointer.
#[derive(Clone, Copy, Debug)]
struct Run {
    fp: u64,
    /// The index of the kept frame that it seems to be.
    met: Option<usize>,
    how: u64,
}

impl Run {
    const NOWHERE: Run = Run {
        fp: 0,
        met: None,
        how: 0,
    };
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
        if state.end() > steps.len() || state.reads > reads.len() {
            state.begin = 0;
            state.steps = 0;
            state.reads = 0;
        }
        Memo {
            new_steps: steps.len(),
            new_reads: reads.len(),
            new_end: steps.len(),
            is_above: true,
            run: Run::NOWHERE,
            pending: 0,
            noting: !steps.is_empty(),
            crowded: false,
            fp_needed: usize::MAX,
            circle: Circle::default(),
            state,
            steps,
            reads,
        }
    }

    /// The outermost frame of the last walk, if all of it was remembered.
    #[cfg(feature = "local")]
    pub(crate) fn outermost(&self) -> Option<&MemoStep> {
        let [end, outermost, ..] = self.state.kept(self.steps) else {
            return None;
        };
        end.has(MemoStep::END).then_some(outermost)
    }

    /// Forgets the walk.
    pub fn clear(&mut self) {
        self.state.begin = 0;
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
        // An identical stack is kept as it is.
        if limit > 0
            && sink.may_repeat()
            && let Some((kept, rest, end)) = self.again(arch, &here, memory, limit - 1)
        {
            sink.push(&here);
            sink.push_kept(self.steps.get(rest..kept).unwrap_or_default());
            return self.reason(end);
        }
        self.begin();
        loop {
            // Frames of the last walk that are known to be those of this one.
            let mut same = 0;
            if M::CAN_LAST && again == 0 {
                let begin = here.sp;
                (here, same) = self.run::<M>(arch, here, memory, cache, &mut left, sink);
                if here.sp != begin {
                    known = Known::Few;
                }
            }
            let place = self.state.find(here.sp);
            self.push_step(here);
            self.state.put(here.sp, self.new_steps);
            let joined = self.joined(place, &here);
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
                    let stop = self.reason(end);
                    self.keep(self.state.steps, self.state.reads, self.state.stop);
                    return stop;
                }
                if rest < kept {
                    left -= kept - rest;
                    let passed = self.diverge(kept, rest);
                    again = kept - rest - passed.count;
                    if let Some(last) = passed.last {
                        here = last;
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
                Err(stop) => {
                    let is_narrow = is_narrow(arch, &here, &found, modules);
                    return self.end(is_narrow, found.ends_without_fp(), stop);
                }
            }
        }
    }

    /// Takes ordinary steps by known rules, and stops at a frame where something is unusual: a
    /// rule, a word, or that the last walk seems to have been there; then some frames after it are
    /// known to be the same, whose number is returned.
    #[inline(always)]
    fn run<M: Modules>(
        &mut self,
        arch: &Arch,
        from: MemoStep,
        memory: &mut impl Memory,
        cache: &RuleCache<'_>,
        left: &mut usize,
        sink: &mut impl Sink,
    ) -> (MemoStep, usize) {
        let mut here = from;
        let Some(entries) = cache.usual() else {
            return (here, 0);
        };
        if !self.noting || !here.is_returning() || here.pc == 0 {
            return (here, 0);
        }
        let first = self.new_steps;
        let lowest = self.lowest().max(first.saturating_sub(*left));
        let mut same = 0;
        loop {
            let (pc, sp) = self.run_until_met::<M>(arch, here, memory, entries, lowest);
            here = MemoStep::led(pc, sp, self.run.fp, self.run.how);
            let Some(place) = self.run.met else { break };
            let kept = self.state.kept(self.steps);
            let is_like = kept.get(place).is_some_and(|kept| kept.is_like(&here));
            if (is_like || self.is_like_but_fp(self.state.begin + place, &here))
                && let Some(frames) = stays::<M>(arch, self.state.kept(self.steps), place, memory)
            {
                same = frames;
                break;
            }
        }
        let taken = self.steps.get(self.new_steps..first).unwrap_or_default();
        sink.push_kept(taken);
        *left -= taken.len();
        (here, same)
    }

    /// Takes these steps, and stops at the first that the last walk seems to have been at, and at
    /// its callee. Returns program counter and stack pointer of the frame that it has reached; the
    /// rest is in `self.run`. The loop is in a function of its own so that all it needs is in
    /// registers, because most frames of new stacks go through it, and the frame is not returned
    /// through memory, since its reader would have to wait for that.
    #[inline(never)]
    fn run_until_met<M: Modules>(
        &mut self,
        arch: &Arch,
        from: MemoStep,
        memory: &mut impl Memory,
        entries: &[CacheEntry; RuleCache::USUAL],
        lowest: usize,
    ) -> (u64, u64) {
        let arch = M::ARCH.unwrap_or(arch);
        let (kept, new) = split(self.steps, self.state, lowest, self.new_steps).unwrap_or_default();
        let state = &mut *self.state;
        const NONE: &[MemoStep] = &[MemoStep::EMPTY; 2];
        let (kept, last) = match kept.len().checked_sub(2) {
            Some(last) => (kept, last),
            None => (NONE, 0),
        };
        let (mut here, mut place) = (from, self.new_steps);
        let mut met = None;
        'walk: for places in new.as_rchunks_mut::<UNCHECKED>().1.iter_mut().rev() {
            let [d, c, b, a] = places;
            for_each!(a b c d, step => {
                // Not counted if the step fails; later it would take more registers.
                *step = here;
                let Some(rule) = at(entries, here.pc) else { break 'walk };
                let Some(caller) = here.caller(arch, rule, memory) else {
                    break 'walk;
                };
                place -= 1;
                state.put(here.sp, place);
                here = caller;
            });
            // Places of earlier walks lead to any frame: no branch for them is predictable.
            let frame = state.find(here.sp).wrapping_sub(state.begin).min(last);
            if let Some([this, inner]) = kept.get(frame..).and_then(|kept| kept.first_chunk())
                && let [callee, ..] = places
                && this.is_at(&here) & inner.is_at(callee)
            {
                met = Some(frame);
                break;
            }
        }
        self.new_steps = place;
        self.run = Run {
            fp: here.fp,
            met,
            how: here.how(),
        };
        (here.pc, here.sp)
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
                if caller.sp <= here.sp && self.circle.is_closed_by(caller.pc, caller.sp) {
                    return Err(Stop::DidNotAdvance);
                }
                self.settle(arch, &mut caller);
                Ok(caller)
            }
            Err(stop) => Err(stop),
        }
    }

    /// Keeps the walk, whose last step has found the end.
    fn end(&mut self, is_narrow: bool, is_without_fp: bool, stop: Stop) -> Stop {
        let end = MemoStep::end(is_narrow, is_without_fp, self.pending);
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

    /// Begins a walk, where there is room for one like the last, or else more room.
    #[inline(always)]
    fn begin(&mut self) {
        if self.state.steps == 0 {
            self.state.begin = 0;
        }
        let (below, above) = (self.state.begin, self.steps.len() - self.state.end());
        self.is_above = above >= self.state.steps + SPARE || above >= below;
        self.new_end = if self.is_above { self.steps.len() } else { below };
        self.new_steps = self.new_end;
        self.new_reads = self.reads.len();
        self.noting = !self.steps.is_empty();
        self.crowded = false;
        self.fp_needed = usize::MAX;
        self.circle = Circle::default();
        self.state.number = self.state.number.wrapping_add(1);
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
        let reads = self.reads_of(kept..self.state.end());
        self.state.reads = self.state.reads.saturating_sub(reads);
        self.state.steps = kept - self.state.begin;
    }

    fn keep_to(&mut self, kept: usize) {
        self.drop_kept(kept);
        self.keep(self.state.steps, self.state.reads, self.state.stop);
    }

    /// Makes the followed part of the last walk part of the new one: from `kept`, where it was
    /// joined, to the frame before the `rest`. The walk continues from the last of these.
    #[inline(never)]
    fn diverge(&mut self, kept: usize, rest: usize) -> Passed {
        let mut from = rest;
        // Registers that a step through a signal frame restored are not kept.
        while from < kept && !self.steps.get(from).is_some_and(|step| step.has(MemoStep::WHOLE)) {
            from += 1;
        }
        let passed = Passed {
            count: kept - from,
            last: self.steps.get(from..kept).and_then(|passed| passed.first()).copied(),
        };
        let (reads, dropped) = (self.reads_of(from..kept), self.reads_of(rest..from));
        if !self.is_above && self.new_steps < passed.count {
            if self.new_end - self.new_steps > self.steps.len() - kept {
                self.crowded = true;
                self.clear();
                self.stop_noting(0);
                return passed;
            }
            self.move_new(self.steps.len());
            self.is_above = true;
        }
        if self.noting {
            // There is room for everything that leaves the kept part.
            self.new_steps -= passed.count;
            copy(self.steps, from..kept, self.new_steps);
            self.put(self.new_steps..self.new_steps + passed.count);
            self.new_reads -= reads;
            let end = self.state.reads;
            copy(self.reads, end.saturating_sub(reads)..end, self.new_reads);
        }
        self.state.reads = self.state.reads.saturating_sub(reads + dropped);
        self.state.steps = rest - self.state.begin;
        passed
    }

    /// Records a frame.
    #[inline(always)]
    fn push_step(&mut self, step: MemoStep) {
        if self.new_steps == self.lowest() {
            self.make_room(step.reads());
        }
        if self.noting {
            self.new_steps -= 1;
            if let Some(place) = self.steps.get_mut(self.new_steps) {
                *place = step;
            }
        }
    }

    /// The lowest place of the current walk's room.
    #[inline(always)]
    fn lowest(&self) -> usize {
        match self.is_above {
            true => self.state.end(),
            false => 0,
        }
    }

    /// Goes on below the kept walk, or forgets that, which is in the way; stops recording if there
    /// still is no room.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, reads: u16) {
        let count = self.new_end - self.new_steps;
        if self.is_above && self.noting && self.state.begin > count {
            self.move_new(self.state.begin);
            self.is_above = false;
            return;
        }
        self.crowded = true;
        self.clear();
        self.is_above = true;
        self.move_new(self.steps.len());
        if self.new_steps == 0 {
            self.stop_noting(reads);
        }
    }

    /// Moves the current walk's frames so that they end there.
    fn move_new(&mut self, end: usize) {
        let to = end - (self.new_end - self.new_steps);
        copy(self.steps, self.new_steps..self.new_end, to);
        self.put(to..end);
        (self.new_steps, self.new_end) = (to, end);
    }

    /// Makes these frames be found.
    fn put(&mut self, places: core::ops::Range<usize>) {
        let steps = self.steps.get(places.clone()).unwrap_or_default();
        places
            .zip(steps)
            .for_each(|(place, step)| self.state.put(step.sp, place));
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

    /// Joins the new part and this much of the kept part, of which the shorter one is moved.
    #[inline]
    fn keep(&mut self, steps: usize, reads: usize, stop: Option<Stop>) {
        let count = self.new_end - self.new_steps;
        let (begin, end) = (self.state.begin, self.state.begin + steps);
        let fits_after = self.is_above || end + count <= self.steps.len();
        let fits_before = self.is_above || steps <= self.new_steps;
        self.state.stop = stop;
        self.state.reads = reads;
        self.state.steps = steps + count;
        if steps > 0 && fits_after && (count <= steps || !fits_before) {
            copy(self.steps, self.new_steps..self.new_end, end);
            self.put(end..end + count);
        } else if fits_before {
            let to = self.new_steps - steps;
            copy(self.steps, begin..end, to);
            self.put(to..self.new_steps);
            self.state.begin = to;
        } else {
            self.crowded = true;
            self.state.begin = self.new_steps;
            self.state.steps = count;
            self.state.reads = 0;
            self.state.stop = None;
        }
        let reads = self.state.reads;
        copy(self.reads, self.new_reads..self.reads.len(), reads);
        self.state.reads = reads + self.reads.len() - self.new_reads;
        self.state.was_short = !self.noting || self.crowded;
    }
}

/// The frames of the last walk that the current one has passed.
struct Passed {
    count: usize,
    /// The outermost of them.
    last: Option<MemoStep>,
}

/// The kept walk, and the room for new steps from one place to another, above or below.
#[inline(always)]
fn split<'s>(
    steps: &'s mut [MemoStep],
    state: &MemoState,
    from: usize,
    to: usize,
) -> Option<(&'s [MemoStep], &'s mut [MemoStep])> {
    let (begin, end) = (state.begin, state.end());
    if from >= end {
        let (kept, new) = steps.split_at_mut_checked(end)?;
        return Some((kept.get(begin..)?, new.get_mut(from - end..to.checked_sub(end)?)?));
    }
    let (new, kept) = steps.split_at_mut_checked(begin)?;
    Some((kept.get(..state.steps)?, new.get_mut(from..to)?))
}
