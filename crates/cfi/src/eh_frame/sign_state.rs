//! Changes of AArch64's `RA_SIGN_STATE` (DWARF for the Arm 64-bit Architecture, "Call frame
//! instructions").

use backtrail_wire::{Bytes, Cursor};

use super::initial::{self, augmentation, block, entry, letters, number};
use super::section::MAX_CIE_BYTES;

/// `DW_CFA_AARCH64_negate_ra_state`.
pub(super) const NEGATE: u8 = 0x2d;
/// `DW_CFA_AARCH64_negate_ra_state_with_pc`.
const NEGATE_WITH_PC: u8 = 0x2c;

/// Bytes of an FDE's reference to its CIE.
const REFERENCE: usize = 4;

/// The offsets of [`NEGATE_WITH_PC`] among the instructions of a CIE or an FDE, without its length.
/// They end at an instruction that is not understood.
pub(super) fn changes_with_pc(section: Bytes<'_>, content: usize, end: usize) -> Vec<usize> {
    let bytes = section.data().get(content..end).unwrap_or_default();
    if !bytes.contains(&NEGATE_WITH_PC) {
        return Vec::new();
    }
    let first = match section.u32(content) {
        Ok(0) => initial::instructions(section, content, end),
        _ => instructions(section, content),
    };
    first.map_or_else(Vec::new, |first| changes(section.cursor(first), end))
}

fn changes(mut cursor: Cursor<'_>, end: usize) -> Vec<usize> {
    let mut found = Vec::new();
    while cursor.offset() < end {
        let at = cursor.offset();
        let Ok(code) = cursor.u8() else { break };
        let operands = match (code & 0xc0, code & 0x3f) {
            // DW_CFA_advance_loc, DW_CFA_restore
            (0x40 | 0xc0, _) => Some(()),
            // DW_CFA_offset
            (0x80, _) => number(&mut cursor).map(drop),
            // DW_CFA_remember_state, DW_CFA_restore_state
            (_, 0x0a | 0x0b) => Some(()),
            (_, code) => initial::extended(code, &mut cursor).map(drop),
        };
        if operands.is_none() {
            break;
        }
        if code == NEGATE_WITH_PC {
            found.push(at);
        }
    }
    found
}

/// The offset of an FDE's first instruction.
fn instructions(section: Bytes<'_>, content: usize) -> Option<usize> {
    let back = usize::try_from(section.u32(content).ok()?).ok()?;
    let (cie, cie_end) = entry(section, content.checked_sub(back)?)?;
    if cie_end - cie > MAX_CIE_BYTES {
        return None;
    }
    let encoding = encoding_of_addresses(section, cie, cie_end)?;
    let mut cursor = section.cursor(content + REFERENCE);
    skip_pointer(&mut cursor, encoding)?;
    skip_pointer(&mut cursor, encoding)?;
    if letters(section, cie, cie_end)?.first() == Some(&b'z') {
        block(&mut cursor)?;
    }
    Some(cursor.offset())
}

/// How the FDEs of a CIE write addresses.
fn encoding_of_addresses(section: Bytes<'_>, cie: usize, end: usize) -> Option<u8> {
    const ABSOLUTE: u8 = 0;
    let (data, _) = augmentation(section, cie, end)?;
    let mut cursor = section.cursor(data.start);
    for letter in letters(section, cie, end)?.iter().skip(1) {
        match letter {
            b'R' => return cursor.u8().ok(),
            b'L' => drop(cursor.u8().ok()?),
            b'P' => {
                let encoding = cursor.u8().ok()?;
                skip_pointer(&mut cursor, encoding)?;
            }
            b'S' | b'B' | b'G' => {}
            _ => return None,
        }
    }
    Some(ABSOLUTE)
}

/// Skips a pointer of this encoding (LSB 5.0, section 10.5.1).
fn skip_pointer(cursor: &mut Cursor<'_>, encoding: u8) -> Option<()> {
    const ALIGNED: u8 = 0x50;
    if encoding == ALIGNED {
        return None;
    }
    let bytes = match encoding & 0x0f {
        // DW_EH_PE_uleb128, DW_EH_PE_sleb128
        0x01 | 0x09 => return number(cursor).map(drop),
        // DW_EH_PE_udata2, DW_EH_PE_sdata2
        0x02 | 0x0a => 2,
        // DW_EH_PE_udata4, DW_EH_PE_sdata4
        0x03 | 0x0b => 4,
        // DW_EH_PE_absptr, DW_EH_PE_udata8, DW_EH_PE_sdata8
        0x00 | 0x04 | 0x0c => 8,
        _ => return None,
    };
    cursor.slice(bytes).ok().map(drop)
}
