//! Frames of AArch64 code that no table row describes: stubs of linkers, and frame records
//! (AAPCS64, "The frame pointer"), which need not be at the end of the frame.

use backtrail_sframe::{Location, Rule};
use backtrail_unwind::Uncovered;

use crate::a64::{self, BTI_C, NOP, addition, is, is_return, writeback};
use crate::instructions::{BYTES_BEFORE, Code};
use crate::linked::{may_change_fp, may_change_frame};

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
        return Uncovered::Exact(in_register(0));
    }
    if let Some(leaf) = Some(pc).filter(|_| !is_return).and_then(|pc| leaf(code, pc)) {
        return match leaf.is_certain {
            true => Uncovered::Rule(in_register(leaf.bytes)),
            false => Uncovered::Leaf(in_register(leaf.bytes)),
        };
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
    words.filter_map(|(at, word)| target(at, word))
}

/// Where the word at `at` branches to, if it is a branch and no call.
fn target(at: u64, word: u32) -> Option<u64> {
    Some(at.wrapping_add_signed(a64::branch(word)?.wrapping_mul(INSTRUCTION as i64)))
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
    a64::is_jump_to_register(word) && is_linkers(word >> 5)
}

/// The rule of a frame of this many bytes, with the return address in its register.
fn in_register(bytes: i32) -> Rule {
    Rule::new(Location::register(SP, bytes), Location::register(LR, 0))
}

/// A function that keeps its return address in its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf {
    /// Bytes that it has on the stack.
    bytes: i32,
    /// Whether it is certain where it begins.
    is_certain: bool,
}

/// The function that `pc` is in, if none of its instructions in front of `pc` may change the link
/// register or the frame pointer, and it only pushes until it returns.
fn leaf(code: &Code<'_>, pc: u64) -> Option<Leaf> {
    let mut at = pc;
    while pc - at < MOST_BEFORE {
        let is_certain = code.functions.contains(&at) || is_after_padding(code, at);
        let before = at.checked_sub(INSTRUCTION)?;
        let last = word(code, before)?;
        if is_certain || is_return(last) && !leads_in(code, at, pc) {
            let bytes = i32::try_from(pushed_in(code, at, pc)?).ok()?;
            return Some(Leaf { bytes, is_certain });
        }
        let may_be_leafs = pushed_or_none(last).is_some() || popped(last).is_some();
        if !may_be_leafs || may_change_fp(last) {
            return None;
        }
        at = before;
    }
    None
}

/// Whether code in front of `start` branches to code from there to `pc`.
fn leads_in(code: &Code<'_>, start: u64, pc: u64) -> bool {
    let before = (1..=MOST_BEFORE / INSTRUCTION).map_while(|back| start.checked_sub(back * INSTRUCTION));
    before
        .map_while(|at| Some((at, word(code, at)?)))
        .any(|(at, word)| target(at, word).is_some_and(|target| (start..=pc).contains(&target)))
}

/// Bytes that code from `start` on has pushed at `pc`; `None` if it pops, and does not return then.
fn pushed_in(code: &Code<'_>, start: u64, pc: u64) -> Option<i64> {
    let (mut bytes, mut at) = (0, start);
    while at < pc {
        if popped(word(code, at)?).is_none() {
            bytes += pushed_or_none(word(code, at)?)?;
            at += INSTRUCTION;
            continue;
        }
        let mut left = bytes;
        // What follows the return comes from before it.
        loop {
            if at == pc {
                return Some(left);
            }
            let word = word(code, at)?;
            at += INSTRUCTION;
            if is_return(word) {
                break;
            }
            left -= popped(word).or_else(|| (!may_change_frame(word)).then_some(0))?;
        }
    }
    Some(bytes)
}

/// Bytes that an instruction pushes, or 0 if it changes no frame.
fn pushed_or_none(word: u32) -> Option<i64> {
    match may_change_frame(word) {
        true => pushed(word).filter(|bytes| *bytes > 0),
        false => Some(0),
    }
}

/// Bytes by which an instruction raises the stack pointer: an addition, or an access to registers
/// other than the link register.
fn popped(word: u32) -> Option<i64> {
    if let Some(add) = addition(word) {
        return ((add.to, add.from) == (a64::SP, a64::SP) && add.bytes > 0).then_some(add.bytes);
    }
    let (base, bytes) = writeback(word)?;
    let (is_vector, is_pair) = (word >> 26 & 1 == 1, word >> 28 & 1 == 0);
    let is_link = |register: u32| register & 31 == u32::from(LR);
    let of_link = !is_vector && (is_link(word) || is_pair && is_link(word >> 10));
    (base == a64::SP && bytes > 0 && !of_link).then_some(bytes)
}

