//! The instructions of CIEs and FDEs (DWARF 5, section 6.4.2), run up to an address.

use backtrail_arch::{REGISTERS, Register};

use crate::entry::Fde;
use crate::reader::{Cursor, Reader, Source};

/// How a register of the caller is restored; 8 bytes, since a handler's stack is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// No rule is given: callee-saved registers have the same values as in the callee.
    Unspecified,
    Undefined,
    SameValue,
    /// Saved at this offset from the CFA, in bytes.
    Offset(i32),
    /// The CFA plus this many bytes.
    ValOffset(i32),
    Register(Register),
    /// Saved where an expression says: its offset from the FDE's instructions, and its length.
    Expression {
        bytes: u16,
        at: i32,
    },
    ValExpression {
        bytes: u16,
        at: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    RegisterAndOffset(Register, i64),
    Expression(Cursor),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) cfa: Cfa,
    rules: [Rule; REGISTERS],
}

impl Row {
    pub(crate) fn rule(&self, register: Register) -> Rule {
        let rule = self.rules.get(usize::from(register.0)).copied();
        rule.unwrap_or(Rule::Unspecified)
    }
}

/// Rows that can be remembered at a time; compilers nest one level.
const REMEMBERED: usize = 4;
/// More instructions than this mean damage.
const MOST_INSTRUCTIONS: u32 = 1 << 16;

struct Machine<'r, 's, S> {
    reader: &'r mut Reader<'s, S>,
    fde: &'r Fde,
    pc: u64,
    /// Where the current row begins.
    location: u64,
    row: Row,
    initial: Row,
    remembered: [Row; REMEMBERED],
    depth: usize,
    left: u32,
}

/// The row of an address in the FDE.
pub(crate) fn row<S: Source>(fde: &Fde, pc: u64, reader: &mut Reader<'_, S>) -> Option<Row> {
    let nothing = Row {
        cfa: Cfa::RegisterAndOffset(Register(u8::MAX), 0),
        rules: [Rule::Unspecified; REGISTERS],
    };
    let mut machine = Machine {
        reader,
        fde,
        pc,
        location: fde.start,
        row: nothing,
        initial: nothing,
        remembered: [nothing; REMEMBERED],
        depth: 0,
        left: MOST_INSTRUCTIONS,
    };
    machine.run(fde.cie.instructions)?;
    machine.initial = machine.row;
    machine.run(fde.instructions)?;
    Some(machine.row)
}

impl<S: Source> Machine<'_, '_, S> {
    /// Runs instructions up to the end, or to the first of a later row.
    fn run(&mut self, mut cursor: Cursor) -> Option<()> {
        while !cursor.is_at_end() {
            self.left = self.left.checked_sub(1)?;
            let opcode = self.reader.u8(&mut cursor)?;
            let low = opcode & 0x3f;
            match opcode >> 6 {
                1 => self.advance(low.into())?,
                2 => {
                    let offset = self.factored(&mut cursor)?;
                    self.set(low.into(), Rule::Offset(offset));
                }
                3 => self.restore(low.into()),
                _ => self.extended(low, &mut cursor)?,
            }
            if self.location > self.pc {
                return Some(());
            }
        }
        Some(())
    }

