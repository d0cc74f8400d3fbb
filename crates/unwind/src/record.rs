//! A frame that a walk came to, in half a cache line, and the plain steps from one to the next.

use backtrail_arch::{Arch, Registers};

use crate::cache::PackedRule;
use crate::{AddressKind, Frame, Memory, Position};

/// A frame that a walk came to, and the words that the step which led to it has read: those of a plain step here, in terms of what they
/// gave; others in [`MemoRead`](crate::MemoRead)s.
#[derive(Clone, Copy, Debug)]
pub struct MemoStep {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// Where a plain step has read the return address and the frame pointer: words from `sp`.
    ra_words: i16,
    fp_words: i16,
    flags: u16,
    /// How many words a step that was not plain has read.
    pub(crate) reads: u16,
}

impl MemoStep {
    /// An unused place.
    pub const EMPTY: MemoStep = MemoStep {
        pc: 0,
        sp: 0,
        fp: 0,
        ra_words: 0,
        fp_words: 0,
        flags: 0,
        reads: 0,
    };

    const RA: u16 = 1;
    const SP: u16 = 2;
    const FP: u16 = 4;
    /// SP and FP are all registers that are known, so that the frame is told by them. A step gives its caller no more, but that
    /// through a signal frame.
    pub(crate) const WHOLE: u16 = 8;
    /// The step that led here needed no register but SP and FP.
    pub(crate) const NARROW: u16 = 16;
    /// That step has read the return address, and nothing else but the frame pointer.
    pub(crate) const PLAIN: u16 = 32;
    /// And the frame pointer; else it is the callee's.
    const READ_FP: u16 = 64;
    /// Not a frame: what the last step has read that found the end.
    pub(crate) const END: u16 = 128;

    #[inline]
    pub(crate) fn new(arch: &Arch, registers: &Registers, kind: AddressKind) -> MemoStep {
        let (sp, fp) = (registers.get(arch.sp), registers.get(arch.fp));
        let flag = |holds: bool, flag: u16| if holds { flag } else { 0 };
        MemoStep {
            pc: registers.pc,
            sp: sp.unwrap_or(0),
            fp: fp.unwrap_or(0),
            flags: flag(kind == AddressKind::Ra, Self::RA)
                | flag(sp.is_some(), Self::SP)
                | flag(fp.is_some(), Self::FP)
                | flag(registers.are_only(&[arch.sp, arch.fp]), Self::WHOLE),
            ..MemoStep::EMPTY
        }
    }

    /// A frame of which these are known, and other registers.
    #[cfg(feature = "local")]
    #[inline(always)]
    pub(crate) fn returning(pc: u64, sp: u64, fp: u64) -> MemoStep {
        MemoStep {
            pc,
            sp,
            fp,
            flags: Self::RA | Self::SP | Self::FP,
            ..MemoStep::EMPTY
        }
    }

    pub(crate) fn end(is_narrow: bool, reads: u16) -> MemoStep {
        MemoStep {
            flags: Self::END | if is_narrow { Self::NARROW } else { 0 },
            reads,
            ..MemoStep::EMPTY
        }
    }

    #[inline(always)]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn add(&mut self, flag: u16) {
        self.flags |= flag;
    }

    #[inline(always)]
    pub(crate) fn kind(&self) -> AddressKind {
        match self.has(Self::RA) {
            true => AddressKind::Ra,
            false => AddressKind::Pc,
        }
    }

    #[inline(always)]
    pub(crate) fn frame(&self) -> Frame {
        Frame {
            address: self.pc,
            kind: self.kind(),
        }
    }

    /// Whether both are the same frame, as far as SP and FP tell.
    #[inline(always)]
    pub(crate) fn is_like(&self, other: &MemoStep) -> bool {
        let told = Self::RA | Self::SP | Self::FP | Self::END;
        let flags = u64::from((self.flags ^ other.flags) & told);
        (self.pc ^ other.pc) | (self.sp ^ other.sp) | (self.fp ^ other.fp) | flags == 0
    }

    /// All that is known of a [whole](MemoStep::WHOLE) one.
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

    /// The caller of this frame by a plain rule. `None` where anything is not as it mostly is: what it is then is found out step
    /// [by step](crate::step).
    #[inline(always)]
    pub(crate) fn caller(&self, arch: &Arch, rule: PackedRule, memory: &mut impl Memory) -> Option<MemoStep> {
        let known = Self::RA | Self::SP | Self::FP;
        if !rule.is_plain() || self.flags & known != known {
            return None;
        }
        let base = if rule.is_from_fp() { self.fp } else { self.sp };
        let cfa = base.wrapping_add_signed(rule.cfa_offset());
        let sp = cfa.wrapping_add_signed(arch.sp_from_cfa);
        if sp <= self.sp {
            return None;
        }
        let word_at = |words: i64| cfa.wrapping_add_signed(words * 8);
        let pc = arch.strip(memory.word(word_at(rule.ra_words()))?);
        if pc == 0 {
            return None;
        }
        let fp = match rule.has_fp() {
            true => memory.word(word_at(rule.fp_words()))?,
            false => self.fp,
        };
        let from_sp = arch.sp_from_cfa / 8;
        Some(MemoStep {
            pc,
            sp,
            fp,
            ra_words: (rule.ra_words() - from_sp) as i16,
            fp_words: (rule.fp_words() - from_sp) as i16,
            flags: known | Self::WHOLE | Self::NARROW | Self::PLAIN | if rule.has_fp() { Self::READ_FP } else { 0 },
            reads: 0,
        })
    }

    /// Notes the words that led here, the first and perhaps a second, if they are those of a plain step.
    pub(crate) fn became_plain(&mut self, arch: &Arch, first: (u64, u64), second: Option<(u64, u64)>) -> bool {
        let words = |address: u64| {
            let offset = address.wrapping_sub(self.sp) as i64;
            i16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)
        };
        let Some(ra_words) = words(first.0).filter(|_| self.has(Self::SP) && arch.strip(first.1) == self.pc) else {
            return false;
        };
        if let Some((address, word)) = second {
            let Some(fp_words) = words(address).filter(|_| self.has(Self::FP) && word == self.fp) else {
                return false;
            };
            self.fp_words = fp_words;
            self.flags |= Self::READ_FP;
        }
        self.ra_words = ra_words;
        self.flags |= Self::PLAIN;
        true
    }

    /// Whether the words that a plain step has read are what they were.
    #[inline(always)]
    pub(crate) fn is_read_again(&self, arch: &Arch, memory: &mut impl Memory) -> bool {
        let word_at = |words: i16| self.sp.wrapping_add_signed(i64::from(words) * 8);
        let is_ra = |word| arch.strip(word) == self.pc;
        if !memory.word(word_at(self.ra_words)).is_some_and(is_ra) {
            return false;
        }
        !self.has(Self::READ_FP) || memory.word(word_at(self.fp_words)) == Some(self.fp)
    }
}
