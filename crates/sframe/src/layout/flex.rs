//! Rows of FLEX FDEs (version 3): pairs of a control word and an offset, for CFA, RA and FP in this
//! order.

use super::default::decode_cfa_offset;
use super::{Context, Words};
use crate::constants::{FlexControl, FreInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Base, Location, Rule};

#[inline]
pub(super) fn decode(context: &Context, info: FreInfo, words: &Words<'_>) -> Result<Rule> {
    let control = FlexControl(words.unsigned(0)?);
    let Some(number) = control.register() else {
        return Err(Error::new(ErrorKind::FlexCfaBase(control.0), words.offset(0)));
    };
    require_offset(words, 0, control)?;
    let cfa = Location {
        base: Base::Register(register_number(number, words, 0)?),
        offset: decode_cfa_offset(context, words, 1)?,
        deref: control.deref(),
    };
    let mut next = 2;
    let ra = decode_location(words, &mut next)?.unwrap_or_else(|| context.default_ra());
    let fp = decode_location(words, &mut next)?.or_else(|| context.default_fp());
    Ok(Rule {
        cfa,
        ra,
        fp,
        mangled_ra: info.mangled_ra(),
    })
}

/// Reads the location at word `next` and advances it; `None` for padding or if no words are left.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "a row has at most 15 words")]
fn decode_location(words: &Words<'_>, next: &mut usize) -> Result<Option<Location>> {
    let index = *next;
    if index >= words.len() {
        return Ok(None);
    }
    let control = FlexControl(words.unsigned(index)?);
    if control == FlexControl::PADDING {
        *next = index + 1;
        return Ok(None);
    }
    require_offset(words, index, control)?;
    *next = index + 2;
    let base = match control.register() {
        Some(number) => Base::Register(register_number(number, words, index)?),
        None => Base::Cfa,
    };
    Ok(Some(Location {
        base,
        offset: words.signed(index + 1)?,
        deref: control.deref(),
    }))
}

#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "a row has at most 15 words")]
fn require_offset(words: &Words<'_>, index: usize, control: FlexControl) -> Result<()> {
    if index + 1 < words.len() {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::FlexOffset(control.0), words.offset(index)))
    }
}

#[inline]
fn register_number(number: u32, words: &Words<'_>, index: usize) -> Result<u8> {
    u8::try_from(number).map_err(|_| Error::new(ErrorKind::Register(number.into()), words.offset(index)))
}

#[cfg(feature = "write")]
pub(crate) use encoding::encode;

#[cfg(feature = "write")]
mod encoding {
    use super::super::default::encode_cfa_offset;
    use super::super::{Context, Word, WordList};
    use crate::constants::FlexControl;
    use crate::reason::Reason;
    use crate::row::{Base, Location, Rule};

    /// The words of a rule.
    pub(crate) fn encode(context: &Context, rule: &Rule) -> Result<WordList, Reason> {
        let Base::Register(number) = rule.cfa.base else {
            return Err(Reason::CfaFromCfa);
        };
        let mut words = WordList::new();
        words.push(Word::Unsigned(FlexControl::new(Some(number), rule.cfa.deref).0));
        words.push(Word::Signed(encode_cfa_offset(context, rule.cfa.offset)?));
        let fp = rule.fp.filter(|_| rule.fp != context.default_fp());
        if rule.ra != context.default_ra() {
            push_location(&mut words, rule.ra, Reason::RaPlace)?;
        } else if fp.is_some() {
            words.push(Word::Unsigned(FlexControl::PADDING.0));
        }
        match fp {
            Some(fp) => push_location(&mut words, fp, Reason::FpPlace)?,
            None if rule.fp != context.default_fp() => return Err(Reason::FpPlace),
            None => {}
        }
        Ok(words)
    }

    fn push_location(words: &mut WordList, location: Location, reason: Reason) -> Result<(), Reason> {
        let control = match location.base {
            Base::Register(number) => FlexControl::new(Some(number), location.deref),
            Base::Cfa => FlexControl::new(None, location.deref),
        };
        // The control word of "CFA + offset" without a dereference would be that of padding.
        if control == FlexControl::PADDING {
            return Err(reason);
        }
        words.push(Word::Unsigned(control.0));
        words.push(Word::Signed(location.offset));
        Ok(())
    }
}
