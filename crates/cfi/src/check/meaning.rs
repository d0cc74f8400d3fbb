//! Evaluates rules on a machine with made-up registers and memory: two ways to express the same
//! rule give the same numbers.
//!
//! Registers and memory hold hashes of their numbers and addresses. So neither an algebra of
//! expressions nor any part of the conversion to rows is needed.

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Base, Location, Rule};
use gimli::{CfaRule, RegisterRule, UnwindExpression};

use crate::eh_frame::{Storage, evaluate};
use crate::reader::Slice;

pub(super) type Row = gimli::UnwindTableRow<usize, Storage>;

/// The frame pointer of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fp {
    /// The register still holds it.
    Kept,
    /// It is lost.
    Lost,
    /// It has this value.
    Is(u64),
}

/// The result of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The CFA itself, from which offsets count.
    pub(super) cfa: u64,
    /// The CFA that the ABI derives from the caller's stack pointer: SFrame's CFA.
    pub(super) cfa_by_sp: u64,
    pub(super) ra: Ra,
    pub(super) fp: Fp,
    pub(super) mangled_ra: bool,
}

/// The return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ra {
    /// No rule gives its place, and the CPU has no register for it.
    Unsaved,
    Is(u64),
}

/// The meaning of a row of call frame information at a pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// There is no caller.
    Outermost,
    Caller(Caller),
    /// An expression can't be evaluated.
    Unclear,
}

/// An expression could not be evaluated.
struct Unclear;

/// Registers and memory.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) arch: &'static Arch,
    pub(super) seed: u64,
}

impl Machine {
    pub(super) fn memory(self, address: u64) -> u64 {
        let mut x = address.wrapping_add(self.seed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Odd, so that an expression that aligns it changes it.
    pub(super) fn register(self, number: u16) -> u64 {
        self.memory(u64::from(number) << 48) | 1
    }

    /// The result of a row of the table. Offsets count from `cfa` if it is given, instead of from
    /// the rule's own CFA.
    pub(super) fn by_rule(self, rule: &Rule, cfa: Option<u64>) -> Caller {
        let own = self.location(rule.cfa, 0);
        let cfa = cfa.unwrap_or(own);
        Caller {
            cfa,
            cfa_by_sp: own,
            ra: Ra::Is(self.location(rule.ra, cfa)),
            fp: rule.fp.map_or(Fp::Kept, |place| Fp::Is(self.location(place, cfa))),
            mangled_ra: rule.mangled_ra,
        }
    }

    fn location(self, location: Location, cfa: u64) -> u64 {
        let base = match location.base {
            Base::Cfa => cfa,
            Base::Register(number) => self.register(u16::from(number)),
        };
        let address = base.wrapping_add(i64::from(location.offset) as u64);
        if location.deref { self.memory(address) } else { address }
    }
}

/// Evaluates rows of call frame information.
pub(super) struct Evaluator<'s, 'a> {
    pub(super) section: &'s gimli::EhFrame<Slice<'a>>,
    pub(super) machine: Machine,
    /// The column of the return address.
    pub(super) ra: gimli::Register,
    pub(super) pc: u64,
    /// Whether an expression has read the pc: the row differs at the next one.
    pub(super) by_pc: bool,
    /// Whether the row has expressions at all.
    pub(super) expressions: bool,
}

impl Evaluator<'_, '_> {
    pub(super) fn row(&mut self, row: &Row) -> Meaning {
        if row.register(self.ra) == Some(RegisterRule::Undefined) {
            return Meaning::Outermost;
        }
        self.caller(row).map_or(Meaning::Unclear, Meaning::Caller)
    }

    fn caller(&mut self, row: &Row) -> Result<Caller, Unclear> {
        let arch = self.machine.arch;
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.machine.register(register.0).wrapping_add(*offset as u64)
            }
            CfaRule::Expression(expression) => self.expression(expression, None)?,
        };
        // On x86-64 the usual column is not a register.
        let no_register = !arch.link_register && self.ra.0 == u16::from(arch.ra.0);
        let ra = match row.register(self.ra) {
            None | Some(RegisterRule::SameValue) if no_register => Ra::Unsaved,
            None | Some(RegisterRule::SameValue) => Ra::Is(self.machine.register(self.ra.0)),
            Some(rule) => Ra::Is(self.value(&rule, cfa)?.ok_or(Unclear)?),
        };
        let fp = match rule_of(row, arch.fp) {
            None | Some(RegisterRule::SameValue) => Fp::Kept,
            Some(RegisterRule::Register(register)) if register.0 == u16::from(arch.fp.0) => Fp::Kept,
            Some(rule) => self.value(&rule, cfa)?.map_or(Fp::Lost, Fp::Is),
        };
        let cfa_by_sp = match rule_of(row, arch.sp) {
            None | Some(RegisterRule::SameValue) => cfa,
            // s390x saves the stack pointer with the other registers, in memory or in
            // floating-point ones. By its ABI the saved value is CFA - 160.
            Some(RegisterRule::Offset(_) | RegisterRule::Register(_)) if arch.sp_from_cfa != 0 => cfa,
            Some(rule) => self
                .value(&rule, cfa)?
                .ok_or(Unclear)?
                .wrapping_sub(arch.sp_from_cfa as u64),
        };
        let sign_state = row.register(gimli::AArch64::RA_SIGN_STATE);
        Ok(Caller {
            cfa,
            cfa_by_sp,
            ra,
            fp,
            mangled_ra: arch.cpu == Cpu::Aarch64 && sign_state == Some(RegisterRule::Constant(1)),
        })
    }

