//! Code inside a frame that returns without leaving that frame; x86-64 only.
//!
//! LuaJIT's interpreter has one rule for all of its code, which is correct for its main loop. But
//! that code also contains short functions that the loop and compiled code call, and the
//! instructions that make and leave the frame. A `ret` pops its own return address from the top of
//! the stack, so wherever the way to it shows another frame, the rule is wrong.

use backtrail_arch::Cpu;
use backtrail_elf::Image;
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Location, Row, Rule};
use memchr::memchr;

use crate::code;
use crate::eh_frame;

/// The longest code that is read, in bytes. LuaJIT's interpreter has 16 KiB.
const LONGEST: u32 = 1 << 18;

/// The stack pointer's DWARF number.
const RSP: u8 = 7;
/// The first byte of `ret`.
const RET: u8 = 0xc3;

/// The only rule of a function, by which no call can have led to its first instruction.
fn single_frame(image: &Image<'_>, function: &FunctionRows) -> Option<Rule> {
    let [
        Row {
            start: 0,
            rule: Some(said),
        },
    ] = function.rows[..]
    else {
        return None;
    };
    let entered = i32::from(image.arch().pointer_bytes);
    let is_frame = is_by_sp(&said) && said.cfa.offset > entered && said.ra == Location::saved(-entered);
    let is_plain = function.repeat.is_none() && !function.signal_frame && function.size <= LONGEST;
    (image.arch().cpu == Cpu::X86_64 && is_frame && is_plain).then_some(said)
}

/// The rows of a function with a single rule, if its returns contradict that rule, and as many
/// bytes of code are `left` to be read.
pub(crate) fn corrected(image: &Image<'_>, function: &FunctionRows, left: &mut u32) -> Option<Vec<Row>> {
    let said = single_frame(image, function)?;
    *left = left.checked_sub(function.size)?;
    let range = function.start..eh_frame::end_of(function);
    let bytes = image.data_in(range.clone())?.get(..function.size as usize)?;
    memchr(RET, bytes)?;
    let rows = contradicted(function, said, &code::returning(range, bytes));
    (rows.len() > 1).then_some(rows)
}

/// The rows of `function`: those that its instructions show where they differ from what is `said`.
fn contradicted(function: &FunctionRows, said: Rule, shown: &[FunctionRows]) -> Vec<Row> {
    let mut rows = vec![Row {
        start: 0,
        rule: Some(said),
    }];
    let mut add = |start: u64, rule: Rule| {
        let row = Row {
            start: start.saturating_sub(function.start).min(function.size.into()) as u32,
            rule: Some(rule),
        };
        if rows.last().is_some_and(|last| last.start == row.start) {
            rows.pop();
        }
        if row.start < function.size && rows.last().is_none_or(|last| last.rule != row.rule) {
            rows.push(row);
        }
    };
    for piece in shown {
        for row in &piece.rows {
            let differs = |rule: &Rule| is_by_sp(rule) && rule.cfa != said.cfa;
            let rule = row.rule.filter(differs).unwrap_or(said);
            add(piece.start.saturating_add(row.start.into()), rule);
        }
        add(eh_frame::end_of(piece), said);
    }
    rows
}

fn is_by_sp(rule: &Rule) -> bool {
    rule.cfa == Location::register(RSP, rule.cfa.offset)
}
