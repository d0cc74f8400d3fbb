//! Rows for AArch64's procedure linkage table, for which linkers write no call frame information.

use backtrail_arch::Cpu;
use std::ops::Range;

use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Location, Row, Rule};
use backtrail_wire::{Bytes, Endian};

use crate::a64::{BTI_C, NOP};
use crate::eh_frame::Converted;
use crate::undescribed::{self, described};

/// DWARF numbers of registers.
const LR: u8 = 30;
const SP: u8 = 31;

const INSTRUCTION: usize = 4;
/// Bytes of the first entry, which calls the dynamic linker, with its padding.
const HEADER: usize = 32;
/// `stp x16, x30, [sp, #-16]!`, its first instruction.
const PUSH: u32 = 0xa9bf_7bf0;
const PUSHED: i32 = 16;

/// Masks and values of the instructions in the other entries: `adrp x16`, `ldr x17, [x16, …]`, `add
/// x16, x16, …`, `br x17`, `nop`, `bti c`, `autia1716`. None of them changes SP or LR.
const STUB: [(u32, u32); 7] = [
    (0x9f00_001f, 0x9000_0010),
    (0xffc0_03ff, 0xf940_0211),
    (0xffc0_03ff, 0x9100_0210),
    (u32::MAX, 0xd61f_0220),
    (u32::MAX, NOP),
    (u32::MAX, BTI_C),
    (u32::MAX, 0xd503_219f),
];

/// The first four, in sequence, are an entry's jump.
const JUMP: usize = 4;

/// Adds the functions of `.plt` that nothing else describes.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    let stubs = functions(image);
    if !stubs.is_empty() {
        let known = described(converted);
        undescribed::add(converted, stubs, &known, image);
    }
}

/// The functions of `.plt`: its first entry, and all others as one. Empty unless the section looks
/// as GNU ld, gold, lld and mold write it. A module without section headers, such as one in memory,
/// is searched for the first entry.
pub(crate) fn functions(image: &Image<'_>) -> Vec<FunctionRows> {
    let found = || {
        if image.arch().cpu != Cpu::Aarch64 {
            return None;
        }
        if image.sections().is_empty() {
            return image
                .code_ranges()
                .into_iter()
                .find_map(|range| first_entry(image, range));
        }
        let section = image.section_header(".plt")?;
        let code = image.data_in(section.memory())?;
        let code = code.get(..usize::try_from(section.size).ok()?)?;
        Some((section.address, code))
    };
    // Instructions are little-endian even if data is big-endian.
    found().map_or_else(Vec::new, |(address, code)| {
        of_code(address, Bytes::new(code, Endian::Little))
    })
}

/// The address of the first entry and the code from there on. Its sequence of instructions occurs
/// in no other code.
fn first_entry<'a>(image: &Image<'a>, range: Range<u64>) -> Option<(u64, &'a [u8])> {
    let code = image.data_in(range.clone())?;
    let words = code.as_chunks::<INSTRUCTION>().0;
    let is_entry = |words: &[[u8; INSTRUCTION]]| {
        let [push, rest @ ..] = words else { return false };
        let mut jumps = STUB.iter().zip(rest);
        u32::from_le_bytes(*push) == PUSH
            && jumps.all(|((mask, value), word)| u32::from_le_bytes(*word) & mask == *value)
    };
    let push = words.windows(1 + JUMP).position(is_entry)?;
    let has_pad = push
        .checked_sub(1)
        .is_some_and(|before| u32::from_le_bytes(words[before]) == BTI_C);
    let at = (push - usize::from(has_pad)) * INSTRUCTION;
    Some((range.start + at as u64, code.get(at..)?))
}

fn of_code(address: u64, code: Bytes<'_>) -> Vec<FunctionRows> {
    let word = |at: usize| code.u32(at).ok();
    let push_at = match word(0) {
        Some(BTI_C) => INSTRUCTION,
        _ => 0,
    };
    let mut functions = Vec::new();
    let mut stubs = 0;
    if word(push_at) == Some(PUSH) && code.len() >= HEADER {
        let entered = (0, rule(0, IN_LR));
        let pushed = ((push_at + INSTRUCTION) as u32, rule(PUSHED, ON_STACK));
        functions.push(function(address, HEADER, &[entered, pushed]));
        stubs = HEADER;
    }
    let is_stub = |at: &usize| word(*at).is_some_and(|word| STUB.iter().any(|(mask, value)| word & mask == *value));
    let end = (stubs..code.len()).step_by(INSTRUCTION).find(|at| !is_stub(at));
    let len = end.unwrap_or(code.len()) - stubs;
    if len > 0 {
        functions.push(function(address + stubs as u64, len, &[(0, rule(0, IN_LR))]));
    }
    functions
}

const IN_LR: Location = Location::register(LR, 0);
const ON_STACK: Location = Location::saved(-8);

fn rule(cfa: i32, ra: Location) -> Rule {
    Rule::new(Location::register(SP, cfa), ra)
}

fn function(start: u64, size: usize, rows: &[(u32, Rule)]) -> FunctionRows {
    let rows = rows.iter().map(|(start, rule)| Row {
        start: *start,
        rule: Some(*rule),
    });
    FunctionRows::new(start, size as u32, rows.collect())
}
