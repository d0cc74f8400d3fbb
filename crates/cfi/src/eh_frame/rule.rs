//! Converts one row of the table that call frame information describes to an SFrame rule.

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Base, Location, Rule};
use gimli::{CfaRule, RegisterRule, UnwindTableRow};

use super::expression::{self, Pattern, Value, general_register};
use super::reason::Reason;
use super::section::Storage;
use crate::reader::Slice;

type Row = UnwindTableRow<usize, Storage>;
type Section<'a> = gimli::EhFrame<Slice<'a>>;

/// The SFrame meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One rule; `None` for the outermost frame.
    Rule(Option<Rule>),
    /// The rule's CFA depends on the place within a block.
    Pattern(Pattern, Rule),
    /// SFrame cannot express it.
    Skip(Reason),
}

/// Converts rules of one CPU.
pub(crate) struct Rules {
    arch: &'static Arch,
    sp: gimli::Register,
    fp: gimli::Register,
    /// Whether return addresses may be signed.
    signs: bool,
}

enum Cfa {
    Value(Value),
    Pattern(Pattern),
}

impl Rules {
    pub(crate) fn new(arch: &'static Arch) -> Rules {
        let number = |register: backtrail_arch::Register| gimli::Register(u16::from(register.0));
        Rules {
            arch,
            sp: number(arch.sp),
            fp: number(arch.fp),
            signs: arch.cpu == Cpu::Aarch64,
        }
    }

    /// Converts `row`; `column` is that of the return address (`return_address_register` of the
    /// CIE).
    pub(crate) fn verdict(&self, section: &Section<'_>, row: &Row, column: gimli::Register) -> Verdict {
        match self.usual(row, column) {
            Some(rule) => Verdict::Rule(Some(rule)),
            None => self.try_verdict(section, row, column).unwrap_or_else(Verdict::Skip),
        }
    }

