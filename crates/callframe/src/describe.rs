//! A frame's rule in a form that can be kept: where the caller's program counter, stack pointer and
//! frame pointer are, relative to this frame's registers.

use backtrail_arch::{Arch, Register};

use crate::caller::Missing;
use crate::entry::{Fde, Search};
use crate::expression::{Values, evaluate};
use crate::reader::{Reader, Source};
use crate::rows::{Cfa, Row, Rule, row};

/// A value: a base plus an offset, or the word at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// A register of the callee; `None` for the CFA.
    pub base: Option<Register>,
    /// Added to the base, in bytes.
    pub offset: i32,
    /// Whether the value is the word at that address.
    pub deref: bool,
}

impl Place {
    const fn saved(offset: i32) -> Place {
        Place {
            base: None,
            offset,
            deref: true,
        }
    }

    const fn register(register: Register) -> Place {
        Place {
            base: Some(register),
            offset: 0,
            deref: false,
        }
    }
}

/// How to leave a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The function's first address.
    pub start: u64,
    /// The CFA.
    pub cfa: Place,
    /// The return address; `None` if the frame is the outermost one.
    pub ra: Option<Place>,
    /// The caller's frame pointer; `None` if it is the callee's.
    pub fp: Option<Place>,
    /// Whether the kernel made the frame: the caller was interrupted.
    pub signal_frame: bool,
}

/// A function of the running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// The address of its language-specific data; 0 if it has none.
    pub lsda: u64,
    /// The address of its personality routine; 0 if it has none.
    pub personality: u64,
}

/// The function whose FDE covers an address.
pub fn function(search: &Search<'_>, pc: u64, source: &mut impl Source) -> Option<Function> {
    let mut reader = Reader::new(source);
    let fde = fde(search, pc, &mut reader)?;
    Some(Function {
        start: fde.start,
        end: fde.end,
        lsda: fde.lsda.map_or(0, |lsda| lsda.read(&mut reader)),
        personality: fde
            .cie
            .personality
            .map_or(0, |personality| personality.read(&mut reader)),
    })
}

/// Describes how to leave the frame at `pc`, the address to look up.
///
/// # Errors
/// [`Missing::Entry`] if no FDE covers the address; [`Missing::Value`] if the rule depends on more
/// than the stack pointer, the frame pointer and one word of memory. Then only
/// [`caller`](crate::caller()) can follow it.
pub fn describe(arch: &Arch, search: &Search<'_>, pc: u64, source: &mut impl Source) -> Result<Description, Missing> {
    let mut reader = Reader::new(source);
    let fde = fde(search, pc, &mut reader).ok_or(Missing::Entry)?;
    let row = row(&fde, pc, &mut reader).ok_or(Missing::Entry)?;
    description(arch, &fde, &row, pc, &mut reader).ok_or(Missing::Value)
}

fn fde<S: Source>(search: &Search<'_>, pc: u64, reader: &mut Reader<'_, S>) -> Option<Fde> {
    let found = search.find(pc, reader).and_then(|at| Fde::read(at, reader))?;
    (found.start..found.end).contains(&pc).then_some(found)
}

