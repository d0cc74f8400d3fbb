//! AArch64 code whose call frame information is missing or wrong: the vDSO, which has none since
//! Linux 5.8, hand-written functions that call nothing, the dynamic linker's resolver, the entry
//! point's first instruction, and the code that signal handlers return to.

use std::ops::Range;

use backtrail_arch::Cpu;
use backtrail_elf::{Image, Symbols};
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};

use crate::a64::{self, BTI_C, NOP, is, is_jump};
use crate::by_hand;
use crate::eh_frame::{Converted, end_of};
use crate::signal;
use crate::undescribed::{self, described};

/// DWARF numbers of registers.
const FP: u8 = 29;
const LR: u8 = 30;
const SP: u8 = 31;

const INSTRUCTION: u64 = 4;
/// `mov x8, #139` and `svc #0`: the system call `rt_sigreturn`.
const SIGRETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];
/// `stp x8, x9, [sp, #-…]!` and the bits that count.
const SAVES_ARGUMENTS: (u32, u32) = (0xffc0_7fff, 0xa980_27e8);
/// What stubs of linkage tables push before they jump to the resolver.
const PUSHED: i32 = 16;

/// Sections that are one function each, made of what C libraries and compilers contribute.
const START_AND_END: [&str; 2] = [".init", ".fini"];

const OUTERMOST: Row = Row { start: 0, rule: None };

/// Corrects and adds rows.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    if image.arch().cpu != Cpu::Aarch64 {
        return;
    }
    enter(&mut converted.functions, image.entry());
    for function in &mut converted.functions {
        if is_resolver(image, function.start) {
            shift(function);
        } else if is_profiler(image, function.start) {
            shift_profiled(function);
        }
    }
    let known = described(converted);
    let mut found = signal_returns(image, known.is_empty());
    found.extend(
        by_hand::undescribed(image, &known)
            .into_iter()
            .filter_map(|range| of_code(image, range)),
    );
    let whole = START_AND_END.iter().filter_map(|name| image.section_header(name));
    found.extend(
        whole.filter_map(|section| of_code(image, section.address..section.address.checked_add(section.size)?)),
    );
    undescribed::add(converted, found, &known, image);
}

/// Whether call frame information describes the function at this address otherwise than it is: the
/// dynamic linker's resolver, which is entered after 16 bytes were pushed (sysdeps/aarch64,
/// `dl-trampoline.S`). It says that the return address lies above the caller's stack pointer.
pub(crate) fn is_resolver(image: &Image<'_>, start: u64) -> bool {
    if image.arch().cpu != Cpu::Aarch64 {
        return false;
    }
    let mut words = words(image, start..start.saturating_add(2 * INSTRUCTION));
    let first = words.next();
    // Without branch protection, glibc's macro is a `nop`.
    let is_pad = matches!(first, Some(BTI_C | NOP));
    let word = if is_pad { words.next() } else { first };
    word.is_some_and(|word| is(word, SAVES_ARGUMENTS))
}

/// Whether call frame information describes a function at this address otherwise than it is: what
/// the dynamic linker runs instead of the resolver if calls are profiled or audited. It does not
/// count what was pushed either, and its end as if it grew the frame.
pub(crate) fn is_profiler(image: &Image<'_>, start: u64) -> bool {
    /// `stp x29, x30, [sp]`, `mov x29, sp`, and `stp x0, x1, [x29, …]`.
    const MAKES_RECORD: [(u32, u32); 3] = [
        (u32::MAX, 0xa900_7bfd),
        (u32::MAX, 0x9100_03fd),
        (0xffc0_7fff, 0xa900_07a0),
    ];
    /// `ldur x0, [x16, #-8]`: the linkage table's second word.
    const GETS_MODULE: u32 = 0xf85f_8200;
    /// Instructions up to there.
    const NEAR: u64 = 24;
    if image.arch().cpu != Cpu::Aarch64 {
        return false;
    }
    let mut words = words(image, start..start.saturating_add(NEAR * INSTRUCTION)).peekable();
    words.next_if(|word| matches!(*word, BTI_C | NOP));
    let grows = words.next().and_then(a64::addition);
    let is_grown = grows.is_some_and(|add| (add.to, add.from) == (a64::SP, a64::SP) && add.bytes < 0);
    is_grown
        && MAKES_RECORD
            .into_iter()
            .all(|form| words.next().is_some_and(|word| is(word, form)))
        && words.any(|word| word == GETS_MODULE)
}

