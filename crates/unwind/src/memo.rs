//! The last walk of a thread, remembered, so that the next one compares instead of walking.
//!
//! A step depends on the frame's registers, on the words that it reads, and on the tables, and on nothing else. So where a walk
//! comes to a frame to which the last walk came too, with the same registers, all that followed then follows now, as long as the
//! same words are read. To compare them is several times faster than to walk: no table is looked at, and no read waits for the
//! one before.
//!
//! Steps and reads lie in two lent buffers, each used from both ends. What is kept begins at the front with the outermost frame;
//! what the walk at hand does for itself grows from the back towards the front, the innermost frame last. Read upwards, both have the same
//! order, so at the end the new part is moved behind what was kept of the old one, and outer frames that stay the
//! same are never moved at all.

use backtrail_arch::{Arch, Registers};

use crate::{AddressKind, Frame, Memory, Modules, Position, RuleCache, Stop, step};

/// A frame that a walk came to, and what its step read.
#[derive(Clone, Copy, Debug)]
pub struct MemoStep {
    address: u64,
    sp: u64,
    fp: u64,
    flags: u32,
    reads: u32,
}

impl MemoStep {
    /// An unused place.
    pub const EMPTY: MemoStep = MemoStep {
        address: 0,
        sp: 0,
        fp: 0,
        flags: 0,
        reads: 0,
    };

    const RA: u32 = 1;
    const SP: u32 = 2;
    const FP: u32 = 4;
    /// SP and FP are all registers that are known, so that the frame is told by them. A step gives its caller no more, but that
    /// through a signal frame.
    const WHOLE: u32 = 8;

    #[inline]
    fn new(arch: &Arch, at: &Position) -> MemoStep {
        let (sp, fp) = (at.registers.get(arch.sp), at.registers.get(arch.fp));
        let flag = |holds: bool, flag: u32| if holds { flag } else { 0 };
        MemoStep {
            address: at.registers.pc,
            sp: sp.unwrap_or(0),
            fp: fp.unwrap_or(0),
            flags: flag(at.kind == AddressKind::Ra, Self::RA)
                | flag(sp.is_some(), Self::SP)
                | flag(fp.is_some(), Self::FP)
                | flag(at.registers.are_only(&[arch.sp, arch.fp]), Self::WHOLE),
            reads: 0,
        }
    }

    #[inline]
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    fn kind(&self) -> AddressKind {
        match self.has(Self::RA) {
            true => AddressKind::Ra,
            false => AddressKind::Pc,
        }
    }

    #[inline]
    fn frame(&self) -> Frame {
        Frame {
            address: self.address,
            kind: self.kind(),
        }
    }

    /// Whether a walk that is here goes on as one that was at the other.
    #[inline]
    fn is_at(&self, other: &MemoStep) -> bool {
        self.has(Self::WHOLE)
            && (self.address, self.sp, self.fp, self.flags) == (other.address, other.sp, other.fp, other.flags)
    }

    fn position(&self, arch: &Arch) -> Position {
        let mut registers = Registers::new(self.address);
        for (flag, register, value) in [(Self::SP, arch.sp, self.sp), (Self::FP, arch.fp, self.fp)] {
            if self.has(flag) {
                registers.set(register, value);
            }
        }
        Position {
            registers,
            kind: self.kind(),
        }
    }
}

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

/// How much of the buffers is used, and how the walk in them ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoState {
    steps: usize,
    reads: usize,
    /// `None` where no step is known from the outermost frame that is kept.
    stop: Option<Stop>,
    was_short: bool,
}

impl MemoState {
    /// Nothing remembered.
    pub const EMPTY: MemoState = MemoState {
        steps: 0,
        reads: 0,
        stop: None,
        was_short: false,
    };

