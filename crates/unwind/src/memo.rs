//! The last walk of a thread, remembered, so that the next one compares instead of walking.
//!
//! A step depends on the frame's registers, on the words that it reads, and on the tables, and on nothing else. So where a walk
//! comes to a frame to which the last walk came too, with the same registers, all that followed then follows now, as long as the
//! same words are read. To compare them is several times faster than to walk: no table is looked at, and no read waits for the
//! one before.
//!
//! Frames lie in a lent buffer that is used from both ends. What is kept begins at the front with the end of the stack and its outermost frame;
//! what the walk at hand does for itself grows from the back towards the front, the innermost frame last. Read upwards, both have the same
//! order, so at the end the new part is moved behind what was kept of the old one, and outer frames that stay the
//! same are never moved at all. A second buffer has, in the same way, the words of steps that read more than return address and frame pointer.
//!
//! A kept frame is found by its stack pointer: a small table says where one with such a stack pointer may be. It need not be right, since
//! the frame itself tells.

use backtrail_arch::{Arch, Registers};

use crate::step::{Found, find, follow};
use crate::{Frame, MemoStep, Memory, Modules, Position, RuleCache, Stop};

/// A word that a step read.
#[derive(Clone, Copy, Debug)]
pub struct MemoRead {
    address: u64,
    word: u64,
}

impl MemoRead {
    /// Not a word of any memory: it would lie across the end of the address space. What could not be read is noted so, and is
    /// never the same again.
    pub const EMPTY: MemoRead = MemoRead {
        address: u64::MAX,
        word: 0,
    };

    #[inline]
    fn is_same(&self, memory: &mut impl Memory) -> bool {
        memory.word(self.address) == Some(self.word)
    }
}

/// Kept frames are found by so many of a stack pointer's bits.
const PLACES: usize = 256;

/// How much of the buffers is used, and how the walk in them ended.
#[derive(Clone, Copy, Debug)]
pub struct MemoState {
    steps: usize,
    reads: usize,
    /// `None` where no step is known from the outermost frame that is kept.
    stop: Option<Stop>,
    was_short: bool,
    /// Where a kept frame may be, by its stack pointer.
    places: [u16; PLACES],
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

    /// Whether the last walk had no room to be kept whole.
    pub fn was_short(&self) -> bool {
        self.was_short
    }

    #[inline(always)]
    fn place(sp: u64) -> usize {
        (sp >> 4) as usize % PLACES
    }
}

impl Default for MemoState {
    fn default() -> Self {
        MemoState::EMPTY
    }
}

/// The last walk, in memory that the caller lends. It never changes an answer: where registers or words differ, or
/// are not known, the walk is taken as if there were none.
///
/// It belongs to one thread's stack and one set of tables: [`Memo::clear`] it before the tables are others.
#[derive(Debug)]
pub struct Memo<'m> {
    state: &'m mut MemoState,
    steps: &'m mut [MemoStep],
    reads: &'m mut [MemoRead],
    /// Where in the buffers the walk at hand begins.
    new_steps: usize,
    new_reads: usize,
    /// What the step at hand has read.
    pending: u16,
    /// Whether it is still noted.
    noting: bool,
}

/// Memory whose reads are noted.
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

/// What is known of the frame at hand.
enum Known {
    /// Its stack pointer and its frame pointer.
    Few,
    /// The registers with which the walk began.
    First,
    /// What a signal frame has restored.
    All(Registers),
}

/// How far the last walk was followed.
enum Followed {
    /// To the end of the walk.
    To(Stop),
    /// So that so many of the kept frames were not come to.
    Until(usize),
}

