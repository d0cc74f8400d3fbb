//! What a path through code knows of the stack.

use backtrail_arch::{Arch, x86_64};
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::{Instruction, Mnemonic, Register};

use super::LOST;
use crate::kept::dwarf_number;
use crate::prologue::immediate;

/// Registers in which GCC keeps the stack pointer before its alignment.
const UNALIGNED: [Register; 2] = [Register::R10, Register::R13];

/// A place: bytes from the value of a register at the program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Sp(i64),
    Fp(i64),
    /// From a register by its DWARF number: code that aligns its stack keeps the old pointer in
    /// one.
    Other(u8, i64),
    /// From the address in this word: assembly that aligns its stack keeps the old pointer there.
    Stored(Slot, i64),
    /// From where the path has aligned the stack pointer.
    Aligned(i64),
}

/// A word on the stack: bytes from the value of a register at the program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Sp(i64),
    Fp(i64),
}

impl From<Slot> for Place {
    fn from(slot: Slot) -> Place {
        match slot {
            Slot::Sp(offset) => Place::Sp(offset),
            Slot::Fp(offset) => Place::Fp(offset),
        }
    }
}

impl Place {
    pub(super) fn plus(self, bytes: i64) -> Place {
        match self {
            Place::Sp(offset) => Place::Sp(offset.wrapping_add(bytes)),
            Place::Fp(offset) => Place::Fp(offset.wrapping_add(bytes)),
            Place::Other(register, offset) => Place::Other(register, offset.wrapping_add(bytes)),
            Place::Stored(slot, offset) => Place::Stored(slot, offset.wrapping_add(bytes)),
            Place::Aligned(offset) => Place::Aligned(offset.wrapping_add(bytes)),
        }
    }

    pub(super) fn location(self, arch: &Arch, deref: bool) -> Option<Location> {
        let (register, offset) = match self {
            Place::Sp(offset) => (arch.sp.0, offset),
            Place::Fp(offset) => (arch.fp.0, offset),
            Place::Other(register, offset) => (register, offset),
            Place::Stored(..) | Place::Aligned(_) => return None,
        };
        Some(Location {
            base: Base::Register(register),
            offset: i32::try_from(offset).ok()?,
            deref,
        })
    }
}

/// The value of the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePointer {
    /// The value at the program counter.
    Kept,
    /// A value loaded from this place.
    Loaded(Place),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// `None`: unknown.
    pub(super) sp: Option<Place>,
    pub(super) fp: FramePointer,
    /// The place to which this path pushed the frame pointer while it was kept: popping it makes it
    /// kept again.
    pub(super) pushed: Option<Place>,
    /// A register loaded from memory without an index: not an entry of a jump table.
    pub(super) loaded: Option<Register>,
    /// A register with an address that the code itself contains.
    pub(super) constant: Option<(Register, u64)>,
    /// The first popped value, while it is still in its register, and the place it came from.
    pub(super) popped: Option<(Register, Place)>,
    /// A value that this path has loaded from the stack but not written there, in its register, and
    /// the place it came from.
    pub(super) fetched: Option<(Register, Place)>,
    /// The top of the stack, if this path pushed it.
    pub(super) top: Option<Top>,
    /// Registers that this path has written, a bit for each DWARF number; those that its callees
    /// write are not counted.
    pub(super) written: u16,
    /// Whether the path has called anything.
    pub(super) has_called: bool,
    /// The function that the path has called last, if the call contains its address.
    pub(super) called: Option<u64>,
    /// Whether the last instruction has removed a part of the frame.
    pub(super) is_leaving: bool,
    /// A register with a copy of the stack pointer.
    pub(super) copy: Option<(Register, Place)>,
    /// A place on the stack, and the stack pointer that the path has stored there.
    pub(super) kept: Option<(Place, Place)>,
    /// The word from which each of the registers for the stack pointer before its alignment was
    /// loaded.
    pub(super) unaligned: [Option<Slot>; UNALIGNED.len()],
}

/// The state of a path at its return.
pub(super) struct AtReturn {
    pub(super) state: State,
    /// Bytes of arguments that the return pops.
    pub(super) popped: i64,
    /// Whether the path itself has written its return address.
    pub(super) is_written: bool,
    /// Whether it is the only path: no branch and no call.
    pub(super) is_straight: bool,
}

