//! The initial instructions of a CIE (DWARF 5, section 6.4.2), as far as `DW_CFA_restore` in them
//! needs them.

use std::ops::Range;

use backtrail_wire::{Bytes, Cursor};

use super::section::MAX_CIE_BYTES;

pub(super) const NOP: u8 = 0;

/// Bytes of the CIE id and of the version.
pub(super) const STRING_AT: usize = 5;

/// Content and end of the entry at `offset`.
pub(super) fn entry(section: Bytes<'_>, offset: usize) -> Option<(usize, usize)> {
    let (len, content) = match section.u32(offset).ok()? {
        0xffff_ffff => (section.u64(offset + 4).ok()?, offset + 12),
        len => (u64::from(len), offset + 4),
    };
    let end = content.checked_add(usize::try_from(len).ok()?)?;
    (end <= section.len()).then_some((content, end))
}

/// The augmentation string of the CIE whose contents are between these offsets.
pub(super) fn letters(section: Bytes<'_>, content: usize, end: usize) -> Option<&[u8]> {
    let tail = section.data().get(content + STRING_AT..end)?;
    let len = tail.iter().position(|byte| *byte == 0)?;
    Some(&tail[..len])
}

/// An instruction that gives a register a rule, or takes it back.
struct OfRegister {
    register: u64,
    place: Range<usize>,
    restores: bool,
}

/// Where the CIE's instructions are that `DW_CFA_restore` in it undoes, and that itself; `content`
/// and `end` bound the CIE without its length. Empty without any, or if the instructions
/// cannot be understood.
pub(super) fn without_effect(section: Bytes<'_>, content: usize, end: usize) -> Vec<Range<usize>> {
    if end - content > MAX_CIE_BYTES {
        return Vec::new();
    }
    let instructions = instructions(section, content, end).and_then(|start| of_registers(section, start, end));
    let instructions = instructions.unwrap_or_default();
    let mut places = Vec::new();
    for (index, restore) in instructions.iter().enumerate().filter(|(_, found)| found.restores) {
        let same = instructions[..=index]
            .iter()
            .filter(|one| one.register == restore.register);
        places.extend(same.map(|one| one.place.clone()));
    }
    places
}

/// The offset of the first instruction.
pub(super) fn instructions(section: Bytes<'_>, content: usize, end: usize) -> Option<usize> {
    let (_, first) = augmentation(section, content, end)?;
    Some(first)
}

/// Where the augmentation's data is, and the first instruction after it.
pub(super) fn augmentation(section: Bytes<'_>, content: usize, end: usize) -> Option<(Range<usize>, usize)> {
    /// Versions of the format: of `.eh_frame`, and of `.debug_frame` since DWARF 4.
    const WITH_SHORT_COLUMN: u8 = 1;
    const WITH_SIZES: u8 = 4;
    let version = section.u8(content + STRING_AT - 1).ok()?;
    let string = letters(section, content, end)?;
    let sizes = if version >= WITH_SIZES { 2 } else { 0 };
    let mut cursor = section.cursor(content + STRING_AT + string.len() + 1 + sizes);
    number(&mut cursor)?;
    number(&mut cursor)?;
    match version {
        WITH_SHORT_COLUMN => drop(cursor.u8().ok()?),
        _ => number(&mut cursor).map(drop)?,
    }
    let data = match string {
        [] => 0,
        [b'z', ..] => block(&mut cursor)?,
        _ => return None,
    };
    let first = cursor.offset();
    Some((first - data..first, first))
}

fn of_registers(section: Bytes<'_>, start: usize, end: usize) -> Option<Vec<OfRegister>> {
    let mut cursor = section.cursor(start);
    let mut found = Vec::new();
    while cursor.offset() < end {
        let at = cursor.offset();
        let code = cursor.u8().ok()?;
        let register = match (code & 0xc0, code & 0x3f) {
            // DW_CFA_advance_loc
            (0x40, _) => None,
            // DW_CFA_offset
            (0x80, register) => {
                number(&mut cursor)?;
                Some((register.into(), false))
            }
            // DW_CFA_restore
            (0xc0, register) => Some((register.into(), true)),
            (_, code) => extended(code, &mut cursor)?,
        };
        if let Some((register, restores)) = register {
            found.push(OfRegister {
                register,
                place: at..cursor.offset(),
                restores,
            });
        }
    }
    (cursor.offset() == end).then_some(found)
}

