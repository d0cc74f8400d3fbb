//! AArch64's instructions, as [`super::code`] reads those of x86-64 (Arm's architecture manual,
//! C4.1.66: branches; C6.2: `ADR`, `ADRP`, `ADD`).

use super::leaving::{Leaving, Target};

const NOP: u32 = 0xd503_201f;
const SVC: u32 = 0xd400_0001;
/// `mov x8, #139`: the number of `rt_sigreturn`.
const SIGRETURN: [u32; 2] = [0xd280_1168, SVC];
/// `clone` and `clone3`.
const CLONES: [u32; 2] = [220, 435];

/// Pages that a register held lately, of which an address may be made.
const PAGES: usize = 8;

fn words(code: &[u8]) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
    code.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

fn with_addresses(code: &[u8], start: u64) -> impl Iterator<Item = (u64, u32)> {
    words(code)
        .zip(0u64..)
        .map(move |(word, index)| (start.wrapping_add(4 * index), word))
}

/// The signed field of `bits` bits at `at`.
fn signed(word: u32, at: u32, bits: u32) -> i64 {
    (i64::from(word) << (64 - at - bits)) >> (64 - bits)
}

/// `BL`.
fn call_target(word: u32, address: u64) -> Option<u64> {
    (word >> 26 == 0b10_0101).then(|| address.wrapping_add_signed(signed(word, 0, 26) * 4))
}

/// `BLR`, `BLRAA`, `BLRAAZ`, `BLRAB`, `BLRABZ`.
fn is_indirect_call(word: u32) -> bool {
    word & 0xfeff_f000 == 0xd63f_0000
}

/// `BR` and those that authenticate.
fn is_indirect_jump(word: u32) -> bool {
    word & 0xfeff_f000 == 0xd61f_0000
}

/// `RET`, `RETAA`, `RETAB`.
fn is_return(word: u32) -> bool {
    word & 0xfeff_f000 == 0xd65f_0000
}

/// `B`.
fn is_jump(word: u32) -> bool {
    word >> 26 == 0b00_0101
}

/// The target of `B`, `B.cond`, `BC.cond`, `CBZ`, `CBNZ`, `TBZ` and `TBNZ`.
fn jump_target(word: u32, address: u64) -> Option<u64> {
    let distance = match word >> 24 & 0x7f {
        _ if is_jump(word) => signed(word, 0, 26),
        0x54 if word >> 31 == 0 => signed(word, 5, 19),
        0x34 | 0x35 => signed(word, 5, 19),
        0x36 | 0x37 => signed(word, 5, 14),
        _ => return None,
    };
    Some(address.wrapping_add_signed(distance * 4))
}

fn destination(word: u32) -> usize {
    (word & 31) as usize
}

fn base(word: u32) -> usize {
    (word >> 5 & 31) as usize
}

/// `ADRP`, or `ADR` with what it makes.
fn page(word: u32, address: u64) -> Option<u64> {
    let distance = signed(word, 5, 19) << 2 | i64::from(word >> 29 & 3);
    match word & 0x9f00_0000 {
        0x9000_0000 => Some((address & !0xfff).wrapping_add_signed(distance << 12)),
        0x1000_0000 => Some(address.wrapping_add_signed(distance)),
        _ => None,
    }
}

/// `ADD Xd, Xn, #imm`.
fn added(word: u32) -> Option<u64> {
    let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
    (word & 0xff80_0000 == 0x9100_0000).then(|| u64::from(word >> 10 & 0xfff) << shift)
}

/// `LDR Xt, [Xn, #imm]`.
fn loaded(word: u32) -> Option<u64> {
    (word & 0xffc0_0000 == 0xf940_0000).then(|| u64::from(word >> 10 & 0xfff) * 8)
}

/// The call that ends at `address`.
pub(crate) fn calls_before(bytes: &[u8], address: u64) -> Vec<Target> {
    let Some(word) = bytes.last_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return Vec::new();
    };
    match call_target(word, address.wrapping_sub(4)) {
        // Instructions are at multiples of four.
        _ if !address.is_multiple_of(4) => Vec::new(),
        Some(target) => vec![Target::Direct(target)],
        None if is_indirect_call(word) => vec![Target::Unknown],
        None => Vec::new(),
    }
}