    /// The value of a register in the caller; `None` if it is lost.
    fn value(&mut self, rule: &RegisterRule<usize>, cfa: u64) -> Result<Option<u64>, Unclear> {
        let machine = self.machine;
        Ok(Some(match rule {
            RegisterRule::Offset(offset) => machine.memory(cfa.wrapping_add(*offset as u64)),
            RegisterRule::ValOffset(offset) => cfa.wrapping_add(*offset as u64),
            RegisterRule::Register(register) => machine.register(register.0),
            RegisterRule::Expression(found) => machine.memory(self.expression(found, Some(cfa))?),
            RegisterRule::ValExpression(found) => self.expression(found, Some(cfa))?,
            RegisterRule::Constant(value) => *value,
            RegisterRule::Undefined => return Ok(None),
            _ => return Err(Unclear),
        }))
    }

    fn expression(&mut self, expression: &UnwindExpression<usize>, cfa: Option<u64>) -> Result<u64, Unclear> {
        self.expressions = true;
        evaluate::evaluate(self.section, expression, cfa, self).ok_or(Unclear)
    }
}

impl evaluate::Machine for Evaluator<'_, '_> {
    /// On a CPU whose calls push the return address, its column is the pc unless a register has
    /// that number.
    fn register(&mut self, register: gimli::Register) -> Option<u64> {
        let arch = self.machine.arch;
        if register.0 == u16::from(arch.ra.0) && !arch.link_register {
            self.by_pc = true;
            return Some(self.pc);
        }
        Some(self.machine.register(register.0))
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        Some(self.machine.memory(address))
    }
}

/// The rule of a register.
pub(super) fn rule_of(row: &Row, register: backtrail_arch::Register) -> Option<RegisterRule<usize>> {
    row.register(gimli::Register(u16::from(register.0)))
}

/// The values of registers and memory. The second one is used if a row has an expression, whose
/// result may equal the other side's by an accident of the first.
pub(super) const SEEDS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x2545_f491_4f6c_dd1d];

/// The call frame information for the code that is being compared.
pub(super) struct Said<'s, 'a> {
    pub(super) section: &'s gimli::EhFrame<Slice<'a>>,
    pub(super) row: &'s Row,
    /// The column of the return address.
    pub(super) ra: gimli::Register,
    pub(super) signal_frame: bool,
    pub(super) key_b: bool,
    /// The row's meaning for each seed; a row without expressions needs only one.
    pub(super) meanings: [Option<Meaning>; 2],
}

impl Said<'_, '_> {
    /// Evaluates the row at `pc`; returns whether its meaning differs at the next pc.
    pub(super) fn evaluate(&mut self, arch: &'static Arch, pc: u64) -> bool {
        let mut by_pc = false;
        for (seed, meaning) in SEEDS.into_iter().zip(&mut self.meanings) {
            let mut evaluator = Evaluator {
                section: self.section,
                machine: Machine { arch, seed },
                ra: self.ra,
                pc,
                by_pc: false,
                expressions: false,
            };
            *meaning = Some(evaluator.row(self.row));
            by_pc |= evaluator.by_pc;
            if !evaluator.expressions {
                break;
            }
        }
        by_pc
    }
}
