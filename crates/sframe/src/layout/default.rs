//! Rows of DEFAULT FDEs, the only type in versions 1 and 2: offsets for CFA, RA and FP in this
//! order (section 1.4). A register with a fixed offset in the header has no word.

use core::hint::select_unpredictable;

use super::{Context, Words};
use crate::constants::{Abi, FreInfo, S390X_CFA_ADJUSTMENT, S390X_CFA_ALIGNMENT, Version};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Location, Rule};

/// The offsets of a row whose words are all plain offsets, as on every ABI except s390x.
#[derive(Clone, Copy)]
pub(crate) struct PlainWords {
    cfa: i32,
    /// Offset from the CFA to the saved RA, if it is saved.
    ra: Option<i32>,
    /// Offset from the CFA to the saved FP, if it is saved.
    fp: Option<i32>,
}

/// `None` if a word can't be read quickly.
#[inline(always)]
pub(super) fn plain_words(context: &Context, words: &Words<'_>) -> Option<PlainWords> {
    let fixed = |offset: i8| (offset != 0).then_some(i32::from(offset));
    let (fixed_ra, fixed_fp) = (fixed(context.fixed_ra), fixed(context.fixed_fp));
    let fp_index = if fixed_ra.is_none() { 2 } else { 1 };
    let has_fp = fixed_fp.is_none() && fp_index < words.len();
    // A branch on whether the row has a word for FP is unpredictable, so always read a word.
    let fp = words.quick(select_unpredictable(has_fp, fp_index, 0))?;
    Some(PlainWords {
        cfa: words.quick(0)?,
        ra: match fixed_ra.is_none() && words.len() > 1 {
            true => Some(words.quick(1)?),
            false => fixed_ra,
        },
        fp: (has_fp | fixed_fp.is_some()).then_some(select_unpredictable(has_fp, fp, context.fixed_fp.into())),
    })
}

#[inline(always)]
pub(super) fn plain(context: &Context, info: FreInfo, words: PlainWords) -> Rule {
    let arch = context.abi.arch();
    let base = if info.base_sp() { arch.sp } else { arch.fp };
    Rule {
        cfa: Location::register(base.0, words.cfa),
        ra: words.ra.map_or(Location::register(arch.ra.0, 0), Location::saved),
        fp: words.fp.map(Location::saved),
        mangled_ra: info.mangled_ra(),
    }
}

#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "a row has at most 15 words")]
pub(super) fn decode(context: &Context, info: FreInfo, words: &Words<'_>) -> Result<Rule> {
    let arch = context.abi.arch();
    let base = if info.base_sp() { arch.sp } else { arch.fp };
    let cfa = Location::register(base.0, decode_cfa_offset(context, words, 0)?);
    let mut next = 1;
    let ra = if context.fixed_ra == 0 && next < words.len() {
        next += 1;
        decode_slot(context, words, next - 1)?.unwrap_or_else(|| context.default_ra())
    } else {
        context.default_ra()
    };
    let fp = if context.fixed_fp == 0 && next < words.len() {
        // Zero is padding only in place of RA, which comes before FP.
        Some(decode_slot(context, words, next)?.unwrap_or_else(|| Location::saved(0)))
    } else {
        context.default_fp()
    };
    Ok(Rule {
        cfa,
        ra,
        fp,
        mangled_ra: info.mangled_ra(),
    })
}

/// The CFA's offset, which is scaled on s390x, also in FLEX rows.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "32-bit numbers in 64 bits")]
pub(super) fn decode_cfa_offset(context: &Context, words: &Words<'_>, index: usize) -> Result<i32> {
    let word = words.signed(index)?;
    if context.abi != Abi::S390xBig {
        return Ok(word);
    }
    let offset = i64::from(word) * S390X_CFA_ALIGNMENT + S390X_CFA_ADJUSTMENT;
    i32::try_from(offset).map_err(|_| Error::new(ErrorKind::CfaOffset(offset), words.offset(index)))
}

