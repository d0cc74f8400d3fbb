//! Stacks that are copied: greenlets of Python, as gevent uses them, share one region of memory.
//!
//! A greenlet's part of it ends where the greenlet was started. What is above belongs to whichever
//! other one ran there last, although call frame information leads on into it. While the parts are
//! exchanged, that is also true of what is above the function that exchanges them.

use backtrail_arch::Cpu;
use backtrail_elf::{Image, Table};
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Row, Rule};
use memchr::memmem;

use crate::eh_frame::Converted;

/// The first function of a greenlet's stack, which never returns; its parameters' types follow,
/// which differ between versions.
const FIRST: &[u8] = b"_ZN8greenlet12UserGreenlet15inner_bootstrapE";

/// Longer string tables are not searched for it: greenlet's has 15,000 bytes.
const LONGEST_STRINGS: usize = 1 << 16;

/// Functions that exchange stacks are not longer: 140 bytes in greenlet.
const LONGEST_SWITCH: u64 = 256;

const OUTERMOST: Option<Rule> = None;

/// Marks the outermost frames.
pub(crate) fn add(converted: &mut Converted, image: &Image<'_>) {
    let first = first(image);
    for function in &mut converted.functions {
        if first == Some(function.start) {
            function.rows = vec![Row {
                start: 0,
                rule: OUTERMOST,
            }];
        } else if u64::from(function.size) <= LONGEST_SWITCH
            && let Some((start, end)) = switch(image, function.start, function.size.into())
        {
            exclude(function, start, end);
        }
    }
}

/// Whether the function at this address is the first one of its stack, or exchanges stacks.
pub(crate) fn is_misdescribed(image: &Image<'_>, start: u64) -> bool {
    first(image) == Some(start) || switch(image, start, LONGEST_SWITCH).is_some()
}

/// The address of a greenlet's first function.
fn first(image: &Image<'_>) -> Option<u64> {
    // Reading the tables of a large program takes longer than making a function's rows.
    let mut sections = image.sections().iter();
    let is_long = |size| size > LONGEST_STRINGS as u64;
    if sections.any(|section| section.name == b".dynstr" && is_long(section.size)) {
        return None;
    }
    let (mut symbols, strings) = image.symbol_table(Table::Dynamic)?;
    if strings.len() > LONGEST_STRINGS {
        return None;
    }
    memmem::find(strings, FIRST)?;
    let found = symbols.find(|symbol| symbol.is_function && symbol.name.starts_with(FIRST))?;
    (!found.is_undefined && !found.is_absolute).then_some(found.value)
}

/// Where code is on another stack that is yet to be filled, as distances from `start`: from the
/// instruction after which the stack pointer is there to the end of the call that fills it.
fn switch(image: &Image<'_>, start: u64, size: u64) -> Option<(u32, u32)> {
    /// `add register, rsp` without the register.
    const MOVES_SP: u8 = 0xc4;
    /// `add register, rbp` without the register.
    const MOVES_FP: u8 = 0xc5;
    /// `mod` and `r/m` of ModRM.
    const TO: u8 = 0xc7;
    const REGISTER: u8 = 0x38;
    const CALL: u8 = 0xe8;
    const CALL_BYTES: usize = 5;
    const ADD_BYTES: usize = 3;
    if image.arch().cpu != Cpu::X86_64 {
        return None;
    }
    let code = image.data_in(start..start.saturating_add(size))?;
    let code = code.get(..usize::try_from(size).ok()?.min(code.len()))?;
    let at = code.windows(2 * ADD_BYTES + 1).position(|bytes| {
        let &[prefix, 0x01, sp, same_prefix, 0x01, fp, CALL] = bytes else {
            return false;
        };
        // REX.W, with or without the bit of the upper eight registers.
        matches!(prefix, 0x48 | 0x4c)
            && prefix == same_prefix
            && (sp & TO, fp & TO) == (MOVES_SP, MOVES_FP)
            && sp & REGISTER == fp & REGISTER
    })?;
    let end = at + 2 * ADD_BYTES + CALL_BYTES;
    (end <= code.len()).then_some(((at + ADD_BYTES) as u32, end as u32))
}

/// Makes the rows from `start` to `end` outermost.
fn exclude(function: &mut FunctionRows, start: u32, end: u32) {
    let Some(last) = function.rows.iter().rev().find(|row| row.start <= end).copied() else {
        return;
    };
    function.rows.retain(|row| row.start < start || row.start > end);
    function
        .rows
        .extend([Row { start, rule: OUTERMOST }, Row { start: end, ..last }]);
    function.rows.sort_by_key(|row| row.start);
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_sframe::Location;

    #[test]
    fn rows_are_outermost_in_between() {
        let row = |start, bytes| Row {
            start,
            rule: Some(Rule::new(Location::register(7, bytes), Location::saved(-8))),
        };
        let outermost = |start| Row { start, rule: None };
        let excluded = |rows: &[Row]| {
            let mut function = FunctionRows::new(0x1000, 0x80, rows.to_vec());
            exclude(&mut function, 0x20, 0x28);
            function.rows
        };
        let one = [row(0, 8), outermost(0x20), row(0x28, 8)];
        assert_eq!(excluded(&[row(0, 8)]), one);
        assert_eq!(
            excluded(&[row(0, 8), row(0x22, 16), row(0x30, 8)]),
            [row(0, 8), outermost(0x20), row(0x28, 16), row(0x30, 8)]
        );
        assert_eq!(
            excluded(&[row(0, 16), row(0x20, 8)]),
            [row(0, 16), outermost(0x20), row(0x28, 8)]
        );
        assert_eq!(excluded(&[]), []);
    }
}
