//! Where a walk meets the last one, and how far it repeats it.
//!
//! It repeats it from frames with the same program counter, stack pointer and frame pointer. Code
//! without frame pointers keeps any value in the last of these, for example a loop's counter; so it
//! may also differ if no step needs it:
//!
//! - A step by a plain rule whose CFA is relative to the stack pointer does not need it: program
//!   counter, stack pointer and the addresses that it reads depend on the stack pointer alone.
//! - Such a step reads the caller's frame pointer from the stack, or passes the callee's on. If it
//!   is read, frames further out do not depend on the callee's.
//! - The end is reached without it if the outermost frame has such a rule or is marked.
//! - Any other step may need it.
//!
//! If only such a frame pointer differs, the kept frames to which the old value was passed are
//! given the new one. They then have the registers that this walk would find, so it continues from
//! them, and later walks join them, as if they had been walked. The same applies if a step by a
//! plain rule reads another frame pointer than before.

use backtrail_arch::Arch;

use super::Memo;
use crate::record::UseOfFp;
use crate::{MemoStep, Memory, Modules, Stop};

/// Where a walk ends that has joined the last one.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Where that did.
    Kept,
    Limit,
}

impl Memo<'_> {
    /// The place of a kept frame, if the walk continues as from there. Frames further inside may
    /// then no longer lead to it.
    #[inline(always)]
    pub(super) fn joined(&mut self, place: usize, here: &MemoStep) -> Option<usize> {
        let next = place.wrapping_sub(self.state.begin).wrapping_sub(1);
        let [next, kept] = self.state.kept(self.steps).get(next..)?.first_chunk()?;
        let is_known = kept.has(MemoStep::WHOLE) && here.has(MemoStep::WHOLE) || next.has(MemoStep::NARROW);
        let is_joined = is_known && (kept.is_like(here) || kept.is_at(here) && self.takes_over(place, here));
        is_joined.then_some(place)
    }

    /// The innermost kept frame, how many frames were not reached from it, and why, if a walk from
    /// this frame is the last one again, for at most `left` more frames.
    #[inline(always)]
    pub(super) fn again(
        &mut self,
        arch: &Arch,
        first: &MemoStep,
        memory: &mut impl Memory,
        left: usize,
    ) -> Option<(usize, usize, End)> {
        let place = self.state.find(first.sp);
        if place + 1 != self.state.end() {
            return None;
        }
        let kept = self.joined(place, first)?;
        let (rest, end) = self.follow(arch, kept, 0, memory, left);
        Some((kept, rest, end?))
    }

    /// Whether a walk from this frame is the last one again, to the end of the stack.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(crate) fn is_repeated(&mut self, arch: &Arch, first: &MemoStep, memory: &mut impl Memory) -> bool {
        let again = self.again(arch, first, memory, usize::MAX);
        matches!(again, Some((_, _, End::Kept))) && self.state.stop == Some(Stop::EndOfStack)
    }

    /// Follows the last walk after `kept` frames, of which the next ones are known to be the
    /// `same`, as long as the same words are read, or others only for a frame pointer that nothing
    /// needs, for at most `left` frames. Returns how many frames were not reached, and why the walk
    /// ended there.
    #[inline(always)]
    pub(super) fn follow(
        &mut self,
        arch: &Arch,
        kept: usize,
        same: usize,
        memory: &mut impl Memory,
        left: usize,
    ) -> (usize, Option<End>) {
        // It must be known whether there is one more frame.
        let last = kept.saturating_sub(left.saturating_add(1)).max(self.state.begin);
        let mut rest = kept.saturating_sub(same).max(last);
        let mut reads = self.state.reads;
        loop {
            rest = self.unchanged(arch, last, rest, &mut reads, memory);
            if rest == last {
                break;
            }
            if !self.renews(arch, rest - 1, memory) {
                return (rest, None);
            }
            rest -= 1;
        }
        match self.steps.get(last) {
            Some(end) if end.has(MemoStep::END) => (rest + 1, Some(End::Kept)),
            _ if kept - rest > left => (rest + 1, Some(End::Limit)),
            _ => (rest, None),
        }
    }

    /// The place after the outermost kept step from `rest` to `last` that, with those further
    /// inside, has read the same words.
    #[inline(always)]
    fn unchanged(
        &self,
        arch: &Arch,
        last: usize,
        mut rest: usize,
        reads: &mut usize,
        memory: &mut impl Memory,
    ) -> usize {
        let steps = self.steps.get(last..rest).unwrap_or_default();
        for step in steps.iter().rev() {
            let is_same = match step.has(MemoStep::PLAIN) {
                true => step.is_read_again(arch, memory),
                false => step.reads() == 0 || self.are_read_again(step, reads, memory),
            };
            if !is_same {
                break;
            }
            rest -= 1;
        }
        rest
    }

    /// Whether the kept step to this place has only read another frame pointer, which nothing
    /// further out needs; then it is changed.
    #[cold]
    #[inline(never)]
    fn renews(&mut self, arch: &Arch, place: usize, memory: &mut impl Memory) -> bool {
        let step = self.steps.get(place);
        match step.and_then(|step| step.fp_read_again(arch, memory)) {
            Some(fp) => self.replace_fp(place, fp),
            None => false,
        }
    }

    /// Whether a kept frame is this one but for a frame pointer that nothing needs.
    #[cold]
    #[inline(never)]
    pub(super) fn is_like_but_fp(&mut self, place: usize, here: &MemoStep) -> bool {
        let is_like = self.steps.get(place).is_some_and(|kept| kept.is_like_but_fp(here));
        is_like && self.has_same_fp_from(place).is_some()
    }

    /// The same; then the kept frame becomes this one.
    #[cold]
    #[inline(never)]
    fn takes_over(&mut self, place: usize, here: &MemoStep) -> bool {
        let is_like = self.steps.get(place).is_some_and(|kept| kept.is_like_but_fp(here));
        is_like && self.replace_fp(place, here.fp)
    }

    /// Gives a kept frame, and those to which its frame pointer was passed, another one, if no step
    /// needs it.
    fn replace_fp(&mut self, place: usize, fp: u64) -> bool {
        let Some(outermost) = self.has_same_fp_from(place) else {
            return false;
        };
        let frames = self.steps.get_mut(outermost..=place).unwrap_or_default();
        frames.iter_mut().for_each(|frame| frame.fp = fp);
        true
    }

    /// The place of the outermost kept frame to which the frame pointer of the one at `place` was
    /// passed, if no step needs it. `None` also further inside than an earlier search in this walk
    /// that has found such a step: otherwise each frame would search up to there again.
    fn has_same_fp_from(&mut self, place: usize) -> Option<usize> {
        if place > self.fp_needed {
            return None;
        }
        let begin = self.state.begin;
        let steps = self.steps.get(begin..place)?;
        let last = steps.iter().rposition(|step| step.use_of_fp() != UseOfFp::Passed);
        // From the outermost frame no step may be known; then the walk goes on with the new value.
        let Some(last) = last else { return Some(begin) };
        match steps.get(last)?.use_of_fp() {
            UseOfFp::Needed => {
                self.fp_needed = begin + last;
                None
            }
            _ => Some(begin + last + 1),
        }
    }

    pub(super) fn reason(&self, end: End) -> Stop {
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
}

/// Whether a walk that has reached this kept frame will stay with the last walk for some frames:
/// the number of plain steps after it that were checked. Different stacks often have a single frame
/// in common, and following it would cost more than it saves.
#[inline(never)]
pub(super) fn stays<M: Modules>(
    arch: &Arch,
    kept: &[MemoStep],
    place: usize,
    memory: &mut impl Memory,
) -> Option<usize> {
    const ENOUGH: usize = 4;
    let arch = M::ARCH.unwrap_or(arch);
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