    /// Whether the last walk had no room to be kept whole.
    pub fn was_short(&self) -> bool {
        self.was_short
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
    /// Whether it is still noted.
    noting: bool,
}

/// Memory whose reads are noted.
struct Noted<'n, 'm, M> {
    memory: &'n mut M,
    memo: &'n mut Memo<'m>,
}

impl<M: Memory> Memory for Noted<'_, '_, M> {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = self.memory.word(address);
        self.memo.push_read(match word {
            Some(word) => MemoRead { address, word },
            None => MemoRead::EMPTY,
        });
        word
    }
}

/// How far the last walk was followed.
enum Followed {
    /// To the end of the walk.
    To(Stop),
    /// To a frame from which a step has to be taken; so many frames were visited.
    Until(MemoStep, usize),
}

impl<'m> Memo<'m> {
    /// What is remembered in `steps` and `reads`, which must be those that `state` was used with before, or `state` empty. Buffers of any
    /// length will do; with none, nothing is remembered. A frame takes a step and about two reads.
    pub fn new(state: &'m mut MemoState, steps: &'m mut [MemoStep], reads: &'m mut [MemoRead]) -> Self {
        if state.steps > steps.len() || state.reads > reads.len() {
            *state = MemoState::EMPTY;
        }
        Memo {
            new_steps: steps.len(),
            new_reads: reads.len(),
            noting: !steps.is_empty(),
            state,
            steps,
            reads,
        }
    }

    /// Forgets the walk.
    pub fn clear(&mut self) {
        *self.state = MemoState::EMPTY;
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
        mut visit: impl FnMut(Frame),
    ) -> Stop {
        let mut at = *from;
        let mut left = limit;
        self.state.was_short = false;
        self.new_steps = self.steps.len();
        self.new_reads = self.reads.len();
        self.noting = !self.steps.is_empty();
        loop {
            let here = MemoStep::new(arch, &at);
            if left > 0 {
                visit(here.frame());
            }
            self.skip_below(&here);
            if self.state.steps > 0 && self.is_joined_by(&here) {
                if left == 0 {
                    self.keep(self.state.steps, self.state.reads, self.state.stop);
                    return Stop::Limit;
                }
                match self.follow(memory, left - 1, &mut visit) {
                    Followed::To(stop) => {
                        self.keep(self.state.steps, self.state.reads, self.state.stop);
                        return stop;
                    }
                    Followed::Until(step, visited) => {
                        at = step.position(arch);
                        left -= visited;
                    }
                }
            } else {
                self.push_step(here);
                if left == 0 {
                    self.keep(0, 0, None);
                    return Stop::Limit;
                }
            }
            let mut noted = Noted { memory, memo: self };
            match step(arch, &mut at.registers, at.kind, modules, &mut noted, cache) {
                Ok(kind) => at.kind = kind,
                Err(stop) => {
                    self.keep(0, 0, Some(stop).filter(|_| self.noting));
                    return stop;
                }
            }
            left -= 1;
        }
    }

    /// Drops the kept frames that lie further inside than the frame at hand.
    #[inline]
    fn skip_below(&mut self, here: &MemoStep) {
        while let Some(kept) = self.last_kept()
            && kept.sp < here.sp
        {
            self.state.steps -= 1;
            self.state.reads = self.state.reads.saturating_sub(kept.reads as usize);
        }
    }

    #[inline]
    fn last_kept(&self) -> Option<MemoStep> {
        self.steps.get(self.state.steps.checked_sub(1)?).copied()
    }

    #[inline]
    fn is_joined_by(&self, here: &MemoStep) -> bool {
        self.last_kept().is_some_and(|kept| kept.is_at(here))
    }