fn words<'a>(image: &Image<'a>, range: Range<u64>) -> impl Iterator<Item = u32> + use<'a> {
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    let code = image.data_in(range).unwrap_or(&[]);
    let code = &code[..length.min(code.len())];
    a64::words(code)
}

/// The entry point says that it has no caller, but often only after its first instruction.
pub(crate) fn enter(functions: &mut [FunctionRows], entry: u64) {
    let is_entered = |function: &&mut FunctionRows| (function.start..end_of(function)).contains(&entry);
    for function in functions.iter_mut().filter(is_entered) {
        if function.rows.iter().any(|row| row.rule.is_none()) {
            function.rows = vec![OUTERMOST];
        }
    }
}

/// Moves the frame of the resolver by what was pushed before.
fn shift(function: &mut FunctionRows) {
    let above = Location::saved(PUSHED / 2);
    let is = |row: &Row, ra| row.rule.is_some_and(|rule| rule.ra == ra);
    // Before its first rule, the return address is in its register.
    let is_usual = |row: &Row| is(row, above) || is(row, Location::register(LR, 0));
    if !function.rows.iter().all(is_usual) || !function.rows.iter().any(|row| is(row, above)) {
        return;
    }
    for rule in function.rows.iter_mut().filter_map(|row| row.rule.as_mut()) {
        move_frame(rule);
        // At its end it has popped what stubs push.
        if rule.cfa == Location::register(SP, 0) {
            rule.ra = Location::register(LR, 0);
        }
    }
}

/// Moves the frame of the profiler by what was pushed before.
fn shift_profiled(function: &mut FunctionRows) {
    let frame = function.rows.iter().filter_map(|row| row.rule);
    let Some(frame) = frame.map(|rule| rule.cfa).find(|cfa| cfa.base == Base::Register(FP)) else {
        return;
    };
    for rule in function.rows.iter_mut().filter_map(|row| row.rule.as_mut()) {
        let is_popped = ![0, frame.offset].contains(&rule.cfa.offset);
        if is_popped {
            *rule = ENTERED;
            continue;
        }
        move_frame(rule);
    }
}

/// Has a rule count what was pushed before.
fn move_frame(rule: &mut Rule) {
    rule.cfa.offset = rule.cfa.offset.saturating_add(PUSHED);
    for saved in [Some(&mut rule.ra), rule.fp.as_mut()].into_iter().flatten() {
        if saved.base == Base::Cfa {
            saved.offset = saved.offset.saturating_sub(PUSHED);
        }
    }
}

/// The code that signal handlers return to, in the vDSO and in C libraries: the kernel's frame is
/// at the stack pointer. A handler returns to its first byte, and callers are looked up by the byte
/// before: so it begins there. Data follows it in the vDSO, which is bare: nothing else describes
/// its code.
fn signal_returns(image: &Image<'_>, is_bare: bool) -> Vec<FunctionRows> {
    let is_padding = |word: u32| word == NOP || word == 0;
    let begins = |address: u64| {
        let symbols = Symbols::new(image);
        symbols.lookup(address).is_some_and(|symbol| symbol.address == address)
    };
    let mut found = Vec::new();
    for range in image.code_ranges() {
        let mut last = [0; 3];
        let end = range.end;
        let addresses = (range.start..).step_by(INSTRUCTION as usize);
        // One more, so that the last instruction has one after it.
        for (address, word) in addresses.zip(words(image, range).chain([0])) {
            if last[1..] == SIGRETURN {
                let begin = address - 2 * INSTRUCTION;
                let before = if is_padding(last[0]) { INSTRUCTION } else { 1 };
                // In the system call, the next instruction is about to run.
                let is_after = (is_padding(word) || is_bare && !begins(address)) && address + INSTRUCTION <= end;
                let after = if is_after { INSTRUCTION } else { 0 };
                let size = (2 * INSTRUCTION + before + after) as u32;
                found.extend(signal::rows(image.arch(), begin.saturating_sub(before), size));
            }
            last = [last[1], last[2], word];
        }
    }
    found
}

