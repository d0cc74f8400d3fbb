//! Frames of AArch64 code that no table row describes: stubs of linkers, and frame records
//! (AAPCS64, "The frame pointer"), which need not be at the end of the frame.

use backtrail_sframe::{Location, Rule};
use backtrail_unwind::Uncovered;

use crate::a64::{self, BTI_C, NOP, addition, is, is_return};
use crate::instructions::Code;

/// DWARF numbers of registers.
const FP: u8 = 29;
const LR: u8 = 30;
const SP: u8 = 31;

/// Instructions of the longest stub.
const LONGEST_STUB: u64 = 6;
/// Instructions of the longest prologue that is read.
const LONGEST_PROLOGUE: u64 = 24;
/// Bytes in front of an address in which the code that made its frame is looked for.
const MOST_BEFORE: u64 = 4 << 10;
const INSTRUCTION: u64 = 4;

/// `nop`, `bti c`, `autia1716`.
const HINTS: [u32; 3] = [NOP, BTI_C, 0xd503_219f];
/// `adrp`, `ldr` of a word near the program counter, `movz`: each makes a value of nothing.
const MAKES: [(u32, u32); 3] = [
    (0x9f00_0000, 0x9000_0000),
    (0xff00_0000, 0x5800_0000),
    (0xff80_0000, 0xd280_0000),
];
/// `movk`.
const EXTENDS: (u32, u32) = (0xff80_0000, 0xf280_0000);
/// `ldr` with an offset that is not scaled by a register.
const LOADS: (u32, u32) = (0xffc0_0000, 0xf940_0000);

/// How to leave the frame at `pc`.
pub(crate) fn uncovered(code: &Code<'_>, pc: u64, is_return: bool) -> Uncovered {
    if !is_return && is_in_stub(code, pc) {
        let in_register = Location::register(LR, 0);
        return Uncovered::Exact(Rule::new(Location::register(SP, 0), in_register));
    }
    match above_record(code, pc) {
        // The record: the caller's frame pointer, and the return address.
        Some(bytes) => Uncovered::Rule(Rule {
            fp: Some(Location::saved(-bytes)),
            ..Rule::new(Location::register(FP, bytes), Location::saved(8 - bytes))
        }),
        None => Uncovered::FramePointer,
    }
}

/// Where jumps of this code that are no calls lead.
pub(crate) fn jumps(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    let words = (start..).step_by(INSTRUCTION as usize).zip(a64::words(code));
    words.filter_map(|(at, word)| Some(at.wrapping_add_signed(a64::branch(word)?.wrapping_mul(4))))
}

