//! Code that call frame information does not describe, and the rows that other tables have for it.

use std::ops::Range;

use backtrail_elf::Image;
use backtrail_sframe::Row;
use backtrail_sframe::write::FunctionRows;

use crate::eh_frame::{self, Converted};

/// All code that some FDE describes, in order; adjacent ranges are joined.
pub(crate) fn described(converted: &Converted) -> Vec<Range<u64>> {
    let functions = converted.functions.iter();
    let functions = functions.map(|function| function.start..eh_frame::end_of(function));
    let skipped = converted.skipped.iter();
    let skipped = skipped.map(|skipped| skipped.start..skipped.start.saturating_add(skipped.size));
    let mut ranges: Vec<Range<u64>> = functions
        .chain(skipped)
        .chain(converted.unsaid.iter().cloned())
        .collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
    ranges
}

/// The code of a file: its code sections, or all executable segments if it has no sections.
pub(crate) fn code(image: &Image<'_>) -> Vec<Range<u64>> {
    let sections = image.sections().iter();
    let sections: Vec<Range<u64>> = sections
        .filter(|section| section.is_loaded() && section.is_code())
        .map(|section| section.address..section.address.saturating_add(section.size))
        .collect();
    if sections.is_empty() {
        image.code_ranges()
    } else {
        sections
    }
}

/// The parts of `range` outside `known`, which is in order.
pub(crate) fn holes(known: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let first = known.partition_point(|known| known.end <= range.start);
    let inside = known[first..].iter().take_while(|known| known.start < range.end);
    let mut start = range.start;
    let mut holes = Vec::new();
    for known in inside {
        if start < known.start {
            holes.push(start..known.start);
        }
        start = start.max(known.end);
    }
    if start < range.end {
        holes.push(start..range.end);
    }
    holes
}

/// Adds the parts of these functions that `known` does not describe.
pub(crate) fn add(converted: &mut Converted, found: Vec<FunctionRows>, known: &[Range<u64>], image: &Image<'_>) {
    if !found.is_empty() {
        let found = not_described(found, known, &image.code_ranges());
        converted.functions.extend(found);
        converted.functions.sort_by_key(|function| function.start);
    }
}

/// The parts of `own` outside `described`, each only once.
pub(crate) fn not_described(
    mut own: Vec<FunctionRows>,
    described: &[Range<u64>],
    code: &[Range<u64>],
) -> Vec<FunctionRows> {
    own.sort_by_key(|function| function.start);
    let mut kept: Vec<FunctionRows> = Vec::new();
    for function in &own {
        let is_code = |range: &Range<u64>| range.start <= function.start && eh_frame::end_of(function) <= range.end;
        if !code.iter().any(is_code) {
            continue;
        }
        let mut start = kept
            .last()
            .map_or(function.start, |last| eh_frame::end_of(last).max(function.start));
        let first = described.partition_point(|range| range.end <= start);
        let end = eh_frame::end_of(function);
        let limits = described[first..].iter().take_while(|range| range.start < end);
        let last = end..end;
        for range in limits.chain([&last]) {
            if start < range.start && !is_padding(range.start - start, function, range.start) {
                kept.extend(part(function, start..range.start));
            }
            start = start.max(range.end);
        }
    }
    kept
}

/// Whether a piece of a function is padding that a linker or a compiler puts before the next one to
/// align it. Tables that join neighbours have rows for padding.
fn is_padding(len: u64, function: &FunctionRows, next: u64) -> bool {
    const USUAL_ALIGNMENT: u64 = 16;
    len < u64::from(function.size) && len < USUAL_ALIGNMENT && len < 1 << next.trailing_zeros().min(63)
}

/// A part of a function; `None` for part of a function that is one repeated block.
fn part(function: &FunctionRows, range: Range<u64>) -> Option<FunctionRows> {
    let whole = function.start..eh_frame::end_of(function);
    if range == whole {
        return (function.size > 0 && !function.rows.is_empty()).then(|| function.clone());
    }
    if function.repeat.is_some() {
        return None;
    }
    let skip = (range.start - function.start) as u32;
    let size = (range.end - range.start) as u32;
    let first = function.rows.partition_point(|row| row.start <= skip).checked_sub(1)?;
    let rows = function.rows[first..].iter().map(|row| Row {
        start: row.start.saturating_sub(skip),
        ..*row
    });
    Some(FunctionRows {
        start: range.start,
        size,
        rows: rows.filter(|row| row.start < size).collect(),
        ..function.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_sframe::{Location, Rule};

    fn function(start: u64, size: u32, starts: &[u32]) -> FunctionRows {
        let rule = |offset| Rule::new(Location::register(7, offset), Location::saved(-8));
        let rows = starts.iter().map(|&start| Row {
            start,
            rule: Some(rule(start as i32)),
        });
        FunctionRows::new(start, size, rows.collect())
    }

    fn places(kept: &[FunctionRows]) -> Vec<(u64, u32)> {
        kept.iter().map(|function| (function.start, function.size)).collect()
    }

    #[test]
    fn only_what_nobody_else_describes_is_kept() {
        let own = vec![
            function(0x1000, 0x40, &[0, 4]),
            function(0x2000, 0x100, &[0, 0x10, 0x90]),
            function(0x3000, 0x20, &[0]),
            function(0x9000, 0x20, &[0]),
        ];
        let described = [0x1000..0x1040, 0x2040..0x2080, 0x20c0..0x2100];
        let kept = not_described(own, &described, std::slice::from_ref(&(0x1000..0x5000)));
        assert_eq!(places(&kept), [(0x2000, 0x40), (0x2080, 0x40), (0x3000, 0x20)]);
        // The second part begins with the row in force there, and the next row is at its own
        // offset.
        let offsets: Vec<(u32, i32)> = kept[1]
            .rows
            .iter()
            .map(|row| (row.start, row.rule.unwrap().cfa.offset))
            .collect();
        assert_eq!(offsets, [(0, 0x10), (0x10, 0x90)]);
    }

    #[test]
    fn padding_between_joined_functions_is_nobodys() {
        let own = vec![function(0x1000, 0x40, &[0])];
        let described = [0x1000..0x1013, 0x1020..0x1040];
        assert_eq!(not_described(own, &described, std::slice::from_ref(&(0..u64::MAX))), []);
    }

    #[test]
    fn of_two_that_overlap_the_first_counts() {
        let own = vec![function(0x1000, 0x40, &[0]), function(0x1020, 0x40, &[0])];
        assert_eq!(
            places(&not_described(own, &[], std::slice::from_ref(&(0..u64::MAX)))),
            [(0x1000, 0x40), (0x1040, 0x20)]
        );
    }
}