/// The rows of a function that nothing describes, if it is of one of two forms: none of its
/// instructions may change the stack pointer or the link register, except to sign it; or it begins
/// and ends as compilers begin and end functions with a frame record.
fn of_code(image: &Image<'_>, range: Range<u64>) -> Option<FunctionRows> {
    let size = u32::try_from(range.end - range.start).ok()?;
    let code: Vec<u32> = words(image, range.clone()).collect();
    if code.is_empty() || code.len() * 4 != size as usize {
        return None;
    }
    let rows = match code.iter().position(|word| may_change_frame(*word)) {
        None => vec![row(0, ENTERED)],
        Some(first) => framed(&code, first)?,
    };
    Some(FunctionRows::new(range.start, size, rows))
}

/// The rule where nothing was saved.
const ENTERED: Rule = Rule::new(Location::register(SP, 0), Location::register(LR, 0));

fn row(index: usize, rule: Rule) -> Row {
    Row {
        start: (4 * index) as u32,
        rule: Some(rule),
    }
}

/// The rows of a function whose instruction `first` is `stp x29, x30, [sp, #-…]!`, followed by
/// `mov x29, sp`: the record is at x29 until `ldp x29, x30, [sp], #…`, after which only a return
/// follows. Nothing else writes x29.
fn framed(code: &[u32], first: usize) -> Option<Vec<Row>> {
    const PUSH: (u32, u32) = (0xffc0_7fff, 0xa980_7bfd);
    const POP: (u32, u32) = (0xffc0_7fff, 0xa8c0_7bfd);
    const POINT: u32 = 0x9100_03fd;
    let immediate = |word: u32| (((word >> 15 & 0x7f) << 25) as i32 >> 25) * 8;
    let push = *code.get(first)?;
    let bytes = -immediate(push);
    if !is(push, PUSH) || *code.get(first + 1)? != POINT || bytes < 16 {
        return None;
    }
    let pushed = |cfa: u8| Rule {
        fp: Some(Location::saved(-bytes)),
        ..Rule::new(Location::register(cfa, bytes), Location::saved(8 - bytes))
    };
    let body = pushed(FP);
    let mut rows = vec![row(0, ENTERED), row(first + 1, pushed(SP)), row(first + 2, body)];
    let mut index = first + 2;
    while let Some(&word) = code.get(index) {
        index += 1;
        // Nothing leads back to where there was no record, or past the start of it.
        if let Some(distance) = a64::branch(word)
            && (0..=first as i64 + 1).contains(&(index as i64 - 1 + distance))
        {
            return None;
        }
        if is(word, POP) && immediate(word) == bytes {
            rows.push(row(index, ENTERED));
            let ends = |word: &u32| a64::is_return(*word) || is_jump(*word);
            let end = index + code[index..].iter().take(3).position(ends)?;
            if code[index..end].iter().any(|word| may_change_frame(*word)) {
                return None;
            }
            index = end + 1;
            if index < code.len() {
                rows.push(row(index, body));
            }
        } else if may_change_fp(word) {
            return None;
        }
    }
    Some(rows)
}

/// Whether an instruction may write x29.
pub(crate) fn may_change_fp(word: u32) -> bool {
    may_change(word, FP)
}