impl<'m> Memo<'m> {
    /// What is remembered in `steps` and `reads`, which must be those that `state` was used with before, or `state` empty. Buffers of any
    /// length will do; with none, nothing is remembered. A frame takes a step, and one behind a signal some twenty reads.
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
            state,
            steps,
            reads,
        }
    }

    /// Forgets the walk.
    pub fn clear(&mut self) {
        self.state.steps = 0;
        self.state.reads = 0;
        self.state.stop = None;
    }

    /// What [`walk`](crate::walk()) does.
    #[allow(
        clippy::too_many_arguments,
        reason = "those of the walk that it is, and the memory of the last one"
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
        self.walk_from(arch, first, &registers, modules, memory, cache, limit, visit)
    }

    /// A walk from a frame whose other registers are asked for where they are needed, which is seldom.
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[inline(always)]
    pub(crate) fn walk_from(
        &mut self,
        arch: &Arch,
        first: MemoStep,
        registers: &impl Fn() -> Registers,
        modules: &impl Modules,
        memory: &mut impl Memory,
        cache: &mut RuleCache<'_>,
        limit: usize,
        mut visit: impl FnMut(Frame),
    ) -> Stop {
        let mut here = first;
        let mut known = match first.has(MemoStep::WHOLE) {
            true => Known::Few,
            false => Known::First,
        };
        let mut left = limit;
        // Frames that were visited already when the walk goes back to one of which enough is known.
        let mut again = 0;
        self.state.was_short = false;
        self.new_steps = self.steps.len();
        self.new_reads = self.reads.len();
        self.noting = !self.steps.is_empty();
        loop {
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
                visit(here.frame());
                left -= 1;
            }
            if let Some(kept) = joined {
                self.drop_kept(kept);
                match self.follow(arch, kept, memory, &mut left, &mut visit) {
                    Followed::To(stop) => {
                        self.keep(kept, self.state.reads, self.state.stop);
                        return stop;
                    }
                    Followed::Until(rest) if rest == kept => {}
                    Followed::Until(rest) => {
                        let from = self.diverge(kept, rest);
                        again = from - rest;
                        if from < kept {
                            here = self.steps.get(self.new_steps).copied().unwrap_or(MemoStep::EMPTY);
                            known = Known::Few;
                        }
                    }
                }
            }
            let found = find(arch, here.pc, here.kind(), modules, cache);
            if let Found::Packed(rule) = found
                && let Some(caller) = here.caller(arch, rule, memory)
            {
                here = caller;
                known = Known::Few;
                continue;
            }
            match self.step(arch, &here, &mut known, registers, &found, memory) {
                Ok(caller) => here = caller,
                Err(stop) => return stop,
            }
        }
    }

    /// A step of any kind, with its reads noted. Where it finds the end, the walk is kept.
    #[inline(never)]
    fn step(
        &mut self,
        arch: &Arch,
        here: &MemoStep,
        known: &mut Known,
        first: &impl Fn() -> Registers,
        found: &Found,
        memory: &mut impl Memory,
    ) -> Result<MemoStep, Stop> {
        let mut registers = match known {
            Known::Few => here.position(arch).registers,
            Known::First => first(),
            Known::All(registers) => *registers,
        };
        self.pending = 0;
        let is_narrow = found.is_narrow(arch);
        let mut noted = Noted { memory, memo: self };
        match follow(arch, &mut registers, here.kind(), found, &mut noted) {
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
            Err(stop) => {
                let end = MemoStep::end(is_narrow, self.pending);
                self.push_step(end);
                self.keep(0, 0, Some(stop).filter(|_| self.noting));
                Err(stop)
            }
        }
    }

    /// The words that the step at hand has read go into its frame, if that has room for them.
    fn settle(&mut self, arch: &Arch, caller: &mut MemoStep) {
        let pending = usize::from(self.pending);
        // The last one lies first.
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
            false => caller.reads = self.pending,
        }
    }

    /// The place of a kept frame from which the walk goes on as from this one.
    #[inline(always)]
    fn joined(&self, here: &MemoStep) -> Option<usize> {
        let place = self.state.places.get(MemoState::place(here.sp)).copied()?;
        let place = usize::from(place);
        if place >= self.state.steps {
            return None;
        }
        let kept = self.steps.get(place).filter(|kept| kept.is_like(here))?;
        let next = self.steps.get(place.checked_sub(1)?)?;
        let is_told = kept.has(MemoStep::WHOLE) && here.has(MemoStep::WHOLE) || next.has(MemoStep::NARROW);
        is_told.then_some(place)
    }

    /// How much was read that is not in the frames themselves.
    #[inline]
    fn reads_of(&self, steps: core::ops::Range<usize>) -> usize {
        match self.state.reads {
            0 => 0,
            _ => self
                .steps
                .get(steps)
                .unwrap_or_default()
                .iter()
                .map(|step| usize::from(step.reads))
                .sum(),
        }
    }

    /// Drops the kept frames that lie further inside, and this one, which the new walk has itself.
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

    /// Goes on as the last walk did from the frame behind so many kept ones, as long as the same words are read, and visits at most `left` frames.
    #[inline(always)]
    fn follow(
        &mut self,
        arch: &Arch,
        kept: usize,
        memory: &mut impl Memory,
        left: &mut usize,
        visit: &mut impl FnMut(Frame),
    ) -> Followed {
        let mut reads = self.state.reads;
        for (place, step) in self.steps.get(..kept).unwrap_or_default().iter().enumerate().rev() {
            let is_same = match step.has(MemoStep::PLAIN) {
                true => step.is_read_again(arch, memory),
                false => {
                    let begin = reads.saturating_sub(usize::from(step.reads));
                    let read = self.reads.get(begin..reads).unwrap_or_default();
                    reads = begin;
                    read.iter().rev().all(|read| read.is_same(memory))
                }
            };
            if !is_same {
                return Followed::Until(place + 1);
            }
            if step.has(MemoStep::END) {
                return Followed::To(self.state.stop.unwrap_or(Stop::NoTable));
            }
            if *left == 0 {
                return Followed::To(Stop::Limit);
            }
            visit(step.frame());
            *left -= 1;
        }
        Followed::Until(0)
    }

    /// The part of a walk that was followed is the new one's: from `kept`, where it was joined, to the frame in front of the `rest`. Returns how
    /// many are in front of the frame from which the walk goes on; it is the last of the new ones.
    #[inline(never)]
    fn diverge(&mut self, kept: usize, rest: usize) -> usize {
        let mut from = rest;
        // What a step through a signal frame restored is not kept.
        while from < kept && !self.steps.get(from).is_some_and(|step| step.has(MemoStep::WHOLE)) {
            from += 1;
        }
        let (passed, dropped) = (self.reads_of(from..kept), self.reads_of(rest..from));
        // There is room for all that leaves the kept part.
        self.new_steps -= kept - from;
        copy(self.steps, from..kept, self.new_steps);
        let end = self.state.reads;
        self.new_reads -= passed;
        copy(self.reads, end.saturating_sub(passed)..end, self.new_reads);
        self.state.reads = end.saturating_sub(passed + dropped);
        self.state.steps = rest;
        from
    }

    /// Notes a frame.
    #[inline(always)]
    fn push_step(&mut self, step: MemoStep) {
        if self.new_steps == self.state.steps {
            self.make_room(step.reads);
        }
        if self.noting {
            self.new_steps -= 1;
            if let Some(place) = self.steps.get_mut(self.new_steps) {
                *place = step;
            }
        }
    }

    /// The kept part is in the way.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, reads: u16) {
        self.clear();
        if self.new_steps == 0 {
            self.stop_noting(reads);
        }
    }

    /// Notes what the step at hand has read.
    fn push_read(&mut self, read: MemoRead) {
        if self.noting && self.new_reads == self.state.reads {
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

    /// There is no room for more: the outermost frame that was noted stays as one from which no step is known, and what that step
    /// has read is given up.
    #[cold]
    fn stop_noting(&mut self, reads: u16) {
        if self.noting {
            self.new_reads += usize::from(reads);
        }
        self.noting = false;
        self.pending = 0;
    }

    /// Moves what is new behind so much of what was kept.
    #[inline]
    fn keep(&mut self, steps: usize, reads: usize, stop: Option<Stop>) {
        copy(self.steps, self.new_steps..self.steps.len(), steps);
        let kept = steps + self.steps.len() - self.new_steps;
        for (place, step) in self
            .steps
            .get(..kept)
            .unwrap_or_default()
            .iter()
            .enumerate()
            .skip(steps)
        {
            if let (Some(at), Ok(place)) = (
                self.state.places.get_mut(MemoState::place(step.sp)),
                u16::try_from(place),
            ) {
                *at = place;
            }
        }
        copy(self.reads, self.new_reads..self.reads.len(), reads);
        self.state.steps = kept;
        self.state.reads = reads + self.reads.len() - self.new_reads;
        self.state.stop = stop;
        self.state.was_short = !self.noting;
    }
}

/// `copy_within` that cannot panic: what would lie outside is left out. Mostly it is a frame or two.
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