/// Whether `at` begins a function as assemblers align them: behind a return, and what fills a gap.
fn is_after_padding(code: &Code<'_>, at: u64) -> bool {
    const ALIGNMENT: u64 = 16;
    let mut before = (1..=ALIGNMENT).map_while(|back| word(code, at.checked_sub(back * INSTRUCTION)?));
    let is_padding = |word: &u32| [0, NOP].contains(word);
    at.is_multiple_of(ALIGNMENT)
        && before.next().as_ref().is_some_and(is_padding)
        && before.find(|word| !is_padding(word)).is_some_and(is_return)
}

/// Bytes from the frame record to the end of the frame that the code at `pc` has made: the prologue
/// in front of it must show all that it pushed, from the first instruction on. Nothing has been
/// pushed where it may leave for code that does without the frame.
fn above_record(code: &Code<'_>, pc: u64) -> Option<i32> {
    let points = |at: u64| {
        let add = addition(word(code, at)?)?;
        ((add.to, add.from) == (FP.into(), a64::SP) && add.bytes >= 0).then_some((at, add.bytes))
    };
    let before = (1..MOST_BEFORE / INSTRUCTION).map_while(|back| pc.checked_sub(back * INSTRUCTION));
    let (at, mut bytes) = before.map_while(|at| word(code, at).map(|_| at)).find_map(points)?;
    if code.functions.iter().any(|start| (at..=pc).contains(start)) || is_behind_end(code, at, pc) {
        return None;
    }
    // More is read than is searched here, so the code begins where its mapping does: with a
    // function, if a program has made it.
    const { assert!(MOST_BEFORE + (LONGEST_PROLOGUE + 1) * INSTRUCTION < BYTES_BEFORE) };
    let begins = |at: u64| at == code.start || code.functions.contains(&at);
    // The stack pointer was that far below the record.
    bytes = -bytes;
    let (mut is_saved, mut may_leave) = (false, false);
    for back in 1..=LONGEST_PROLOGUE {
        let at = at.checked_sub(back * INSTRUCTION)?;
        let before = word(code, at);
        if is_saved && (begins(at + INSTRUCTION) || before.is_some_and(ends_code)) {
            return i32::try_from(bytes).ok().filter(|bytes| *bytes >= 16);
        }
        let first = before?;
        let leaves = is_saved && !a64::is_jump(first) && a64::branch(first).is_some_and(|to| to > back as i64);
        may_leave |= leaves;
        let more = if leaves { 0 } else { pushed(first)? };
        if may_leave && more > 0 {
            return None;
        }
        bytes += more;
        is_saved |= is_record(first);
    }
    None
}

/// Whether the code from `start` on returns in front of `pc`, and shows no way to what follows.
fn is_behind_end(code: &Code<'_>, start: u64, pc: u64) -> bool {
    let (mut farthest, mut at) = (start, start);
    while at < pc {
        let Some(word) = word(code, at) else {
            return true;
        };
        let next = at + INSTRUCTION;
        farthest = farthest.max(target(at, word).filter(|target| *target <= pc).unwrap_or(start));
        if is_return(word) && farthest < next {
            return true;
        }
        at = next;
    }
    false
}

/// Whether nothing goes on after this word: a return, a jump, `udf`, `brk`, or what fills gaps.
fn ends_code(word: u32) -> bool {
    /// As V8 fills them.
    const FILL: u32 = 0xcccc_cccc;
    let jumps = a64::is_jump(word) || a64::is_jump_to_register(word);
    let pads = word >> 16 == 0 || [NOP, FILL, u32::MAX].contains(&word) || is(word, (0xffe0_001f, 0xd420_0000));
    is_return(word) || jumps || pads
}

/// Bytes by which an instruction lowers the stack pointer; `None` for those that set it otherwise,
/// and for those after which other code may run.
fn pushed(word: u32) -> Option<i64> {
    if let Some(add) = addition(word).filter(|add| add.to == a64::SP) {
        return (add.from == a64::SP && add.bytes < 0).then_some(-add.bytes);
    }
    if let Some((a64::SP, bytes)) = writeback(word) {
        return (bytes < 0).then_some(-bytes);
    }
    let is_branch = word >> 26 & 0b111 == 0b101;
    let is_other = a64::may_set_sp(word) || is_branch && !is_hint(word);
    (!is_other).then_some(0)
}

/// Hints, among them those that sign, are in the class of branches.
fn is_hint(word: u32) -> bool {
    is(word, (0xffff_f01f, 0xd503_201f))
}