/// Whether an instruction may write a general register other than SP. Says so of more than do: of
/// all that name it where others have their destination.
pub(crate) fn may_change(word: u32, register: u8) -> bool {
    let register = u32::from(register);
    let writes_general = match word >> 25 & 15 {
        // Vectors and floating point.
        0b0111 | 0b1111 => may_write_general(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => !is_store(word) && word >> 26 & 1 == 0,
        0b1010 | 0b1011 => reads_system(word),
        _ => true,
    };
    let is_access = word >> 25 & 0b101 == 0b100;
    let is_base = is_access && word >> 5 & 31 == register && may_write_back(word);
    let is_second =
        word >> 27 & 7 == 0b101 && word >> 26 & 1 == 0 && word >> 22 & 1 == 1 && word >> 10 & 31 == register;
    word & 31 == register && writes_general || is_base || is_second
}

/// MRS and SYSL write a register.
fn reads_system(word: u32) -> bool {
    word & 0xffe0_0000 == 0xd520_0000
}

/// Whether a word stores: of one register, or of a pair.
fn is_store(word: u32) -> bool {
    let is_pair = word >> 27 & 7 == 0b101;
    let loads = if is_pair { word >> 22 & 1 } else { word >> 22 & 3 };
    matches!(word >> 25 & 15, 0b0100 | 0b0110 | 0b1100 | 0b1110) && loads == 0
}

/// Whether an instruction may write SP or x30, or call. Says so of more than do: of all that name
/// x30 as a destination, and of all that address by SP and write it back.
pub(crate) fn may_change_frame(word: u32) -> bool {
    let destination = word & 31;
    let second = word >> 10 & 31;
    let base = word >> 5 & 31;
    match word >> 25 & 15 {
        // Branches, exceptions, system instructions (C4.1.66): BL and BLR change x30; RETs, BRs and
        // hints have other things there.
        0b1010 | 0b1011 => a64::is_call(word) || reads_system(word) && destination == u32::from(LR),
        // Loads and stores: by base register with write-back, of pairs and vectors too, or to x30.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => {
            let writes_back = base == u32::from(SP) && may_write_back(word);
            let is_pair = word >> 27 & 7 == 0b101;
            let is_vector = word >> 26 & 1 == 1;
            writes_back || !is_vector && (destination == u32::from(LR) || is_pair && second == u32::from(LR))
        }
        // With immediates: ADD, SUB and the logical ones may write SP.
        0b1000 | 0b1001 => {
            let may_write_sp = matches!(word >> 23 & 7, 0b010..=0b100) && word & 0x6000_0000 != 0x6000_0000;
            let sets_flags = word >> 23 & 6 == 0b010 && word >> 29 & 1 == 1;
            destination == u32::from(LR) || destination == u32::from(SP) && may_write_sp && !sets_flags
        }
        // Of registers: those with an extended register may write SP.
        0b0101 | 0b1101 => {
            let is_extended = word & 0x1f20_0000 == 0x0b20_0000 && word >> 29 & 1 == 0;
            destination == u32::from(LR) || is_extended && destination == u32::from(SP)
        }
        0b0111 | 0b1111 => destination == u32::from(LR) && may_write_general(word),
        // Scalable vectors (ADDVL writes SP), and what is not allocated.
        _ => true,
    }
}

/// Whether an instruction of vectors or floating point may write a general register.
fn may_write_general(word: u32) -> bool {
    /// Conversions and moves between floating point and integers, and to numbers of fixed point.
    const CONVERSIONS: [(u32, u32); 2] = [(0x5f20_fc00, 0x1e20_0000), (0x5f20_0000, 0x1e00_0000)];
    /// `smov` and `umov`, of one part of a vector.
    const PARTS: [(u32, u32); 2] = [(0xbfe0_fc00, 0x0e00_2c00), (0xbfe0_fc00, 0x0e00_3c00)];
    CONVERSIONS.iter().chain(&PARTS).any(|class| is(word, *class))
}