fn word(code: &Code<'_>, at: u64) -> Option<u32> {
    let offset = usize::try_from(at.checked_sub(code.start)?).ok()?;
    code.bytes.get(offset..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// Whether `pc` is in an entry of a linkage table or in a linker's veneer: code that computes a
/// constant target in the registers that the calling convention leaves to linkers, x16 and x17, and
/// jumps there. It changes neither the stack nor the link register, before `pc` or after.
fn is_in_stub(code: &Code<'_>, pc: u64) -> bool {
    let starts = (0..LONGEST_STUB).map_while(|back| pc.checked_sub(back * INSTRUCTION));
    starts
        .take_while(|at| word(code, *at).is_some_and(|word| is_of_stub(word) || *at == pc && is_jump(word)))
        .filter(|at| word(code, *at).is_some_and(makes))
        .any(|start| {
            let mut words = (0..LONGEST_STUB).map_while(|index| word(code, start.wrapping_add(index * INSTRUCTION)));
            words.find(|word| !is_of_stub(*word)).is_some_and(is_jump)
        })
        // What stands before the value is made.
        || word(code, pc).is_some_and(|first| HINTS.contains(&first))
            && word(code, pc.wrapping_add(INSTRUCTION)).is_some_and(makes)
            && is_in_stub(code, pc.wrapping_add(INSTRUCTION))
}

/// The destination of an instruction of a stub.
fn is_linkers(register: u32) -> bool {
    matches!(register & 31, 16 | 17)
}

fn makes(word: u32) -> bool {
    is_linkers(word) && MAKES.iter().any(|make| is(word, *make))
}

fn is_of_stub(word: u32) -> bool {
    let changes = is_linkers(word)
        && match addition(word) {
            Some(add) => is_linkers(add.from),
            None => is(word, EXTENDS) || is(word, LOADS) && is_linkers(word >> 5),
        };
    changes || makes(word) || HINTS.contains(&word)
}

/// `br x16`, `br x17`.
fn is_jump(word: u32) -> bool {
    is(word, (0xffff_fc1f, 0xd61f_0000)) && is_linkers(word >> 5)
}

/// Bytes from the frame record to the end of the frame that the code at `pc` has made: the prologue
/// in front of it must show all that it pushed, from the first instruction on.
fn above_record(code: &Code<'_>, pc: u64) -> Option<i32> {
    let points = |at: u64| {
        let add = addition(word(code, at)?)?;
        ((add.to, add.from) == (FP.into(), a64::SP) && add.bytes >= 0).then_some((at, add.bytes))
    };
    let before = (1..MOST_BEFORE / INSTRUCTION).map_while(|back| pc.checked_sub(back * INSTRUCTION));
    let (at, mut bytes) = before.map_while(|at| word(code, at).map(|_| at)).find_map(points)?;
    if code.functions.iter().any(|start| (at..=pc).contains(start)) {
        return None;
    }
    // The stack pointer was that far below the record.
    bytes = -bytes;
    let mut is_saved = false;
    for back in 1..=LONGEST_PROLOGUE {
        let at = at.checked_sub(back * INSTRUCTION)?;
        let first = word(code, at)?;
        let is_first = is_saved && (code.functions.contains(&(at + INSTRUCTION)) || ends_code(first));
        if is_first {
            return i32::try_from(bytes).ok().filter(|bytes| *bytes >= 16);
        }
        bytes += pushed(first)?;
        is_saved |= is_record(first);
    }
    None
}

/// Whether nothing goes on after this word: a return, a jump, `udf`, `brk`, or what fills gaps.
fn ends_code(word: u32) -> bool {
    /// As V8 fills them.
    const FILL: u32 = 0xcccc_cccc;
    let jumps = a64::is_jump(word) || is(word, (0xffff_fc1f, 0xd61f_0000));
    let pads = word >> 16 == 0 || [NOP, FILL, u32::MAX].contains(&word) || is(word, (0xffe0_001f, 0xd420_0000));
    is_return(word) || jumps || pads
}

/// Bytes by which an instruction lowers the stack pointer; `None` for those that set it otherwise,
/// and for those after which other code may run.
fn pushed(word: u32) -> Option<i64> {
    /// `stp`, of registers of 64 bits or of vectors' halves, with the new address in the base.
    const PAIRS: [(u32, u32); 2] = [(0xffc0_0000, 0xa980_0000), (0xffc0_0000, 0x6d80_0000)];
    /// The same for one register.
    const SINGLE: (u32, u32) = (0xffe0_0c00, 0xf800_0c00);
    /// Classes of instructions: additions of registers that are extended, and logical operations
    /// with immediate values, whose destination may be the stack pointer.
    const TO_ANY: [(u32, u32); 2] = [(0x3fe0_0000, 0x0b20_0000), (0x1f80_0000, 0x1200_0000)];
    if let Some(add) = addition(word).filter(|add| add.to == a64::SP) {
        return (add.from == a64::SP && add.bytes < 0).then_some(-add.bytes);
    }
    let is_access = word >> 25 & 0b101 == 0b100;
    let by_sp = is_access && word >> 5 & 31 == a64::SP;
    if by_sp && PAIRS.iter().any(|pair| is(word, *pair)) {
        return Some(-8 * i64::from(signed(word >> 15, 7)));
    }
    if by_sp && is(word, SINGLE) {
        return Some(-i64::from(signed(word >> 12, 9)));
    }
    // Pairs and structures change the base if bit 23 is set, single registers without a scaled
    // offset if bit 10 is.
    let is_single = word >> 27 & 0b111 == 0b111;
    let changes_base = if is_single {
        word >> 24 & 1 == 0 && word >> 10 & 1 == 1
    } else {
        word >> 23 & 1 == 1
    };
    let sets_sp = word & 31 == a64::SP && TO_ANY.iter().any(|class| is(word, *class));
    let is_branch = word >> 26 & 0b111 == 0b101;
    let is_other = sets_sp || by_sp && changes_base || is_branch && !is_hint(word);
    (!is_other).then_some(0)
}

/// Hints, among them those that sign, are in the class of branches.
fn is_hint(word: u32) -> bool {
    is(word, (0xffff_f01f, 0xd503_201f))
}

/// The lowest bits as a number with a sign.
fn signed(word: u32, bits: u32) -> i32 {
    (word << (32 - bits)).cast_signed() >> (32 - bits)
}

/// `stp x29, x30`, which saves the record.
fn is_record(word: u32) -> bool {
    is(word, (0xff40_7fff, 0xa900_7bfd))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1000;

    fn with<R>(words: &[u32], act: impl FnOnce(&Code<'_>) -> R) -> R {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        act(&Code {
            bytes: &bytes,
            start: BASE,
            functions: &[],
        })
    }

    /// The places in code, in instructions, that are in a stub.
    fn stubs(words: &[u32]) -> Vec<u64> {
        let count = words.len() as u64;
        with(words, |code| {
            (0..count).filter(|at| is_in_stub(code, BASE + 4 * at)).collect()
        })
    }

    #[test]
    fn stubs_of_linkers_are_known_in_every_instruction() {
        const RET: u32 = 0xd65f_03c0;
        // adrp x16; ldr x17, [x16, #2184]; add x16, x16, #0x888; br x17
        let entry = [0xf010_03d0, 0xf944_4611, 0x9122_2210, 0xd61f_0220];
        assert_eq!(stubs(&entry), [0, 1, 2, 3]);
        assert_eq!(stubs(&[&[RET, HINTS[1]], &entry[..], &[RET]].concat()), [1, 2, 3, 4, 5]);
        // A veneer: adrp x16; add x16, x16; br x16.
        assert_eq!(stubs(&[RET, 0x9000_0010, 0x9100_0210, 0xd61f_0200]), [1, 2, 3]);
        // adr and a table's entry: ldrsw x17, [x16, x17, lsl #2]; add x16, x16, x17; br x16.
        assert_eq!(stubs(&[0x9000_0010, 0xb8b1_7a11, 0x8b11_0210, 0xd61f_0200]), [0u64; 0]);
        // The address is the caller's.
        assert_eq!(stubs(&[RET, 0xd61f_0200]), [0u64; 0]);
        assert_eq!(stubs(&entry[..3]), [0u64; 0]);
    }

    fn frame(words: &[u32]) -> Option<i32> {
        with(words, |code| above_record(code, BASE + 4 * words.len() as u64))
    }

    #[test]
    fn records_are_as_far_from_the_frames_end_as_the_prologue_pushes() {
        const RET: u32 = 0xd65f_03c0;
        const BLR: u32 = 0xd63f_0200;
        /// `mov x29, sp`.
        const POINT: u32 = 0x9100_03fd;
        // stp x29, x30, [sp, #-32]!
        assert_eq!(frame(&[RET, 0xa9be_7bfd, POINT, BLR]), Some(32));
        // stp d14, d15, [sp, #-16]!; stp x27, x28, [sp, #-16]!; paciasp; stp x29, x30, [sp, #-16]!
        let entry = [RET, 0x6dbf_3fee, 0xa9bf_73fb, 0xd503_233f, 0xa9bf_7bfd, POINT, BLR];
        assert_eq!(frame(&entry), Some(48));
        // sub sp, sp, #240; stp x29, x30, [sp, #48]; add x29, sp, #0x30
        assert_eq!(frame(&[RET, 0xd103_c3ff, 0xa903_7bfd, 0x9100_c3fd, BLR]), Some(192));
        // What V8 and compilers do in between: fmov d15, xzr; mov x26, x0.
        let entry = [
            0xcccc_cccc,
            0xa9bf_73fb,
            0xa9bf_7bfd,
            0x9e67_03ef,
            0xaa00_03fa,
            POINT,
            BLR,
        ];
        assert_eq!(frame(&entry), Some(32));
        // mov x19, x0; ldr x27, [sp], #16; add sp, sp, x1; and sp, x9, #-16; a branch
        assert_eq!(
            frame(&[RET, 0xa9bf_73fb, 0xaa00_03f3, 0xa9bf_7bfd, POINT, BLR]),
            Some(32)
        );
        for other in [0xf841_07fb, 0x8b21_63ff, 0x927c_ed3f, 0xb400_0040, BLR] {
            assert_eq!(
                frame(&[RET, 0xa9bf_73fb, other, 0xa9bf_7bfd, POINT, BLR]),
                None,
                "{other:x}"
            );
        }
        // Nothing saves the record.
        assert_eq!(frame(&[RET, 0xa9bf_73fb, POINT, BLR]), None);
        // The beginning is not seen.
        assert_eq!(frame(&[0xa9bf_7bfd, POINT, BLR]), None);
    }
}