/// A word that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    /// The value of this register at the program counter, by its DWARF number.
    Register(u8),
    /// The value at this place.
    Loaded(Place),
}
/// The rule of a function whose return has this state.
pub(super) fn rule_at_return(arch: &Arch, state: &State, popped: i64) -> Option<Rule> {
    if let (Some(top), FramePointer::Kept) = (state.top, state.fp) {
        // The caller's stack pointer depends on the arguments; it is at least as far out as the
        // place that was found.
        let (cfa, ra) = match top {
            Top::Register(number) => (Place::Sp(0), Location::register(number, 0)),
            Top::Loaded(place @ Place::Sp(0..)) => (place.plus(8), place.location(arch, true)?),
            Top::Loaded(_) => return None,
        };
        return Some(Rule::new(cfa.location(arch, false)?, ra));
    }
    let sp = state.sp.filter(|sp| !matches!(sp, Place::Sp(offset) if *offset < 0))?;
    let (cfa, ra) = match sp {
        // The CFA is what is stored, and the return address there or above.
        Place::Stored(slot, offset) if popped == 0 => {
            (Place::from(slot).location(arch, true)?, i32::try_from(offset).ok()?)
        }
        sp => (sp.plus(8 + popped).location(arch, false)?, -8 - popped as i32),
    };
    let fp = match state.fp {
        FramePointer::Kept => None,
        FramePointer::Loaded(Place::Stored(slot, offset)) => match sp {
            Place::Stored(same, _) if same == slot => Some(Location::saved(i32::try_from(offset).ok()?)),
            _ => return None,
        },
        FramePointer::Loaded(place) => Some(place.location(arch, true)?),
        // That value may not be a return address yet.
        FramePointer::Unknown if state.top.is_some() => return None,
        FramePointer::Unknown => Some(LOST),
    };
    Some(Rule {
        fp,
        ..Rule::new(cfa, Location::saved(ra))
    })
}

/// `mov rsp, rbp; pop rbp`, if the frame pointer was kept.
pub(super) fn restore(state: &mut State) {
    (state.sp, state.fp) = (Some(Place::Fp(8)), FramePointer::Loaded(Place::Fp(0)));
    state.pushed = None;
}

pub(super) fn moved(sp: Option<Place>, instruction: &Instruction, sign: i64) -> Option<Place> {
    Some(sp?.plus(immediate(instruction)?.wrapping_mul(sign)))
}

/// The register of `lea rsp, [register + bytes]`, if it is one in which GCC keeps the stack pointer
/// that a function was called with.
pub(super) fn unaligned_register(instruction: &Instruction) -> Option<Register> {
    let base = instruction.memory_base();
    let is_one = instruction.mnemonic() == Mnemonic::Lea
        && instruction.op0_register() == Register::RSP
        && instruction.memory_index() == Register::None
        && UNALIGNED.contains(&base);
    is_one.then_some(base)
}

/// The place of a memory operand that counts from the stack pointer or the frame pointer alone.
pub(super) fn addressed(state: &State, instruction: &Instruction) -> Option<Place> {
    if instruction.memory_index() != Register::None || instruction.segment_prefix() != Register::None {
        return None;
    }
    let base = match instruction.memory_base() {
        Register::RSP => state.sp?,
        Register::RBP if state.fp == FramePointer::Kept => Place::Fp(0),
        _ => return None,
    };
    Some(base.plus(instruction.memory_displacement64().cast_signed()))
}

impl State {
    /// Where the stack pointer is after `lea rsp, [register + bytes]`, by which GCC's functions
    /// that align their stacks leave. Before it, the caller's return address is there twice.
    pub(super) fn unaligned_by(&self, instruction: &Instruction) -> Option<Place> {
        let register = unaligned_register(instruction)?;
        let bytes = instruction.memory_displacement64().cast_signed();
        let index = UNALIGNED.iter().position(|kept| *kept == register)?;
        let number = dwarf_number(register)?;
        let is_there = !self.has_called && self.written & 1 << number == 0;
        let there = is_there.then_some(Place::Other(number, bytes));
        let loaded = self.unaligned[index].map(|slot| Place::Stored(slot, bytes));
        loaded.or(there)
    }

    /// Forgets what these registers held.
    pub(super) fn forget_unaligned(&mut self, is_written: impl Fn(Register) -> bool) {
        for (register, slot) in UNALIGNED.into_iter().zip(&mut self.unaligned) {
            *slot = slot.filter(|_| !is_written(register));
        }
    }

    /// Follows a load of such a register from this place on the stack.
    pub(super) fn load_unaligned(&mut self, register: Register, place: Option<Place>) {
        if let Some(index) = UNALIGNED.iter().position(|kept| *kept == register) {
            self.unaligned[index] = match place {
                Some(Place::Sp(offset)) => Some(Slot::Sp(offset)),
                Some(Place::Fp(offset)) => Some(Slot::Fp(offset)),
                _ => None,
            };
        }
    }

    /// The state at the return of the code that this one jumps to, whose frame it shares; `rule` is
    /// the rule there.
    pub(super) fn joined(mut self, rule: &Rule) -> Option<State> {
        let (cfa, saved) = (rule.cfa, |location: Location| {
            location.deref && location.base == Base::Cfa
        });
        let base = match cfa.base {
            Base::Register(number) if number == x86_64::ARCH.sp.0 => self.sp?,
            Base::Register(number) if number == x86_64::ARCH.fp.0 && self.fp == FramePointer::Kept => Place::Fp(0),
            _ => return None,
        };
        if cfa.deref || !saved(rule.ra) {
            return None;
        }
        let end = base.plus(cfa.offset.into());
        match rule.fp {
            Some(fp) if saved(fp) => self.fp = FramePointer::Loaded(end.plus(fp.offset.into())),
            Some(_) => self.fp = FramePointer::Unknown,
            None => {}
        }
        (self.sp, self.top) = (Some(end.plus(rule.ra.offset.into())), None);
        Some(self)
    }
}
