//! Rewrites what the reader of call frame information does not know: augmentation letters,
//! `DW_CFA_restore` in a CIE, and an instruction of AArch64.
//!
//! AArch64 has two (DWARF for the Arm 64-bit Architecture, section 5): `B`, return addresses are
//! signed with key B, and `G`, the frame tags its memory. Neither has data. They are removed from
//! the CIE's string, and the number that follows the string, the code alignment factor, is padded
//! by as many bytes, so that nothing else moves.
//!
//! `DW_CFA_restore` in a CIE, which assemblers write if a function begins with `.cfi_restore`,
//! gives a register the rule that it has without any instruction: it and the register's
//! instructions before it become `DW_CFA_nop`.
//!
//! `DW_CFA_AARCH64_negate_ra_state_with_pc`, after an instruction that signs with the program
//! counter too, says of signed return addresses what `DW_CFA_AARCH64_negate_ra_state` says.

use std::borrow::Cow;
use std::collections::HashSet;

use backtrail_arch::Cpu;
use backtrail_wire::Bytes;

use super::initial::{self, STRING_AT, entry, letters};
use super::sign_state;

/// A section without these.
pub(crate) struct Normalized<'a> {
    /// The bytes, copied only if something was rewritten.
    pub(crate) data: Cow<'a, [u8]>,
    /// Offsets of the CIEs that had a `B`.
    pub(crate) key_b: HashSet<usize>,
}

pub(crate) fn normalize(section: Bytes<'_>, cpu: Cpu) -> Normalized<'_> {
    let mut normalized = Normalized {
        data: Cow::Borrowed(section.data()),
        key_b: HashSet::new(),
    };
    let mut offset = 0usize;
    // An invalid entry ends this pass; the conversion reports it.
    while let Some((content, end)) = entry(section, offset) {
        if section.u32(content) == Ok(0)
            && let Some(string) = letters(section, content, end)
        {
            for range in initial::without_effect(section, content, end) {
                normalized.data.to_mut()[range].fill(initial::NOP);
            }
            if string.contains(&b'B') {
                normalized.key_b.insert(offset);
            }
            if string.iter().any(|letter| is_bare(*letter)) {
                let cie = &mut normalized.data.to_mut()[content + STRING_AT..end];
                take_out(cie, string);
            }
        }
        if cpu == Cpu::Aarch64 {
            for at in sign_state::changes_with_pc(section, content, end) {
                normalized.data.to_mut()[at] = sign_state::NEGATE;
            }
        }
        offset = end;
    }
    normalized
}

fn is_bare(letter: u8) -> bool {
    letter == b'B' || letter == b'G'
}

/// Shortens the string at the start of `cie` and lengthens the LEB128 number after it.
fn take_out(cie: &mut [u8], string: &[u8]) {
    let number_at = string.len() + 1;
    let Some(number_len) = cie[number_at..].iter().position(|byte| byte & 0x80 == 0) else {
        return;
    };
    let number_end = number_at + number_len + 1;
    let kept = string.iter().copied().filter(|letter| !is_bare(*letter));
    let removed = string.iter().filter(|letter| is_bare(**letter)).count();
    let mut number = cie[number_at..number_end].to_vec();
    if let Some(last) = number.last_mut() {
        *last |= 0x80;
    }
    number.resize(number.len() + removed, 0x80);
    if let Some(last) = number.last_mut() {
        *last = 0;
    }
    let rewritten: Vec<u8> = kept.chain([0]).chain(number).collect();
    cie[..number_end].copy_from_slice(&rewritten);
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_wire::Endian;

    #[test]
    fn letters_go_and_nothing_moves() {
        let cie = |string: &[u8], number: &[u8]| {
            let content = [&[0, 0, 0, 0, 1][..], string, &[0], number, &[0x78, 30, 1, 0x1b]].concat();
            [&(content.len() as u32).to_le_bytes()[..], &content].concat()
        };
        let original = [cie(b"zR", &[4]), cie(b"zRBG", &[4]), cie(b"zRG", &[4])].concat();
        let expected = [cie(b"zR", &[4]), cie(b"zR", &[0x84, 0x80, 0]), cie(b"zR", &[0x84, 0])].concat();
        let normalized = normalize(Bytes::new(&original, Endian::Little), Cpu::X86_64);
        assert_eq!(&normalized.data[..], expected);
        assert_eq!(normalized.key_b, HashSet::from([cie(b"zR", &[4]).len()]));
        assert!(matches!(
            normalize(Bytes::new(&cie(b"zPLR", &[1]), Endian::Little), Cpu::Aarch64).data,
            Cow::Borrowed(_)
        ));
    }
}
