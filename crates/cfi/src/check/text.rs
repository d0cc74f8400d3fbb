//! Rules as text: `rsp+16`, `*(CFA-8)`, `unchanged`.

use std::fmt;

use backtrail_arch::{Arch, Register};
use backtrail_sframe::{Base, Location};
use gimli::{CfaRule, RegisterRule, UnwindExpression};

use super::meaning::{Said, rule_of};
use super::report::What;
use crate::reader::Slice;

/// The text of the part of a table's rule that `what` names.
pub(super) fn of_rule(arch: &Arch, rule: Option<&backtrail_sframe::Rule>, what: What, key_b: bool) -> String {
    let Some(rule) = rule else {
        return "outermost frame".into();
    };
    match what {
        What::Cfa => location(arch, rule.cfa),
        What::Ra => location(arch, rule.ra) + signature(rule.mangled_ra, key_b),
        What::Fp => rule.fp.map_or("unchanged".into(), |fp| location(arch, fp)),
        What::SignalFrame | What::Code => String::new(),
    }
}

fn location(arch: &Arch, location: Location) -> String {
    let base = match location.base {
        Base::Cfa => "CFA".into(),
        Base::Register(number) => register(arch, u16::from(number)),
    };
    match location.deref {
        true => format!("*({})", sum(&base, location.offset.into())),
        false => sum(&base, location.offset.into()),
    }
}

fn sum(base: &str, offset: i64) -> String {
    match offset {
        0 => base.to_owned(),
        _ => format!("{base}{offset:+}"),
    }
}

fn register(arch: &Arch, number: u16) -> String {
    let name = u8::try_from(number)
        .ok()
        .and_then(|number| arch.register_name(Register(number)));
    name.map_or_else(|| format!("r{number}"), str::to_owned)
}

fn signature(mangled: bool, key_b: bool) -> &'static str {
    match (mangled, key_b) {
        (false, _) => "",
        (true, false) => ", signed with key A",
        (true, true) => ", signed with key B",
    }
}

/// The text of the part of a row of call frame information that `what` names.
pub(super) fn of_row(arch: &Arch, said: &Said<'_, '_>, what: What) -> String {
    let Said { section, row, ra, .. } = *said;
    let saved = |rule: Option<RegisterRule<usize>>| register_rule(section, arch, rule);
    let undefined = row.register(ra) == Some(RegisterRule::Undefined);
    match what {
        What::Cfa | What::Ra | What::Fp if undefined => "outermost frame".into(),
        What::Cfa => {
            let cfa = match row.cfa() {
                CfaRule::RegisterAndOffset {
                    register: number,
                    offset,
                } => sum(&register(arch, number.0), *offset),
                CfaRule::Expression(found) => expression(section, found),
            };
            match rule_of(row, arch.sp) {
                None | Some(RegisterRule::SameValue) => cfa,
                rule => format!("{cfa}, but SP = {}", saved(rule)),
            }
        }
        What::Ra => {
            let mangled = row.register(gimli::AArch64::RA_SIGN_STATE) == Some(RegisterRule::Constant(1));
            let ra = match row.register(ra) {
                None | Some(RegisterRule::SameValue) => register(arch, ra.0),
                rule => saved(rule),
            };
            ra + signature(mangled, said.key_b)
        }
        What::Fp => saved(rule_of(row, arch.fp)),
        What::SignalFrame | What::Code => String::new(),
    }
}

fn register_rule(section: &gimli::EhFrame<Slice<'_>>, arch: &Arch, rule: Option<RegisterRule<usize>>) -> String {
    match rule {
        None | Some(RegisterRule::SameValue) => "unchanged".into(),
        Some(RegisterRule::Undefined) => "undefined".into(),
        Some(RegisterRule::Offset(offset)) => format!("*({})", sum("CFA", offset)),
        Some(RegisterRule::ValOffset(offset)) => sum("CFA", offset),
        Some(RegisterRule::Register(number)) => register(arch, number.0),
        Some(RegisterRule::Expression(found)) => format!("*({})", expression(section, &found)),
        Some(RegisterRule::ValExpression(found)) => expression(section, &found),
        Some(RegisterRule::Constant(value)) => value.to_string(),
        Some(_) => "a rule of the CPU's own".into(),
    }
}

fn expression(section: &gimli::EhFrame<Slice<'_>>, expression: &UnwindExpression<usize>) -> String {
    /// Only the beginning of a longer one is printed.
    const TOLD: usize = 32;
    let Ok(expression) = expression.get(section) else {
        return "an expression outside the section".into();
    };
    let mut text = "expression".to_owned();
    for byte in expression.0.slice().iter().take(TOLD) {
        let _ = fmt::write(&mut text, format_args!(" {byte:02x}"));
    }
    if expression.0.slice().len() > TOLD {
        text.push('…');
    }
    text
}