    /// The fast path for nearly all rows, in one walk over the registers: the CFA counts from a
    /// register, and saved values are at offsets from the CFA. `None` for any other row.
    fn usual(&self, row: &Row, column: gimli::Register) -> Option<Rule> {
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return None;
        };
        let Base::Register(base) = self.base(*register)? else {
            return None;
        };
        // The column's rule also restores that register, which the walk below would miss.
        if column == self.fp || column == self.sp {
            return None;
        }
        let (mut ra, mut fp) = (None, None);
        for (register, rule) in row.registers() {
            match rule {
                RegisterRule::Offset(offset) if *register == column => ra = Some(i32::try_from(*offset).ok()?),
                RegisterRule::Offset(offset) if *register == self.fp => fp = Some(i32::try_from(*offset).ok()?),
                _ if *register == column || *register == self.fp || *register == self.sp => return None,
                _ if self.is_sign_state(*register) => return None,
                _ => {}
            }
        }
        Some(Rule {
            fp: fp.map(Location::saved),
            ..Rule::new(
                Location::register(base, i32::try_from(*offset).ok()?),
                Location::saved(ra?),
            )
        })
    }

    fn try_verdict(&self, section: &Section<'_>, row: &Row, column: gimli::Register) -> Result<Verdict, Reason> {
        // Without a caller no other rule matters.
        if row.register(column) == Some(RegisterRule::Undefined) {
            return Ok(Verdict::Rule(None));
        }
        let cfa = self.cfa(section, row)?;
        let value = match cfa {
            Cfa::Value(value) => value,
            Cfa::Pattern(pattern) => pattern.cfa_at(0),
        };
        let (ra, fp) = (self.ra(section, row, column)?, self.fp(section, row)?);
        let rule = match (self.other_sp(section, row, value)?, &cfa) {
            (None, _) => self.rule(row, value, ra, fp)?,
            (Some(sp), Cfa::Value(_)) => self.rule_by_sp(row, value, sp, ra, fp)?,
            (Some(_), Cfa::Pattern(_)) => return Err(Reason::SpRule),
        };
        Ok(match cfa {
            Cfa::Value(_) => Verdict::Rule(Some(rule)),
            Cfa::Pattern(pattern) => Verdict::Pattern(pattern, rule),
        })
    }

    fn rule(&self, row: &Row, cfa: Value, ra: Value, fp: Option<Value>) -> Result<Rule, Reason> {
        let location = |value: Value| value.location().ok_or(Reason::WideOffset);
        Ok(Rule {
            cfa: location(cfa)?,
            ra: location(ra)?,
            fp: fp.map(location).transpose()?,
            mangled_ra: self.is_ra_mangled(row),
        })
    }

    /// SFrame derives the caller's SP from the CFA. If call frame information gives another SP
    /// (`longjmp` on its way out), the rule's CFA is the address that yields that SP, and offsets
    /// from the true CFA become offsets from the register that the true CFA counts from.
    fn rule_by_sp(&self, row: &Row, cfa: Value, sp: Value, ra: Value, fp: Option<Value>) -> Result<Rule, Reason> {
        let rebase = |value: Value| value.with_cfa(cfa).ok_or(Reason::SpRule);
        let sp = rebase(sp)?;
        let by_abi = Value::Constant(self.arch.sp_from_cfa.wrapping_neg());
        let cfa = sp.plus(by_abi).ok_or(Reason::SpRule)?;
        self.rule(row, cfa, rebase(ra)?, fp.map(rebase).transpose()?)
    }

    fn cfa(&self, section: &Section<'_>, row: &Row) -> Result<Cfa, Reason> {
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = self.base(*register).ok_or(Reason::CfaRegister)?;
                Ok(Cfa::Value(Value::Address(base, *offset)))
            }
            CfaRule::Expression(found) => {
                let operations = expression::operations(section, found).ok_or(Reason::CfaExpression)?;
                if !self.arch.link_register
                    && let Some(pattern) = expression::pattern(&operations, self.arch.ra.0)
                    && self.nameable(pattern.cfa_at(0)).is_some()
                {
                    return Ok(Cfa::Pattern(pattern));
                }
                let value = expression::evaluate(&operations, None).ok_or(Reason::CfaExpression)?;
                let value = self.nameable(value).ok_or(Reason::CfaRegister)?;
                match value {
                    Value::Address(Base::Register(_), _) | Value::Word(Base::Register(_), _) => Ok(Cfa::Value(value)),
                    _ => Err(Reason::CfaExpression),
                }
            }
        }
    }

    fn ra(&self, section: &Section<'_>, row: &Row, column: gimli::Register) -> Result<Value, Reason> {
        let rule = match row.register(column) {
            None | Some(RegisterRule::SameValue) => {
                // The usual column is not a register on CPUs whose calls push the return address.
                let still = Value::Address(Base::Register(general_register(column).ok_or(Reason::ReturnColumn)?), 0);
                return self.nameable(still).ok_or(Reason::RaUnsaved);
            }
            Some(rule) => rule,
        };
        let value = self
            .value(section, &rule, Reason::RaExpression)?
            .ok_or(Reason::RaUnsaved)?;
        self.nameable(value).ok_or(Reason::RaRegister)
    }

    /// `None` if the register still holds it.
    fn fp(&self, section: &Section<'_>, row: &Row) -> Result<Option<Value>, Reason> {
        let rule = match row.register(self.fp) {
            None | Some(RegisterRule::SameValue) => return Ok(None),
            Some(RegisterRule::Undefined) => return Err(Reason::FpUndefined),
            Some(RegisterRule::Register(register)) if register == self.fp => return Ok(None),
            Some(rule) => rule,
        };
        let value = self
            .value(section, &rule, Reason::FpExpression)?
            .ok_or(Reason::FpUndefined)?;
        Ok(Some(self.nameable(value).ok_or(Reason::FpRegister)?))
    }

    /// The caller's SP if it is not the one that the ABI derives from the CFA.
    fn other_sp(&self, section: &Section<'_>, row: &Row, cfa: Value) -> Result<Option<Value>, Reason> {
        let rule = match row.register(self.sp) {
            None | Some(RegisterRule::SameValue) => return Ok(None),
            // s390x saves the old SP with the other registers, on the stack (store multiple) or in
            // a floating-point register: by its ABI that is the same value.
            Some(RegisterRule::Offset(_) | RegisterRule::Register(_)) if self.arch.sp_from_cfa != 0 => return Ok(None),
            Some(rule) => rule,
        };
        let value = self.value(section, &rule, Reason::SpRule)?.ok_or(Reason::SpRule)?;
        let value = self.nameable(value).ok_or(Reason::SpRule)?;
        let usual =
            value == Value::Address(Base::Cfa, self.arch.sp_from_cfa) || (self.arch.sp_from_cfa == 0 && value == cfa);
        Ok((!usual).then_some(value))
    }

    /// The value of a register in the caller; `None` if it is undefined.
    fn value(
        &self,
        section: &Section<'_>,
        rule: &RegisterRule<usize>,
        inexpressible: Reason,
    ) -> Result<Option<Value>, Reason> {
        let evaluate = |found| {
            let operations = expression::operations(section, found)?;
            expression::evaluate(&operations, Some(Value::Address(Base::Cfa, 0)))
        };
        let value = match rule {
            RegisterRule::Offset(offset) => Some(Value::Word(Base::Cfa, *offset)),
            RegisterRule::ValOffset(offset) => Some(Value::Address(Base::Cfa, *offset)),
            RegisterRule::Register(register) => {
                let number = general_register(*register).ok_or(match inexpressible {
                    Reason::RaExpression => Reason::RaRegister,
                    Reason::FpExpression => Reason::FpRegister,
                    other => other,
                })?;
                Some(Value::Address(Base::Register(number), 0))
            }
            RegisterRule::Expression(found) => Some(evaluate(found).and_then(Value::word).ok_or(inexpressible)?),
            RegisterRule::ValExpression(found) => Some(evaluate(found).ok_or(inexpressible)?),
            _ => None,
        };
        // A bare number is not a location.
        match value {
            Some(Value::Constant(_)) => Err(inexpressible),
            value => Ok(value),
        }
    }

    fn base(&self, register: gimli::Register) -> Option<Base> {
        let value = Value::Address(Base::Register(general_register(register)?), 0);
        match self.nameable(value)? {
            Value::Address(base, _) => Some(base),
            _ => None,
        }
    }

    /// The column of the return address is not a register on CPUs whose calls push it.
    fn nameable(&self, value: Value) -> Option<Value> {
        match value {
            Value::Address(Base::Register(number), _) | Value::Word(Base::Register(number), _)
                if number == self.arch.ra.0 && !self.arch.link_register =>
            {
                None
            }
            value => Some(value),
        }
    }

    fn is_ra_mangled(&self, row: &Row) -> bool {
        self.signs && row.register(gimli::AArch64::RA_SIGN_STATE) == Some(RegisterRule::Constant(1))
    }

    /// Whether a column is not a register but the flag that return addresses are signed.
    fn is_sign_state(&self, register: gimli::Register) -> bool {
        self.signs && register == gimli::AArch64::RA_SIGN_STATE
    }
}
