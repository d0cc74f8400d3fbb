//! From a frame's registers to its caller's.

use backtrail_arch::{Arch, REGISTERS, Register, Registers};

use crate::entry::{Fde, Search};
use crate::expression::{Values, evaluate};
use crate::reader::{Reader, Source};
use crate::rows::{Cfa, Row, Rule, row};

/// What is known of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The registers that are known for sure.
    pub registers: Registers,
    /// Values that callees left in registers they need not preserve and give no rule for. Assembly
    /// may keep its CFA in such a register across a call; anything derived from it must be proved.
    pub left: Registers,
}

impl Frame {
    /// A frame with these registers.
    pub const fn new(registers: Registers) -> Frame {
        Frame {
            registers,
            left: Registers::new(registers.pc),
        }
    }
}

/// A caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its registers after the call has returned.
    pub frame: Frame,
    /// Whether the callee was a signal frame: the caller was interrupted.
    pub signal_frame: bool,
    /// Whether its place on the stack depends on [`Frame::left`].
    pub is_doubtful: bool,
    /// Start of the callee's function.
    pub start: u64,
}

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No FDE covers the address, or it makes no sense.
    Entry,
    /// The function has no caller.
    Outermost,
    /// The value of a register or a word of memory is unknown.
    Value,
}

/// Finds the caller of a frame. `pc` is the address to look up: the frame's program counter, or the
/// byte before its return address. `word` reads the stack.
///
/// # Errors
/// The reason why there is no caller: [`Missing`].
pub fn caller(
    arch: &Arch,
    search: &Search<'_>,
    frame: &Frame,
    pc: u64,
    source: &mut impl Source,
    word: impl FnMut(u64) -> Option<u64>,
) -> Result<Caller, Missing> {
    let mut reader = Reader::new(source);
    let fde = search.find(pc, &mut reader).and_then(|at| Fde::read(at, &mut reader));
    let fde = fde
        .filter(|fde| (fde.start..fde.end).contains(&pc))
        .ok_or(Missing::Entry)?;
    let row = row(&fde, pc, &mut reader).ok_or(Missing::Entry)?;
    let mut callee = Callee {
        arch,
        frame,
        word,
        is_doubtful: false,
    };
    callee.caller(&fde, &row, &mut reader)
}

struct Callee<'f, W> {
    arch: &'f Arch,
    frame: &'f Frame,
    word: W,
    is_doubtful: bool,
}

impl<W: FnMut(u64) -> Option<u64>> Values for Callee<'_, W> {
    fn register(&mut self, register: Register) -> Option<u64> {
        // Linkers' rules for linkage tables refer to the pc by the return address column.
        if register == self.arch.ra && !self.arch.link_register {
            return Some(self.frame.registers.pc);
        }
        let known = self.frame.registers.get(register);
        if known.is_none() && self.frame.left.get(register).is_some() {
            self.is_doubtful = true;
        }
        known.or(self.frame.left.get(register))
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        (self.word)(address)
    }
}

impl<W: FnMut(u64) -> Option<u64>> Callee<'_, W> {
    fn caller<S: Source>(&mut self, fde: &Fde, row: &Row, reader: &mut Reader<'_, S>) -> Result<Caller, Missing> {
        let arch = self.arch;
        let cfa = match row.cfa {
            Cfa::RegisterAndOffset(register, offset) => {
                let base = self.register(register).ok_or(Missing::Value)?;
                base.wrapping_add_signed(offset)
            }
            Cfa::Expression(code) => evaluate(code, None, reader, self).ok_or(Missing::Value)?,
        };
        let column = Register(fde.cie.ra);
        let ra = match row.rule(column) {
            Rule::Undefined => return Err(Missing::Outermost),
            Rule::Unspecified | Rule::SameValue if !arch.link_register => return Err(Missing::Value),
            rule => self.value(cfa, column, rule, fde, reader).ok_or(Missing::Value)?,
        };
        let ra = arch.strip(ra);
        if ra == 0 {
            return Err(Missing::Outermost);
        }
        let is_doubtful = self.is_doubtful;
        let mut frame = Frame::new(Registers::new(ra));
        for register in (0..REGISTERS as u8).map(Register) {
            let is_ra = register == column && !(arch.link_register && fde.cie.signal_frame);
            if is_ra {
                continue;
            }
            self.is_doubtful = false;
            match row.rule(register) {
                Rule::Unspecified if register == arch.sp => {}
                Rule::Unspecified if !arch.preserved.contains(&register) => {
                    if let Some(value) = self.register(register) {
                        frame.left.set(register, value);
                    }
                }
                rule => {
                    let value = self.value(cfa, register, rule, fde, reader);
                    if let Some(value) = value {
                        match self.is_doubtful {
                            true => frame.left.set(register, value),
                            false => frame.registers.set(register, value),
                        }
                    }
                }
            }
        }
        // Rules for SP are rare: signal frames have them, and code that jumps to another frame.
        if row.rule(arch.sp) == Rule::Unspecified {
            frame.registers.set(arch.sp, cfa.wrapping_add_signed(arch.sp_from_cfa));
        }
        Ok(Caller {
            frame,
            signal_frame: fde.cie.signal_frame,
            is_doubtful,
            start: fde.start,
        })
    }

    /// Applies a rule to get the caller's register.
    fn value<S: Source>(
        &mut self,
        cfa: u64,
        register: Register,
        rule: Rule,
        fde: &Fde,
        reader: &mut Reader<'_, S>,
    ) -> Option<u64> {
        match rule {
            Rule::Undefined => None,
            Rule::Unspecified | Rule::SameValue => self.register(register),
            Rule::Offset(offset) => self.saved(cfa, cfa.wrapping_add_signed(offset.into()), register),
            Rule::ValOffset(offset) => Some(cfa.wrapping_add_signed(offset.into())),
            Rule::Register(other) => self.register(other),
            Rule::Expression { bytes, at } => {
                let slot = evaluate(fde.expression(bytes, at), Some(cfa), reader, self)?;
                self.word(slot)
            }
            Rule::ValExpression { bytes, at } => evaluate(fde.expression(bytes, at), Some(cfa), reader, self),
        }
    }

    fn saved(&mut self, cfa: u64, slot: u64, register: Register) -> Option<u64> {
        match self.frame.registers.get(self.arch.sp) {
            // In an epilogue the register has been popped, and compilers go on saying that it is
            // saved where nothing is kept any more (gcc 12 on x86-64). A whole frame below it is on
            // another stack (OCaml 5).
            Some(sp) if sp <= cfa && sp.saturating_sub(slot) > self.arch.red_zone => {
                let is_popped = register != self.arch.ra || self.arch.link_register;
                is_popped.then(|| self.register(register))?
            }
            _ => self.word(slot),
        }
    }
}