fn description<S: Source>(
    arch: &Arch,
    fde: &Fde,
    row: &Row,
    pc: u64,
    reader: &mut Reader<'_, S>,
) -> Option<Description> {
    let mut place = |rule: Rule| match rule {
        Rule::Unspecified | Rule::SameValue | Rule::Undefined => None,
        Rule::Offset(offset) => Some(Place::saved(offset)),
        Rule::ValOffset(offset) => Some(Place {
            deref: false,
            ..Place::saved(offset)
        }),
        Rule::Register(register) => is_kept(arch, register).then(|| Place::register(register)),
        Rule::Expression { bytes, at } => {
            let place = linear(arch, fde.expression(bytes, at), pc, reader)?;
            (!place.deref).then_some(Place { deref: true, ..place })
        }
        Rule::ValExpression { bytes, at } => linear(arch, fde.expression(bytes, at), pc, reader),
    };
    let column = Register(fde.cie.ra);
    let ra = match row.rule(column) {
        Rule::Undefined => None,
        Rule::Unspecified | Rule::SameValue if arch.link_register => Some(Place::register(column)),
        rule => Some(place(rule)?),
    };
    let fp = match row.rule(arch.fp) {
        // libgcc leaves the register alone too if its value is said to be lost.
        Rule::Unspecified | Rule::SameValue | Rule::Undefined => None,
        rule => Some(place(rule)?),
    };
    // A rule of its own for the stack pointer means a jump to another frame, unless it is the
    // kernel's.
    if row.rule(arch.sp) != Rule::Unspecified && !fde.cie.signal_frame {
        return None;
    }
    let cfa = match row.cfa {
        Cfa::RegisterAndOffset(register, offset) => Place {
            base: is_kept(arch, register).then_some(Some(register))?,
            offset: i32::try_from(offset).ok()?,
            deref: false,
        },
        Cfa::Expression(code) => linear(arch, code, pc, reader)?,
    };
    Some(Description {
        start: fde.start,
        cfa,
        ra,
        fp,
        signal_frame: fde.cie.signal_frame,
    })
}

/// Whether the register is known in every frame.
fn is_kept(arch: &Arch, register: Register) -> bool {
    register == arch.sp || register == arch.fp || arch.link_register && register == arch.ra
}

/// Registers with chosen values. Their low bits differ, so that masks show.
struct Trial<'a> {
    arch: &'a Arch,
    pc: u64,
    sp: u64,
    fp: u64,
    read: Option<u64>,
    is_read_twice: bool,
}

/// Stands for the word that an expression reads.
const WORD: u64 = 0x5ca1_ab1e_0dd5_ba11;
const SP: u64 = 0x0000_7a3b_19c4_d2e7;
const FP: u64 = 0x0000_11d6_8f05_3b59;
const MOVED: u64 = 0x0000_0000_0135_79bd;

impl Values for Trial<'_> {
    fn register(&mut self, register: Register) -> Option<u64> {
        match register {
            _ if register == self.arch.sp => Some(self.sp),
            _ if register == self.arch.fp => Some(self.fp),
            // Linkers' rules for linkage tables depend on the place in them.
            _ if register == self.arch.ra && !self.arch.link_register => Some(self.pc),
            _ => None,
        }
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        self.is_read_twice = self.read.is_some();
        self.read = Some(address);
        Some(WORD)
    }
}

/// An expression that is a register plus a constant, or the word there, found by evaluating it with
/// different values.
fn linear<S: Source>(arch: &Arch, code: crate::reader::Cursor, pc: u64, reader: &mut Reader<'_, S>) -> Option<Place> {
    let mut value = |sp: u64, fp: u64| {
        let mut trial = Trial {
            arch,
            pc,
            sp,
            fp,
            read: None,
            is_read_twice: false,
        };
        let value = evaluate(code, None, reader, &mut trial)?;
        match trial.read {
            None => Some((value, false)),
            Some(address) if value == WORD && !trial.is_read_twice => Some((address, true)),
            Some(_) => None,
        }
    };
    let (at_first, deref) = value(SP, FP)?;
    let (with_sp, sp_deref) = value(SP.wrapping_add(MOVED), FP)?;
    let (with_fp, fp_deref) = value(SP, FP.wrapping_add(MOVED))?;
    if sp_deref != deref || fp_deref != deref {
        return None;
    }
    let moved = (with_sp.wrapping_sub(at_first), with_fp.wrapping_sub(at_first));
    let (base, from) = match moved {
        (MOVED, 0) => (arch.sp, SP),
        (0, MOVED) => (arch.fp, FP),
        _ => return None,
    };
    Some(Place {
        base: Some(base),
        offset: i32::try_from(at_first.wrapping_sub(from) as i64).ok()?,
        deref,
    })
}