    /// Goes on as the last walk did from its innermost frame that is left, which is where this one is, as long as the same words are
    /// read, and visits at most `limit` frames.
    #[inline]
    fn follow(&mut self, memory: &mut impl Memory, limit: usize, visit: &mut impl FnMut(Frame)) -> Followed {
        let last = self.state.steps.saturating_sub(1);
        // Steps are to be taken from here down to this one.
        let outermost = last.saturating_sub(limit);
        let kept = self.steps.get(..=last).unwrap_or_default();
        let wanted = match outermost {
            0 => self.state.reads,
            _ => kept.iter().skip(outermost).map(|step| step.reads as usize).sum(),
        };
        let end = self.state.reads;
        let reads = self.reads.get(end.saturating_sub(wanted)..end).unwrap_or_default();
        let same = reads.iter().rev().take_while(|read| read.is_same(memory)).count();
        if same == wanted && (outermost > 0 || self.state.stop.is_some()) {
            let followed = kept.get(outermost..last).unwrap_or_default();
            followed.iter().rev().for_each(|step| visit(step.frame()));
            return Followed::To(match self.state.stop {
                Some(stop) if last <= limit => stop,
                _ => Stop::Limit,
            });
        }
        self.diverge(last, same, visit)
    }

    /// The part of a walk that was followed is the new one's, up to the frame whose step read something else.
    fn diverge(&mut self, last: usize, same: usize, visit: &mut impl FnMut(Frame)) -> Followed {
        let reads_of = |steps: &[MemoStep], at: usize| steps.get(at).map_or(0, |step| step.reads as usize);
        let mut at = last;
        let mut followed = 0;
        while at > 0 && followed + reads_of(self.steps, at) <= same {
            followed += reads_of(self.steps, at);
            at -= 1;
        }
        // What a step through a signal frame restored is not kept.
        while at < last && !self.steps.get(at).is_some_and(|step| step.has(MemoStep::WHOLE)) {
            at += 1;
            followed -= reads_of(self.steps, at);
        }
        let passed = self.steps.get(at..last).unwrap_or_default();
        passed.iter().rev().for_each(|step| visit(step.frame()));
        let mut here = self.steps.get(at).copied().unwrap_or(MemoStep::EMPTY);
        // There is room for all that leaves the kept part.
        let end = self.state.steps;
        self.new_steps -= last - at;
        copy(self.steps, at + 1..end, self.new_steps);
        let end = self.state.reads;
        self.new_reads -= followed;
        copy(self.reads, end - followed..end, self.new_reads);
        self.state.steps = at;
        self.state.reads = (end - followed).saturating_sub(here.reads as usize);
        here.reads = 0;
        self.push_step(here);
        Followed::Until(here, last - at)
    }

    /// Notes the frame from which a step is taken next.
    #[inline]
    fn push_step(&mut self, step: MemoStep) {
        if self.noting && self.new_steps == self.state.steps {
            // The kept part is in the way.
            self.clear();
            if self.new_steps == 0 {
                self.stop_noting();
            }
        }
        if self.noting {
            self.new_steps -= 1;
            if let Some(place) = self.steps.get_mut(self.new_steps) {
                *place = step;
            }
        }
    }

    /// Notes what the step at hand has read.
    #[inline]
    fn push_read(&mut self, read: MemoRead) {
        if self.noting && self.new_reads == self.state.reads {
            self.clear();
            if self.new_reads == 0 {
                self.stop_noting();
            }
        }
        if self.noting {
            self.new_reads -= 1;
            if let (Some(place), Some(step)) = (self.reads.get_mut(self.new_reads), self.steps.get_mut(self.new_steps))
            {
                *place = read;
                step.reads += 1;
            }
        }
    }

    /// There is no room for more: the outermost frame that was noted stays as one from which no step is known.
    #[cold]
    fn stop_noting(&mut self) {
        self.noting = false;
        if let Some(step) = self.steps.get_mut(self.new_steps) {
            self.new_reads += step.reads as usize;
            step.reads = 0;
        }
    }

    /// Moves what is new behind so much of what was kept.
    fn keep(&mut self, steps: usize, reads: usize, stop: Option<Stop>) {
        copy(self.steps, self.new_steps..self.steps.len(), steps);
        copy(self.reads, self.new_reads..self.reads.len(), reads);
        *self.state = MemoState {
            steps: steps + self.steps.len() - self.new_steps,
            reads: reads + self.reads.len() - self.new_reads,
            stop,
            was_short: !self.noting,
        };
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
