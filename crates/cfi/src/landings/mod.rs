//! Functions that leave for another frame than their caller's; x86-64 and AArch64.
//!
//! On x86-64, the C library's `longjmp` loads the registers of the frame that it leaves for. Call
//! frame information leads to that frame as soon as its registers are loaded, although the callers
//! are still there until the stack pointer changes.
//!
//! libgcc's `_Unwind_RaiseException` and `_Unwind_Resume` copy the registers that the handler will
//! have over those in their own frame, the return address as the last, and then leave this frame
//! for the handler's. From that call on, call frame information leads into a mixture of two stacks.
//! The return address is still where the function's first call, `uw_init_context_1`, has put it: in
//! the description of its own frame. What the caller had in its frame pointer is lost.

mod aarch64;

use std::ops::Range;

use backtrail_arch::{Arch, Cpu};
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};

use crate::code::{self, Convention, Copied, Input, LOST};
use crate::eh_frame;

/// DWARF numbers of registers. Before it leaves for a handler, code by compilers has the CFA in
/// RCX.
const RCX: u8 = 2;
const RBP: u8 = 6;
const RSP: u8 = 7;
/// The longest such function, in bytes: libgcc's have up to 1,000.
const LONGEST: u32 = 1 << 14;
/// Where libgcc's `struct _Unwind_Context` has the address at which its frame continues: after the
/// CFA, and the places of 18 registers, or of 98.
const CONTINUES: i32 = 19 * 8;
const CONTINUES_AARCH64: i32 = 99 * 8;
/// The least frame with two such structures.
const LEAST_FRAME: i32 = 2 * CONTINUES_AARCH64;

/// The rule of a function that has only been called.
pub(crate) const CALLED: Rule = Rule::new(Location::register(RSP, 8), Location::saved(-8));

/// The correct rows of `function`, if it is one of these, and as many bytes of code are `left` to
/// be read.
pub(crate) fn corrected(image: &Image<'_>, function: &FunctionRows, left: &mut u32) -> Option<Vec<Row>> {
    if function.size > LONGEST || function.repeat.is_some() {
        return None;
    }
    match image.arch().cpu {
        Cpu::X86_64 => corrected_x86_64(image, function, left),
        Cpu::Aarch64 => corrected_aarch64(image, function, left),
        Cpu::S390x => None,
    }
}

fn corrected_aarch64(image: &Image<'_>, function: &FunctionRows, left: &mut u32) -> Option<Vec<Row>> {
    let is_large = |row: &Row| row.rule.is_some_and(|rule| rule.cfa.offset >= LEAST_FRAME);
    if !function.rows.iter().any(is_large) {
        return None;
    }
    let (range, bytes) = code_of(image, function, left)?;
    let copied = code::copied_contexts(&aarch64::Function::new(range, bytes)?, CONTINUES_AARCH64);
    (!copied.is_empty()).then(|| with_contexts(image.arch(), function, &copied))
}

fn code_of<'a>(image: &Image<'a>, function: &FunctionRows, left: &mut u32) -> Option<(Range<u64>, &'a [u8])> {
    *left = left.checked_sub(function.size)?;
    let range = function.start..eh_frame::end_of(function);
    let bytes = image.data_in(range.clone())?.get(..function.size as usize)?;
    Some((range, bytes))
}

fn corrected_x86_64(image: &Image<'_>, function: &FunctionRows, left: &mut u32) -> Option<Vec<Row>> {
    let any = |is_it: fn(Rule) -> bool| function.rows.iter().any(|row| row.rule.is_some_and(is_it));
    let (loads, handles) = (any(loads_registers), any(leaves_for_a_handler));
    if !loads && !handles {
        return None;
    }
    let (range, bytes) = code_of(image, function, left)?;
    if loads {
        return with_callers(image.arch(), function, range, bytes);
    }
    let copied = code::copied_contexts(&code::Function::new(range, bytes), CONTINUES);
    (!copied.is_empty()).then(|| with_contexts(image.arch(), function, &copied))
}

/// Whether a rule has another frame's registers: the address at which it continues, and its stack
/// pointer.
fn loads_registers(rule: Rule) -> bool {
    let register = |location: Location| match location.base {
        Base::Register(number) => Some(number).filter(|_| !location.deref && location.offset == 0),
        Base::Cfa => None,
    };
    register(rule.ra).is_some() && register(rule.cfa).is_some_and(|number| ![RSP, RBP].contains(&number))
}

/// Whether a rule has the CFA where it is computed for `__builtin_eh_return`.
fn leaves_for_a_handler(rule: Rule) -> bool {
    rule.cfa == Location::register(RCX, 8)
}

/// The rows of a function that ends by loading registers, with its caller as long as that is there.
fn with_callers(arch: &Arch, function: &FunctionRows, range: Range<u64>, bytes: &[u8]) -> Option<Vec<Row>> {
    let (loads, before) = function.rows.split_last()?;
    let shown = code::rows(&Input {
        entries: &[range.start],
        range,
        bytes,
        convention: Convention::C,
    });
    let [shown] = &shown[..] else { return None };
    let is_called = |rows: &[Row]| rows.iter().all(|row| row.rule == Some(CALLED));
    if shown.start != function.start || !is_called(before) || !is_called(&shown.rows) {
        return None;
    }
    let mut rows = shown.rows.clone();
    if shown.size < function.size {
        rows.push(Row {
            start: shown.size,
            rule: Some(in_transit(arch, loads.rule?, None)),
        });
    }
    Some(rows)
}

/// The rows of a function that leaves for a handler, with others where registers are copied.
fn with_contexts(arch: &Arch, function: &FunctionRows, copied: &[Copied]) -> Vec<Row> {
    let within = |address: u64| address.saturating_sub(function.start).min(function.size.into()) as u32;
    let ends = copied.iter().flat_map(|piece| [piece.code.start, piece.code.end]);
    divided(function, ends.map(within), |start| {
        let before = function.rows.iter().rev().find(|row| row.start <= start);
        let rule = before.and_then(|row| row.rule)?;
        let address = function.start.saturating_add(start.into());
        let piece = copied.iter().find(|piece| piece.code.contains(&address));
        Some(piece.map_or(rule, |piece| in_transit(arch, rule, piece.continues)))
    })
}

/// Rows that begin where those of `function` do, and at these places, with a rule for each.
pub(crate) fn divided(
    function: &FunctionRows,
    places: impl Iterator<Item = u32>,
    rule: impl Fn(u32) -> Option<Rule>,
) -> Vec<Row> {
    let mut starts: Vec<u32> = function.rows.iter().map(|row| row.start).collect();
    starts.extend(places.filter(|start| *start < function.size));
    starts.sort_unstable();
    let mut rows: Vec<Row> = Vec::with_capacity(starts.len());
    for start in starts {
        let rule = rule(start);
        if rows.last().is_none_or(|last| last.start < start && last.rule != rule) {
            rows.push(Row { start, rule });
        }
    }
    rows
}

/// The rule of a frame of which only the CFA and the word at `continues` still hold.
pub(crate) fn in_transit(arch: &Arch, rule: Rule, continues: Option<i32>) -> Rule {
    let has_frame = [arch.sp, arch.fp]
        .map(|register| Base::Register(register.0))
        .contains(&rule.cfa.base);
    Rule {
        ra: continues.filter(|_| has_frame).map_or(LOST, Location::saved),
        fp: Some(LOST),
        ..rule
    }
}
