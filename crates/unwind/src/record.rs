//! A frame of a remembered walk, in half a cache line, and the plain steps between such frames.

use backtrail_arch::{Arch, Registers};

use crate::cache::{PackedRule, Slot};
use crate::{AddressKind, Frame, Memory, Position};

/// A frame of a remembered walk, with the words that the step to it has read. A plain step's words
/// are stored here, in terms of its results; others in [`MemoRead`](crate::MemoRead)s.
#[derive(Clone, Copy, Debug)]
pub struct MemoStep {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// Flags (bits 8 to 15). After a plain step, also whether it has read the return address and
    /// the frame pointer, and where from `sp`; after another, how many words it has read (48 to
    /// 63). A step by a [plain](PackedRule::is_plain) rule keeps the rest of the rule; other steps
    /// leave its kind (0 to 2) clear.
    how: u64,
}

/// What a step does with the frame pointer of the frame that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UseOfFp {
    /// Where it leads may depend on it.
    Needed,
    /// It does not, and the caller's is another one, or there is no caller.
    Dropped,
    /// It does not, and the caller has the same.
    Passed,
}

const _: () = {
    let flags = MemoStep::RETURNING | MemoStep::WHOLE | MemoStep::NARROW | MemoStep::PLAIN;
    assert!(PackedRule::PLAIN_STEP == flags);
};

impl MemoStep {
    /// An unused entry.
    pub const EMPTY: MemoStep = MemoStep {
        pc: 0,
        sp: 0,
        fp: 0,
        how: 0,
    };

    /// A plain step has read the frame pointer; otherwise it is the callee's.
    const READ_FP: u64 = PackedRule::HAS_FP;
    /// The frame pointer is just below the return address.
    const PAIR: u64 = PackedRule::PAIR;
    const RA: u64 = 1 << 8;
    const SP: u64 = 1 << 9;
    const FP: u64 = 1 << 10;
    const RETURNING: u64 = Self::RA | Self::SP | Self::FP;
    /// Only SP and FP are known, so they identify the frame. A step gives its caller no other
    /// registers, except through a signal frame.
    pub(crate) const WHOLE: u64 = 1 << 11;
    /// The step that led here needed only SP and FP.
    pub(crate) const NARROW: u64 = 1 << 12;
    /// That step has read the return address, and at most the frame pointer besides.
    pub(crate) const PLAIN: u64 = 1 << 13;
    /// Not a frame: the reads of the last step, which found the end.
    pub(crate) const END: u64 = 1 << 14;

    #[inline]
    pub(crate) fn new(arch: &Arch, registers: &Registers, kind: AddressKind) -> MemoStep {
        let (sp, fp) = (registers.get(arch.sp), registers.get(arch.fp));
        let flag = |holds: bool, flag: u64| if holds { flag } else { 0 };
        MemoStep {
            pc: registers.pc,
            sp: sp.unwrap_or(0),
            fp: fp.unwrap_or(0),
            how: flag(kind == AddressKind::Ra, Self::RA)
                | flag(sp.is_some(), Self::SP)
                | flag(fp.is_some(), Self::FP)
                | flag(registers.are_only(&[arch.sp, arch.fp]), Self::WHOLE),
        }
    }

    /// A frame with [how](MemoStep::how) it was reached.
    #[inline(always)]
    pub(crate) fn led(pc: u64, sp: u64, fp: u64, how: u64) -> MemoStep {
        MemoStep { pc, sp, fp, how }
    }

    /// All that is stored about the step that led here.
    #[inline(always)]
    pub(crate) fn how(&self) -> u64 {
        self.how
    }