/// Whether a load or store may write its base register back.
fn may_write_back(word: u32) -> bool {
    match word >> 27 & 7 {
        // Pairs: post-indexed and pre-indexed; vectors of several structures: post-indexed.
        0b101 => word >> 23 & 1 == 1,
        // Single registers: an immediate of nine bits, post-indexed and pre-indexed; of pointers
        // that are authenticated.
        0b111 if word >> 24 & 1 == 0 => word >> 10 & 1 == 1,
        0b111 => false,
        // Exclusive, structures, tags, copies: those that never write SP are not worth a look.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_change_the_frame_pointer() {
        // mov x29, sp; ldr x29, [sp]; ldp x28, x29, [sp]; ldp x29, x30, [sp], #16; fmov x29, d0;
        // add x29, x1, x2; mrs x29, tpidr_el0
        for word in [
            0x9100_03fd,
            0xf940_03fd,
            0xa940_77fc,
            0xa8c1_7bfd,
            0x9e66_001d,
            0x8b02_003d,
            0xd53b_d05d,
        ] {
            assert!(may_change_fp(word), "{word:x}");
        }
        // stp x29, x30, [sp, #-16]!; str x29, [sp]; stp x28, x29, [sp]; eor v29.16b, v1.16b, v2.16b
        // ld1 {v29.16b}, [x0]; ldr q29, [x0]; ldp q28, q29, [x0]; mov x0, x29
        for word in [
            0xa9bf_7bfd,
            0xf900_03fd,
            0xa900_77fc,
            0x6e22_1c3d,
            0x4c40_701d,
            0x3dc0_001d,
            0xad40_741c,
            0xaa1d_03e0,
        ] {
            assert!(!may_change_fp(word), "{word:x}");
        }
    }

    #[test]
    fn instructions_that_change_the_frame() {
        for word in [
            // bl; blr x1; blraaz x1; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16
            0x9400_0001,
            0xd63f_0020,
            0xd63f_083f,
            0xa9bf_7bfd,
            0xa8c1_7bfd,
            // ldr x30, [sp]; str x1, [sp, #-16]!; ldr x1, [sp], #16; stp d8, d9, [sp, #-16]!
            0xf940_03fe,
            0xf81f_0fe1,
            0xf841_07e1,
            0x6dbf_27e8,
            // sub sp, sp, #16; add sp, x29, #0; mov x30, x1; sub sp, sp, x1; and sp, x1, #-16
            0xd100_43ff,
            0x9100_03bf,
            0xaa01_03fe,
            0xcb21_63ff,
            0x927c_ec3f,
            // addvl sp, sp, #-1; mrs x30, tpidr_el0; adr x30, #0
            0x043f_57ff,
            0xd53b_d05e,
            0x1000_001e,
            // fmov x30, d0; fcvtzs w30, s1; fcvtzu x30, d2, #8; umov x30, v0.d[1];
            // smov x30, v3.h[2]
            0x9e66_001e,
            0x1e38_003e,
            0x9e59_e05e,
            0x4e18_3c1e,
            0x4e0a_2c7e,
        ] {
            assert!(may_change_frame(word), "{word:x}");
        }
        for word in [
            // paciasp; autiasp; ret; b; cbz x30; svc; br x16; mrs x2, cntvct_el0; isb
            0xd503_233f,
            0xd503_23bf,
            0xd65f_03c0,
            // eor v30.16b, v1.16b, v2.16b; pmull v30.1q, v21.1d, v7.1d; fadd d30, d1, d2
            0x6e22_1c3e,
            0x0ee7_e2be,
            0x1e62_283e,
            // ins v30.d[0], x1; tbl v30.16b, {v8.16b}, v9.16b
            0x4e08_1c3e,
            0x4e09_011e,
            0x1400_0010,
            0xb400_005e,
            0xd400_0001,
            0xd61f_0200,
            0xd53b_e042,
            0xd503_3fdf,
            // ldp x0, x1, [x2], #16; stp x0, x1, [sp]; ldr q0, [x1, #16]; ldr xzr, [x4]
            0xa8c1_0440,
            0xa900_07e0,
            0x3dc0_0420,
            0xf940_009f,
            // cmp w0, #15; tst w2, #0x60; mov w1, #2; add x4, sp, x4
            0x7100_3c1f,
            0x721b_045f,
            0x5280_0021,
            0x8b24_63e4,
            // fmov d0, x30; add v0.4s, v1.4s, v2.4s
            0x9e67_03c0,
            0x4ea2_8420,
        ] {
            assert!(!may_change_frame(word), "{word:x}");
        }
    }

    #[test]
    fn functions_with_a_frame_record() {
        // bti c; stp x29, x30, [sp, #-32]!; mov x29, sp; bl; ldp x29, x30, [sp], #32;
        // ret; nop
        let code = [
            BTI_C,
            0xa9be_7bfd,
            0x9100_03fd,
            0x9400_0001,
            0xa8c2_7bfd,
            0xd65f_03c0,
            NOP,
        ];
        let record = |base| Rule {
            fp: Some(Location::saved(-32)),
            ..Rule::new(Location::register(base, 32), Location::saved(-24))
        };
        let expected = [
            row(0, ENTERED),
            row(2, record(SP)),
            row(3, record(FP)),
            row(5, ENTERED),
            row(6, record(FP)),
        ];
        assert_eq!(framed(&code, 1).as_deref(), Some(&expected[..]));
        // With a branch back to the start, another use of x29, or another size popped.
        for (index, word) in [(6, 0x17ff_fffb), (6, 0xaa00_03fd), (3, 0xa940_7bfd), (1, 0xa900_7bfd)] {
            let mut other = code;
            other[index] = word;
            assert_eq!(framed(&other, 1), None, "{word:x}");
        }
    }

    #[test]
    fn the_resolvers_frame_is_moved_by_what_was_pushed() {
        let rule = |cfa, ra| Some(Rule::new(Location::register(SP, cfa), ra));
        let rows = |of: [(i32, Location); 3]| -> Vec<Row> {
            let rows = (0..).step_by(4).zip(of);
            let row = |(start, (cfa, ra))| Row {
                start,
                rule: rule(cfa, ra),
            };
            rows.map(row).collect()
        };
        let above = Location::saved(8);
        let in_register = Location::register(LR, 0);
        let mut function = FunctionRows::new(0, 12, rows([(0, in_register), (208, above), (-16, above)]));
        shift(&mut function);
        let expected = rows([(16, in_register), (224, Location::saved(-8)), (0, in_register)]);
        assert_eq!(function.rows, expected);
        // Others stay as they are.
        let mut other = FunctionRows::new(0, 12, expected.clone());
        shift(&mut other);
        assert_eq!(other.rows, expected);
    }

    /// The rows of glibc 2.36's `_dl_runtime_profile`, and what its instructions do: 16 bytes were
    /// pushed before, and both ends remove them with the frame.
    #[test]
    fn the_profilers_frame_is_moved_by_what_was_pushed() {
        let in_register = Location::register(LR, 0);
        let rule = |register, offset, ra, fp: Option<i32>| Rule {
            fp: fp.map(Location::saved),
            ..Rule::new(Location::register(register, offset), ra)
        };
        let saved = Location::saved;
        let rows = |rules: &[(u32, Rule)]| -> Vec<Row> {
            let row = |&(start, rule)| Row {
                start,
                rule: Some(rule),
            };
            rules.iter().map(row).collect()
        };
        let mut function = FunctionRows::new(
            0,
            356,
            rows(&[
                (0, rule(SP, 0, in_register, None)),
                (8, rule(SP, 496, in_register, None)),
                (16, rule(FP, 496, saved(-488), Some(-496))),
                (168, rule(SP, 496, saved(-488), Some(-496))),
                (172, rule(SP, 496, in_register, None)),
                (176, rule(SP, 944, in_register, None)),
                (180, rule(FP, 496, saved(-488), Some(-496))),
                (340, rule(FP, 496, in_register, Some(-496))),
                (344, rule(SP, 496, in_register, Some(-496))),
                (348, rule(SP, 496, in_register, None)),
                (352, rule(SP, 944, in_register, None)),
            ]),
        );
        shift_profiled(&mut function);
        let expected = rows(&[
            (0, rule(SP, 16, in_register, None)),
            (8, rule(SP, 512, in_register, None)),
            (16, rule(FP, 512, saved(-504), Some(-512))),
            (168, rule(SP, 512, saved(-504), Some(-512))),
            (172, rule(SP, 512, in_register, None)),
            (176, rule(SP, 0, in_register, None)),
            (180, rule(FP, 512, saved(-504), Some(-512))),
            (340, rule(FP, 512, in_register, Some(-512))),
            (344, rule(SP, 512, in_register, Some(-512))),
            (348, rule(SP, 512, in_register, None)),
            (352, rule(SP, 0, in_register, None)),
        ]);
        assert_eq!(function.rows, expected);
    }
}