/// Reads the operands of an instruction without a register in its code. Returns the register and
/// whether it is restored, if it is about one; `None` if the instruction is not understood.
pub(super) fn extended(code: u8, cursor: &mut Cursor<'_>) -> Option<Option<(u64, bool)>> {
    Some(match code {
        // DW_CFA_nop, DW_CFA_AARCH64_negate_ra_state_with_pc, DW_CFA_AARCH64_negate_ra_state
        NOP | 0x2c | 0x2d => None,
        // DW_CFA_advance_loc1, 2, 4
        0x02 => cursor.slice(1).ok().map(|_| None)?,
        0x03 => cursor.slice(2).ok().map(|_| None)?,
        0x04 => cursor.slice(4).ok().map(|_| None)?,
        // DW_CFA_restore_extended
        0x06 => Some((number(cursor)?, true)),
        // DW_CFA_undefined, DW_CFA_same_value
        0x07 | 0x08 => Some((number(cursor)?, false)),
        // DW_CFA_offset_extended, _register, _offset_extended_sf, _val_offset, _val_offset_sf,
        // _GNU_negative_offset_extended
        0x05 | 0x09 | 0x11 | 0x14 | 0x15 | 0x2f => {
            let register = number(cursor)?;
            number(cursor)?;
            Some((register, false))
        }
        // DW_CFA_expression, DW_CFA_val_expression
        0x10 | 0x16 => {
            let register = number(cursor)?;
            block(cursor)?;
            Some((register, false))
        }
        // DW_CFA_def_cfa, DW_CFA_def_cfa_sf
        0x0c | 0x12 => {
            number(cursor)?;
            number(cursor).map(|_| None)?
        }
        // DW_CFA_def_cfa_register, _offset, _offset_sf, DW_CFA_GNU_args_size
        0x0d | 0x0e | 0x13 | 0x2e => number(cursor).map(|_| None)?,
        // DW_CFA_def_cfa_expression
        0x0f => block(cursor).map(|_| None)?,
        _ => return None,
    })
}

/// Skips bytes whose number precedes them; returns it.
pub(super) fn block(cursor: &mut Cursor<'_>) -> Option<usize> {
    let len = usize::try_from(number(cursor)?).ok()?;
    cursor.slice(len).ok().map(|_| len)
}

/// An LEB128 number; the value of a signed one is not used.
pub(super) fn number(cursor: &mut Cursor<'_>) -> Option<u64> {
    const MORE: u8 = 0x80;
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = cursor.u8().ok()?;
        value |= u64::from(byte & !MORE).checked_shl(shift).unwrap_or(0);
        if byte & MORE == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_wire::Endian;

    fn nops(version: u8, instructions: &[u8]) -> Vec<(usize, usize)> {
        let sizes: &[u8] = if version == 4 { &[8, 0] } else { &[] };
        let head = [&[0, 0, 0, 0, version][..], b"zR\0", sizes, &[1, 0x78, 16, 1, 0x1b]].concat();
        let bytes = [&head[..], instructions].concat();
        let ranges = without_effect(Bytes::new(&bytes, Endian::Little), 0, bytes.len());
        let ranges = ranges.into_iter();
        ranges
            .map(|range| (range.start - head.len(), range.end - head.len()))
            .collect()
    }

    #[test]
    fn a_restore_undoes_what_the_cie_said_of_its_register() {
        let def = [0x0c, 7, 8, 0x90, 1];
        for version in [1, 3, 4] {
            assert_eq!(nops(version, &def), []);
            // Of a register without a rule, and of one with two.
            assert_eq!(nops(version, &[&def[..], &[0xc3, 0, 0]].concat()), [(5, 6)]);
            let twice = [&def[..], &[0x83, 2, 0x08, 3, 0x86, 2, 0xc3, 0x83, 3]].concat();
            assert_eq!(nops(version, &twice), [(5, 7), (7, 9), (11, 12)]);
        }
        let extended = [&def[..], &[0x11, 0x95, 1, 0x7f, 0x06, 0x95, 1]].concat();
        assert_eq!(nops(1, &extended), [(5, 9), (9, 12)]);
        // What is not understood stays as it is.
        assert_eq!(nops(1, &[0xc3, 0x3f]), []);
        assert_eq!(nops(1, &[0xc3, 0x0a, 0x0b]), []);
    }
}