    /// A frame of which these are known, and other registers.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(crate) fn returning(pc: u64, sp: u64, fp: u64) -> MemoStep {
        MemoStep {
            pc,
            sp,
            fp,
            how: Self::RETURNING,
        }
    }

    pub(crate) fn end(is_narrow: bool, is_without_fp: bool, reads: u16) -> MemoStep {
        let flag = |holds: bool, flag: u64| if holds { flag } else { 0 };
        MemoStep {
            how: Self::END
                | flag(is_narrow, Self::NARROW)
                | flag(is_without_fp, PackedRule::CALLER)
                | u64::from(reads) << 48,
            ..MemoStep::EMPTY
        }
    }

    #[inline(always)]
    pub(crate) fn has(&self, flag: u64) -> bool {
        self.how & flag != 0
    }

    pub(crate) fn add(&mut self, flag: u64) {
        self.how |= flag;
    }

    /// How many words a step that was not plain has read.
    #[inline(always)]
    pub(crate) fn reads(&self) -> u16 {
        match self.has(Self::PLAIN) {
            true => 0,
            false => (self.how >> 48) as u16,
        }
    }

    pub(crate) fn set_reads(&mut self, reads: u16) {
        self.how = self.how << 16 >> 16 | u64::from(reads) << 48;
    }

    /// The frame's stack pointer; `None` if it is not known, or this is no frame.
    pub fn stack_pointer(&self) -> Option<u64> {
        self.has(Self::SP).then_some(self.sp)
    }

    #[inline(always)]
    fn ra_at(&self) -> u64 {
        self.sp.wrapping_add_signed(Slot::first(self.how).offset())
    }

    #[inline(always)]
    fn fp_at(&self) -> u64 {
        self.sp.wrapping_add_signed(Slot::second(self.how).offset())
    }

    #[inline(always)]
    pub(crate) fn kind(&self) -> AddressKind {
        match self.has(Self::RA) {
            true => AddressKind::Ra,
            false => AddressKind::Pc,
        }
    }

    /// The address to look up for the frame's rule.
    #[cfg(feature = "local")]
    pub(crate) fn looked_up(&self) -> u64 {
        match self.kind() {
            AddressKind::Pc => self.pc,
            AddressKind::Ra => self.pc.wrapping_sub(1),
        }
    }

    #[inline(always)]
    pub(crate) fn frame(&self) -> Frame {
        Frame {
            address: self.pc,
            kind: self.kind(),
        }
    }

    /// Whether both are the same frame, judging by SP and FP.
    #[inline(always)]
    pub(crate) fn is_like(&self, other: &MemoStep) -> bool {
        let told = Self::RA | Self::SP | Self::FP | Self::END;
        let flags = (self.how ^ other.how) & told;
        (self.pc ^ other.pc) | (self.sp ^ other.sp) | (self.fp ^ other.fp) | flags == 0
    }

    /// Whether both are the same frame but for a known frame pointer.
    #[inline]
    pub(crate) fn is_like_but_fp(&self, other: &MemoStep) -> bool {
        let same = MemoStep { fp: self.fp, ..*other };
        self.has(Self::FP) && self.is_like(&same)
    }

    /// What the step that led here has done with its callee's frame pointer. Steps that are not by
    /// a plain rule may have done anything.
    #[inline]
    pub(crate) fn use_of_fp(&self) -> UseOfFp {
        if self.how & (PackedRule::KINDS | PackedRule::FROM_FP) != PackedRule::CALLER {
            UseOfFp::Needed
        } else if self.has(Self::READ_FP | Self::END) {
            UseOfFp::Dropped
        } else {
            UseOfFp::Passed
        }
    }

    /// The frame pointer that the step would read now, if it is by a plain rule and the return
    /// address is unchanged.
    #[inline]
    pub(crate) fn fp_read_again(&self, arch: &Arch, memory: &mut impl Memory) -> Option<u64> {
        let is_by_rule = self.how & PackedRule::KINDS == PackedRule::CALLER && self.has(Self::PLAIN);
        let is_same = is_by_rule && self.has(Self::READ_FP) && memory.is(self.ra_at(), arch.strip(u64::MAX), self.pc);
        match is_same {
            true => memory.word_at_hand(self.fp_at()),
            false => None,
        }
    }

    /// Whether both are at the same address and have the same stack pointer.
    #[inline(always)]
    pub(crate) fn is_at(&self, other: &MemoStep) -> bool {
        (self.pc ^ other.pc) | (self.sp ^ other.sp) == 0
    }

    /// Whether this is a frame after a call, with known SP and FP.
    #[inline(always)]
    pub(crate) fn is_returning(&self) -> bool {
        self.how & Self::RETURNING == Self::RETURNING
    }

    /// All that is known about a [whole](MemoStep::WHOLE) frame.
    pub(crate) fn position(&self, arch: &Arch) -> Position {
        let mut registers = Registers::new(self.pc);
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

    /// The caller of this [returning](MemoStep::is_returning) frame by a
    /// [plain](PackedRule::is_plain) rule. `None` in any unusual case, which is left to
    /// [`step`](crate::step).
    #[inline(always)]
    pub(crate) fn caller(&self, arch: &Arch, rule: PackedRule, memory: &mut impl Memory) -> Option<MemoStep> {
        // If the rule is predictable, the CPU need not wait for it.
        let common = PackedRule::of_frame_pointers(arch);
        if rule == common {
            self.caller_by(arch, common, memory)
        } else if rule.is_on_top_from_sp() {
            self.caller_on_top(arch, rule, memory)
        } else {
            let (cfa, ra, fp) = words_of(self.sp, self.fp, rule, memory)?;
            self.caller_at(arch, rule, cfa, ra, fp)
        }
    }

    #[inline(always)]
    fn caller_by(&self, arch: &Arch, rule: PackedRule, memory: &mut impl Memory) -> Option<MemoStep> {
        let (cfa, ra, fp) = words_by(self.sp, self.fp, rule, memory)?;
        self.caller_at(arch, rule, cfa, ra, fp)
    }

    /// The caller by a rule of most code that keeps no frame pointers: the next step waits only for
    /// the return address and the CFA's offset.
    #[inline(always)]
    fn caller_on_top(&self, arch: &Arch, rule: PackedRule, memory: &mut impl Memory) -> Option<MemoStep> {
        let cfa = self.sp.wrapping_add_signed(rule.cfa_offset());
        let ra = memory.word_before_at_hand(cfa)?;
        let fp = match rule.has_fp() {
            true => memory.word_at_hand(cfa.wrapping_add_signed(rule.fp_offset()))?,
            false => self.fp,
        };
        self.caller_at(arch, rule, cfa, ra, fp)
    }

    #[inline(always)]
    fn caller_at(&self, arch: &Arch, rule: PackedRule, cfa: u64, ra: u64, fp: u64) -> Option<MemoStep> {
        let (pc, sp) = (arch.strip(ra), cfa.wrapping_add_signed(arch.sp_from_cfa));
        if sp <= self.sp || pc == 0 {
            return None;
        }
        let how = match arch.sp_from_cfa {
            0 => rule.bits(),
            // The slots are relative to SP here.
            distance => rule.bits_from(-distance)?,
        };
        Some(MemoStep { pc, sp, fp, how })
    }

    /// Stores the words that led here, the first and perhaps a second, if they are those of a plain
    /// step.
    pub(crate) fn became_plain(&mut self, arch: &Arch, first: (u64, u64), second: Option<(u64, u64)>) -> bool {
        let offset = |address: u64| Slot::at(address.wrapping_sub(self.sp) as i64);
        let Some(ra) = offset(first.0).filter(|_| self.has(Self::SP) && arch.strip(first.1) == self.pc) else {
            return false;
        };
        let mut how = Self::PLAIN;
        let mut fp = ra;
        if let Some((address, word)) = second {
            let Some(slot) = offset(address).filter(|_| self.has(Self::FP) && word == self.fp) else {
                return false;
            };
            let pair = if address.checked_add(8) == Some(first.0) {
                Self::PAIR
            } else {
                0
            };
            how |= Self::READ_FP | pair;
            fp = slot;
        }
        self.how |= how | PackedRule::slots(ra, fp);
        true
    }

    /// Whether the words that a plain step has read are unchanged.
    #[inline(always)]
    pub(crate) fn is_read_again(&self, arch: &Arch, memory: &mut impl Memory) -> bool {
        let mask = arch.strip(u64::MAX);
        if self.has(Self::PAIR) {
            return memory.are(self.fp_at(), self.fp, mask, self.pc);
        }
        memory.is(self.ra_at(), mask, self.pc)
            && (!self.has(Self::READ_FP) || memory.is(self.fp_at(), u64::MAX, self.fp))
    }
}

/// The CFA of a frame with these registers, its return address, and its caller's frame pointer.
#[inline(always)]
fn words_by(sp: u64, fp: u64, rule: PackedRule, memory: &mut impl Memory) -> Option<(u64, u64, u64)> {
    let base = if rule.is_from_fp() { fp } else { sp };
    let cfa = base.wrapping_add_signed(rule.cfa_offset());
    let word_at = |offset: i64| cfa.wrapping_add_signed(offset);
    if rule.has_pair() {
        let (fp, ra) = memory.words_at_hand(word_at(rule.fp_offset()))?;
        return Some((cfa, ra, fp));
    }
    let ra = memory.word_at_hand(word_at(rule.ra_offset()))?;
    let fp = match rule.has_fp() {
        true => memory.word_at_hand(word_at(rule.fp_offset()))?,
        false => fp,
    };
    Some((cfa, ra, fp))
}

/// The same, not inlined, so that the code for usual rules has the registers for itself.
#[inline(never)]
fn words_of(sp: u64, fp: u64, rule: PackedRule, memory: &mut impl Memory) -> Option<(u64, u64, u64)> {
    words_by(sp, fp, rule, memory)
}
