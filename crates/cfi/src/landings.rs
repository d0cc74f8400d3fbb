//! Functions that leave for another frame than their caller's; x86-64 only.
//!
//! The C library's `longjmp` loads the registers of the frame that it leaves for. Call frame
//! information leads to that frame as soon as its registers are loaded, although the callers are
//! still there until the stack pointer changes.
//!
//! libgcc's `_Unwind_RaiseException` and `_Unwind_Resume` copy the registers that the handler will
//! have over those in their own frame, the return address as the last, and then leave this frame
//! for the handler's. From that call on, call frame information leads into a mixture of two stacks.
//! The return address is still where the function's first call, `uw_init_context_1`, has put it: in
//! the description of its own frame. What the caller had in its frame pointer is lost.

use std::ops::Range;

use backtrail_arch::Cpu;
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};

use crate::code::{self, Convention, Copied, Input};
use crate::eh_frame::{self, Converted};

/// DWARF numbers of registers. Before it leaves for a handler, code by compilers has the CFA in
/// RCX.
const RCX: u8 = 2;
const RBP: u8 = 6;
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;
/// The longest such function, in bytes: libgcc's have up to 1,000.
const LONGEST: u32 = 1 << 14;
/// Where libgcc's `struct _Unwind_Context` has the address at which its frame continues: after the
/// places of 18 registers and the CFA.
const CONTINUES: i32 = 19 * 8;

/// A place that no rule can name.
const LOST: Location = Location {
    base: Base::Register(RETURN_ADDRESS),
    offset: 0,
    deref: true,
};

/// The rule of a function that has only been called.
const CALLED: Rule = Rule::new(Location::register(RSP, 8), Location::saved(-8));

/// Corrects the rows of such functions.
pub(crate) fn correct(converted: &mut Converted, image: &Image<'_>) {
    for function in &mut converted.functions {
        if let Some(rows) = corrected(image, function) {
            function.rows = rows;
        }
    }
}

/// The correct rows of `function`, if it is one of these.
pub(crate) fn corrected(image: &Image<'_>, function: &FunctionRows) -> Option<Vec<Row>> {
    if image.arch().cpu != Cpu::X86_64 || function.size > LONGEST || function.repeat.is_some() {
        return None;
    }
    let any = |is_it: fn(Rule) -> bool| function.rows.iter().any(|row| row.rule.is_some_and(is_it));
    let (loads, handles) = (any(loads_registers), any(leaves_for_a_handler));
    if !loads && !handles {
        return None;
    }
    let range = function.start..eh_frame::end_of(function);
    let bytes = image.data_in(range.clone())?.get(..function.size as usize)?;
    if loads {
        return with_callers(function, range, bytes);
    }
    let copied = code::copied_contexts(range, bytes, CONTINUES);
    (!copied.is_empty()).then(|| with_contexts(function, &copied))
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
fn with_callers(function: &FunctionRows, range: Range<u64>, bytes: &[u8]) -> Option<Vec<Row>> {
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
            rule: Some(in_transit(loads.rule?, None)),
        });
    }
    Some(rows)
}

/// The rows of a function that leaves for a handler, with others where registers are copied.
fn with_contexts(function: &FunctionRows, copied: &[Copied]) -> Vec<Row> {
    let within = |address: u64| address.saturating_sub(function.start).min(function.size.into()) as u32;
    let pieces = copied
        .iter()
        .map(|piece| (within(piece.code.start), within(piece.code.end)));
    let mut starts: Vec<u32> = function.rows.iter().map(|row| row.start).collect();
    starts.extend(
        pieces
            .flat_map(|(start, end)| [start, end])
            .filter(|start| *start < function.size),
    );
    starts.sort_unstable();
    let mut rows: Vec<Row> = Vec::with_capacity(starts.len());
    for start in starts {
        let said = function
            .rows
            .iter()
            .rev()
            .find(|row| row.start <= start)
            .and_then(|row| row.rule);
        let address = function.start.saturating_add(start.into());
        let piece = copied.iter().find(|piece| piece.code.contains(&address));
        let rule = said.map(|rule| piece.map_or(rule, |piece| in_transit(rule, piece.continues)));
        if rows.last().is_none_or(|last| last.start < start && last.rule != rule) {
            rows.push(Row { start, rule });
        }
    }
    rows
}

/// The rule of a frame of which only the CFA and the word at `continues` still hold.
fn in_transit(rule: Rule, continues: Option<i32>) -> Rule {
    let has_frame = [RSP, RBP].map(Base::Register).contains(&rule.cfa.base);
    Rule {
        ra: continues.filter(|_| has_frame).map_or(LOST, Location::saved),
        fp: Some(LOST),
        ..rule
    }
}