/// `stp x29, x30`, which saves the record.
fn is_record(word: u32) -> bool {
    is(word, (0xff40_7fff, 0xa900_7bfd))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1000;
    const RET: u32 = 0xd65f_03c0;
    /// `mov x29, sp`.
    const POINT: u32 = 0x9100_03fd;

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
        const BLR: u32 = 0xd63f_0200;
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
        // cmp x1, x2; b.ne, far away; paciasp
        let leaves = [RET, 0xeb02_003f, 0x5400_4ee1, 0xd503_233f, 0xa9b8_7bfd, POINT, BLR];
        assert_eq!(frame(&leaves), Some(128));
        // To behind the record, or after something was pushed.
        let inside = [RET, 0xeb02_003f, 0x5400_0041, 0xa9b8_7bfd, POINT, BLR];
        assert_eq!(frame(&inside), None);
        assert_eq!(frame(&[RET, 0xa9bf_73fb, 0x5400_4ee1, 0xa9b8_7bfd, POINT, BLR]), None);
        // Nothing saves the record.
        assert_eq!(frame(&[RET, 0xa9bf_73fb, POINT, BLR]), None);
        // The mapping begins with it, or within it.
        assert_eq!(frame(&[0xa9bf_7bfd, POINT, BLR]), Some(16));
        assert_eq!(frame(&[POINT, BLR]), None);
    }

    /// What `leaf` finds for each instruction of `code`, behind what is in front of it.
    fn leaves(before: &[u32], code: &[u32], functions: &[u64]) -> Vec<Option<(i32, bool)>> {
        let words = [before, code].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = Code {
            bytes: &bytes,
            start: BASE,
            functions,
        };
        let places = (before.len()..words.len()).map(|index| BASE + 4 * index as u64);
        places
            .map(|at| leaf(&all, at).map(|leaf| (leaf.bytes, leaf.is_certain)))
            .collect()
    }

    #[test]
    fn functions_have_no_frame_until_they_make_one() {
        const CALLS: u32 = 0xd63f_0200;
        // cmp x1, x2; b.ne; paciasp; stp x29, x30, [sp, #-128]!; mov x29, sp; nop
        let made = [0xeb02_003f, 0x5400_4ee1, 0xd503_233f, 0xa9b8_7bfd, 0x9100_03fd, NOP];
        let found = |before: &[u32], functions: &[u64]| leaves(before, &made, functions);
        let until_record = |is_certain| {
            let bytes = [0, 0, 0, 0, 128].map(|bytes| Some((bytes, is_certain)));
            [&bytes[..], &[None]].concat()
        };
        for before in [&[RET, NOP, NOP, NOP][..], &[RET, 0, 0, 0]] {
            assert_eq!(found(before, &[]), until_record(true));
        }
        assert_eq!(found(&[NOP, NOP], &[BASE + 8]), until_record(true));
        assert_eq!(found(&[CALLS, RET], &[]), until_record(false));
        // A branch leads there, past the return; or nothing has returned.
        assert_eq!(found(&[0xb400_0040, RET], &[]), [None; 6]);
        assert_eq!(found(&[CALLS, NOP, NOP, NOP], &[]), [None; 6]);
        // mov x30, x0
        assert_eq!(leaves(&[RET, NOP, NOP, NOP], &[0xaa00_03fe, NOP], &[])[1], None);
    }

    #[test]
    fn leaves_may_have_something_on_the_stack() {
        // sub sp, sp, #32; stp d8, d9, [sp, #-16]!; cbnz w2, +4; ldp d8, d9, [sp], #16;
        // add sp, sp, #32; ret; mov x0, x1; add sp, sp, #16; mov x0, x1
        let code = [
            0xd100_83ff,
            0x6dbf_27e8,
            0x3500_0082,
            0x6cc1_27e8,
            0x9100_83ff,
            RET,
            0xaa01_03e0,
            0x9100_43ff,
            0xaa01_03e0,
        ];
        let bytes: Vec<Option<i32>> = leaves(&[RET, NOP, NOP, NOP], &code, &[])
            .into_iter()
            .map(|leaf| leaf.map(|(bytes, _)| bytes))
            .collect();
        let some = [0, 32, 48, 48, 32, 0, 48, 48, 32].map(Some);
        assert_eq!(bytes, some);
        // add sp, sp, #16, and no return; ldp x29, x30, [sp], #16
        for other in [0x9100_43ff, 0xa8c1_7bfd] {
            assert_eq!(
                leaves(&[RET, NOP, NOP, NOP], &[0xd100_83ff, other, NOP, 0x9400_0010, NOP], &[])[4],
                None
            );
        }
    }

    #[test]
    fn a_record_is_not_that_of_the_function_in_front() {
        let record = [RET, 0xa9be_7bfd, POINT, RET];
        assert_eq!(frame(&[&record[..], &[NOP]].concat()), None);
        // cbz x0, past the return
        let goes_on = [RET, 0xa9be_7bfd, POINT, 0xb400_0040, RET, NOP, NOP];
        assert_eq!(frame(&goes_on), Some(32));
    }
}