/// The location of RA or FP; `None` for padding on s390x.
#[inline]
fn decode_slot(context: &Context, words: &Words<'_>, index: usize) -> Result<Option<Location>> {
    let word = words.signed(index)?;
    if context.abi != Abi::S390xBig {
        return Ok(Some(Location::saved(word)));
    }
    if word == 0 {
        return Ok(None);
    }
    if word & 1 != 0 && context.version != Version::V3 {
        let number = word >> 1;
        return match u8::try_from(number) {
            Ok(number) => Ok(Some(Location::register(number, 0))),
            Err(_) => Err(Error::new(ErrorKind::Register(number.into()), words.offset(index))),
        };
    }
    Ok(Some(Location::saved(word)))
}

#[cfg(feature = "write")]
pub(crate) use encoding::{encode, encode_cfa_offset};

#[cfg(feature = "write")]
mod encoding {
    use super::super::{Context, Word, WordList};
    use crate::constants::{Abi, S390X_CFA_ADJUSTMENT, S390X_CFA_ALIGNMENT, Version};
    use crate::reason::Reason;
    use crate::row::{Base, Location, Rule};

    /// The words of a rule, and whether the CFA's base is SP.
    pub(crate) fn encode(context: &Context, rule: &Rule) -> Result<(WordList, bool), Reason> {
        let arch = context.abi.arch();
        let base_sp = match rule.cfa.base {
            Base::Register(number) if number == arch.sp.0 => true,
            Base::Register(number) if number == arch.fp.0 => false,
            Base::Register(_) => return Err(Reason::CfaRegister),
            Base::Cfa => return Err(Reason::CfaFromCfa),
        };
        if rule.cfa.deref {
            return Err(Reason::CfaInMemory);
        }
        let mut words = WordList::new();
        words.push(Word::Signed(encode_cfa_offset(context, rule.cfa.offset)?));
        let fp = match rule.fp {
            fp if fp == context.default_fp() => None,
            Some(fp) if context.fixed_fp == 0 => Some(encode_slot(context, fp).ok_or(Reason::FpPlace)?),
            _ => return Err(Reason::FpPlace),
        };
        if rule.ra == context.default_ra() {
            // If RA has the second word, FP needs the third.
            if fp.is_some() && context.fixed_ra == 0 {
                if context.abi != Abi::S390xBig {
                    return Err(Reason::FpWithoutRa);
                }
                words.push(Word::Signed(0));
            }
        } else if context.fixed_ra == 0 {
            let ra = encode_slot(context, rule.ra).filter(|&word| word != 0 || context.abi != Abi::S390xBig);
            words.push(Word::Signed(ra.ok_or(Reason::RaPlace)?));
        } else {
            return Err(Reason::RaPlace);
        }
        if let Some(fp) = fp {
            words.push(Word::Signed(fp));
        }
        Ok((words, base_sp))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "32-bit numbers in 64 bits")]
    pub(crate) fn encode_cfa_offset(context: &Context, offset: i32) -> Result<i32, Reason> {
        if context.abi != Abi::S390xBig {
            return Ok(offset);
        }
        let adjusted = i64::from(offset) - S390X_CFA_ADJUSTMENT;
        if adjusted % S390X_CFA_ALIGNMENT != 0 {
            return Err(Reason::CfaOffset);
        }
        i32::try_from(adjusted / S390X_CFA_ALIGNMENT).map_err(|_| Reason::CfaOffset)
    }

    fn encode_slot(context: &Context, location: Location) -> Option<i32> {
        let registers_have_words = context.abi == Abi::S390xBig && context.version != Version::V3;
        match location {
            Location {
                base: Base::Cfa,
                offset,
                deref: true,
            } if !registers_have_words || offset & 1 == 0 => Some(offset),
            Location {
                base: Base::Register(number),
                offset: 0,
                deref: false,
            } if registers_have_words => Some(i32::from(number) << 1 | 1),
            _ => None,
        }
    }
}