/// As [`super::code::leaving`].
pub(crate) fn leaving(code: &[u8], start: u64) -> Leaving {
    let inside = start..start.wrapping_add(code.len() as u64);
    let mut leaving = Leaving::default();
    let mut recent = [(0u64, 0u32); 12];
    let mut ends = true;
    for (count, (address, word)) in with_addresses(code, start).enumerate() {
        // Zeros, an undefined instruction, are padding too.
        if word != NOP && word != 0 {
            ends = is_jump(word)
                || is_indirect_jump(word)
                || is_return(word)
                || is_indirect_call(word)
                || call_target(word, address).is_some()
                || word >> 21 == 0x6a1;
        }
        let target = match jump_target(word, address) {
            Some(target) if inside.contains(&target) => None,
            Some(target) => Some(Target::Direct(target)),
            None if is_indirect_jump(word) && !is_switch(word, &recent) => {
                Some(slot(word, &recent).map_or(Target::Unknown, Target::Slot))
            }
            None => None,
        };
        if let Some(target) = target
            && !leaving.jumps.contains(&target)
        {
            leaving.jumps.push(target);
        }
        recent[count % 12] = (address, word);
    }
    leaving.falls_through = !ends;
    leaving
}

/// Whether `br register` goes to one of a table of distances, as compilers translate `switch`:
/// what is added to a register was loaded from a table.
fn is_switch(jump: u32, before: &[(u64, u32)]) -> bool {
    // ADD of registers, shifted or extended.
    let adds = |word: u32| {
        (word & 0xff20_0000 == 0x8b00_0000 || word & 0xffe0_0000 == 0x8b20_0000) && destination(word) == base(jump)
    };
    // LDRB, LDRH, LDR and those that extend the sign, with an index in a register, or without.
    let loads = |word: u32| word & 0x3f20_0c00 == 0x3820_0800 || word & 0x3f00_0000 == 0x3900_0000;
    before.iter().any(|(_, word)| adds(*word)) && before.iter().any(|(_, word)| loads(*word))
}

/// The slot that `br register` has its target from: `adrp xP, page; ldr xN, [xP, offset]`.
fn slot(jump: u32, before: &[(u64, u32)]) -> Option<u64> {
    let (_, load) = before
        .iter()
        .filter(|(_, word)| loaded(*word).is_some() && destination(*word) == base(jump))
        .max_by_key(|(address, _)| *address)?;
    let (at, adrp) = before
        .iter()
        .filter(|(_, word)| word & 0x9f00_0000 == 0x9000_0000 && destination(*word) == base(*load))
        .max_by_key(|(address, _)| *address)?;
    Some(page(*adrp, *at)?.wrapping_add(loaded(*load)?))
}

/// As [`super::code::addresses`]. A page may be used long after it was made, even by code that is
/// reached otherwise: so an address is made of each of the last few pages.
pub(crate) fn addresses(code: &[u8], start: u64, leaves: impl Fn(u64, u64) -> bool) -> Vec<u64> {
    let mut found = Vec::new();
    let mut pages = [[0u64; PAGES]; 32];
    for (address, word) in with_addresses(code, start) {
        if let Some(target) = jump_target(word, address) {
            if leaves(address, target) {
                found.push(target);
            }
        } else if let Some(page) = page(word, address) {
            found.push(page);
            let pages = &mut pages[destination(word)];
            if !pages.contains(&page) {
                pages.rotate_right(1);
                pages[0] = page;
            }
        } else if let Some(offset) = added(word) {
            let made = pages[base(word)].iter().filter(|page| **page != 0);
            found.extend(made.map(|page| page.wrapping_add(offset)));
        }
    }
    found
}

/// As [`super::code::never_returns`].
pub(crate) fn never_returns(code: &[u8], start: u64) -> bool {
    let leaving = leaving(code, start);
    !words(code).any(is_return) && leaving.jumps.is_empty() && !leaving.falls_through
}