    fn extended(&mut self, opcode: u8, cursor: &mut Cursor) -> Option<()> {
        match opcode {
            // DW_CFA_nop, and DW_CFA_AARCH64_negate_ra_state with or without the program counter:
            // signatures are stripped from every address.
            0x00 | 0x2c | 0x2d => {}
            0x01 => self.location = self.reader.pointer(cursor, self.fde.cie.encoding, None)?,
            0x02 => {
                let delta = self.reader.u8(cursor)?;
                self.advance(delta.into())?;
            }
            0x03 => {
                let delta = self.reader.u16(cursor)?;
                self.advance(delta.into())?;
            }
            0x04 => {
                let delta = self.reader.u32(cursor)?;
                self.advance(delta.into())?;
            }
            0x0a => {
                *self.remembered.get_mut(self.depth)? = self.row;
                self.depth = self.depth.saturating_add(1);
            }
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = *self.remembered.get(self.depth)?;
            }
            0x0c => {
                let register = self.register(cursor)?;
                self.row.cfa = Cfa::RegisterAndOffset(register, self.reader.uleb(cursor)? as i64);
            }
            0x0d => {
                let register = self.register(cursor)?;
                self.row.cfa = Cfa::RegisterAndOffset(register, self.cfa_offset()?);
            }
            0x0e => {
                let offset = self.reader.uleb(cursor)? as i64;
                self.row.cfa = Cfa::RegisterAndOffset(self.cfa_register()?, offset);
            }
            0x0f => self.row.cfa = Cfa::Expression(self.stretch(cursor)?),
            0x12 => {
                let register = self.register(cursor)?;
                self.row.cfa = Cfa::RegisterAndOffset(register, self.factored_signed(cursor)?.into());
            }
            0x13 => {
                let offset = self.factored_signed(cursor)?.into();
                self.row.cfa = Cfa::RegisterAndOffset(self.cfa_register()?, offset);
            }
            // DW_CFA_GNU_args_size.
            0x2e => drop(self.reader.uleb(cursor)?),
            _ => self.rule(opcode, cursor)?,
        }
        Some(())
    }

    /// Instructions for one register.
    fn rule(&mut self, opcode: u8, cursor: &mut Cursor) -> Option<()> {
        let register = self.reader.uleb(cursor)?;
        let rule = match opcode {
            0x05 => Rule::Offset(self.factored(cursor)?),
            0x06 => {
                self.restore(register);
                return Some(());
            }
            0x07 => Rule::Undefined,
            0x08 => Rule::SameValue,
            0x09 => Rule::Register(self.register(cursor)?),
            0x10 => {
                let (bytes, at) = self.expression(cursor)?;
                Rule::Expression { bytes, at }
            }
            0x11 => Rule::Offset(self.factored_signed(cursor)?),
            0x14 => Rule::ValOffset(self.factored(cursor)?),
            0x15 => Rule::ValOffset(self.factored_signed(cursor)?),
            0x16 => {
                let (bytes, at) = self.expression(cursor)?;
                Rule::ValExpression { bytes, at }
            }
            // DW_CFA_GNU_negative_offset_extended.
            0x2f => Rule::Offset(self.factored(cursor)?.wrapping_neg()),
            _ => return None,
        };
        self.set(register, rule);
        Some(())
    }

    fn advance(&mut self, delta: u64) -> Option<()> {
        let bytes = delta.checked_mul(self.fde.cie.code_align)?;
        self.location = self.location.checked_add(bytes)?;
        Some(())
    }

    fn set(&mut self, register: u64, rule: Rule) {
        // Vector registers have higher numbers, and no CFA depends on them.
        if let Some(place) = usize::try_from(register).ok().and_then(|at| self.row.rules.get_mut(at)) {
            *place = rule;
        }
    }

    fn restore(&mut self, register: u64) {
        let initial = usize::try_from(register).ok().and_then(|at| self.initial.rules.get(at));
        if let Some(rule) = initial.copied() {
            self.set(register, rule);
        }
    }

    fn register(&mut self, cursor: &mut Cursor) -> Option<Register> {
        u8::try_from(self.reader.uleb(cursor)?).ok().map(Register)
    }

    fn factored(&mut self, cursor: &mut Cursor) -> Option<i32> {
        let offset = self.reader.uleb(cursor)? as i64;
        i32::try_from(offset.wrapping_mul(self.fde.cie.data_align)).ok()
    }

    fn factored_signed(&mut self, cursor: &mut Cursor) -> Option<i32> {
        let offset = self.reader.sleb(cursor)?;
        i32::try_from(offset.wrapping_mul(self.fde.cie.data_align)).ok()
    }

    fn stretch(&mut self, cursor: &mut Cursor) -> Option<Cursor> {
        let bytes = self.reader.uleb(cursor)?;
        cursor.skip(bytes)
    }

    /// The length of an expression, and its offset from the FDE's instructions.
    fn expression(&mut self, cursor: &mut Cursor) -> Option<(u16, i32)> {
        let code = self.stretch(cursor)?;
        let at = code.at.wrapping_sub(self.fde.instructions.at) as i64;
        Some((
            u16::try_from(code.end.wrapping_sub(code.at)).ok()?,
            i32::try_from(at).ok()?,
        ))
    }

    fn cfa_register(&self) -> Option<Register> {
        match self.row.cfa {
            Cfa::RegisterAndOffset(register, _) => Some(register),
            Cfa::Expression(_) => None,
        }
    }

    fn cfa_offset(&self) -> Option<i64> {
        match self.row.cfa {
            Cfa::RegisterAndOffset(_, offset) => Some(offset),
            Cfa::Expression(_) => None,
        }
    }
}