/// As [`super::code::makes_threads`]: `mov x8, #number` or `mov w8, #number`, then `svc`.
pub(crate) fn makes_threads(code: &[u8]) -> bool {
    let mut number = false;
    for word in words(code) {
        let value = word >> 5 & 0xffff;
        number |= word & 0x7fe0_001f == 0x5280_0008 && CLONES.contains(&value);
        if number && word == SVC {
            return true;
        }
    }
    false
}

/// As [`super::code::restores_from_signal`].
pub(crate) fn restores_from_signal(code: &[u8]) -> bool {
    words(code).take(2).eq(SIGRETURN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn calls() {
        // bl +64; bl -4; blr x3; blraaz x3; blraa x3, sp; br x3; ret; nop
        for (word, calls) in [
            (0x9400_0010, vec![Target::Direct(0x103c)]),
            (0x97ff_ffff, vec![Target::Direct(0xff8)]),
            (0xd63f_0060, vec![Target::Unknown]),
            (0xd63f_087f, vec![Target::Unknown]),
            (0xd73f_087f, vec![Target::Unknown]),
            (0xd61f_0060, vec![]),
            (0xd65f_03c0, vec![]),
            (NOP, vec![]),
        ] {
            assert_eq!(calls_before(&code(&[NOP, word]), 0x1000), calls, "{word:x}");
        }
        assert!(calls_before(&code(&[0x9400_0010]), 0x1002).is_empty());
    }

    #[test]
    fn jumps_out_of_a_function_are_seen_and_switches_are_not() {
        // b.eq +256; tbz w0, #0, +8; b -16
        let jumps = leaving(&code(&[0x5400_0800, 0x3600_0040, 0x17ff_fffc]), 0x1000);
        assert_eq!(
            jumps.jumps,
            [Target::Direct(0x1100), Target::Direct(0x100c), Target::Direct(0xff8)]
        );
        assert!(!jumps.falls_through);
        // adrp x0, page; add x0, x0, #16; ldrb w0, [x0, w1, uxtw]; adr x1, +12;
        // add x0, x1, w0, sxtb #2; br x0
        let switch = [
            0x9000_0000,
            0x9100_4000,
            0x3861_4800,
            0x1000_0061,
            0x8b20_8820,
            0xd61f_0000,
        ];
        assert_eq!(leaving(&code(&switch), 0x1000), Leaving::default());
        // A stub: adrp x16, +16 pages; ldr x17, [x16, #8]; add x16, x16, #8; br x17
        let stub = [0x9000_0090, 0xf940_0611, 0x9100_2210, 0xd61f_0220];
        assert_eq!(leaving(&code(&stub), 0x1000).jumps, [Target::Slot(0x1_1008)]);
        // cbz x0, out; ret
        let found = leaving(&code(&[0xb400_0800, 0xd65f_03c0]), 0x1000);
        assert_eq!((found.jumps.len(), found.falls_through), (1, false));
        assert!(leaving(&code(&[0x9100_2210]), 0x1000).falls_through);
        assert!(never_returns(&code(&[NOP, 0x9400_0010]), 0x1000));
    }

    #[test]
    fn addresses_that_code_makes() {
        // adrp x0, +1 page; nop; add x2, x0, #0x10; adr x1, +8
        let made = addresses(&code(&[0xb000_0000, NOP, 0x9100_4002, 0x1000_0041]), 0x1000, |_, _| {
            false
        });
        assert_eq!(made, [0x2000, 0x2010, 0x1014]);
    }

    #[test]
    fn thread_makers_and_signal_returns_are_known_by_their_code() {
        assert!(restores_from_signal(&code(&SIGRETURN)));
        assert!(!restores_from_signal(&code(&[SVC, SIGRETURN[0]])));
        // mov x8, #220; svc
        assert!(makes_threads(&code(&[0xd280_1b88, SVC])));
        assert!(!makes_threads(&code(&[0xd280_0ba8, SVC])));
    }
}
