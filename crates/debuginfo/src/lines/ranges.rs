//! Finds the units that have code at an address.

use std::collections::{BTreeSet, HashSet};
use std::ops;
use std::sync::OnceLock;

use backtrail_ctype::threads;
use backtrail_elf::budget::Budget;
use gimli::{Range, UnitHeader, UnitRef, UnitType};
use rayon::prelude::*;

use super::functions::Extent;
use super::rows::Rows;
use super::unit::headers;
use crate::reader::Slice;

/// The code of a unit, or a part of it.
#[derive(Clone, Copy, Debug)]
struct UnitRange {
    begin: u64,
    end: u64,
    /// The unit's offset in `.debug_info`.
    unit: usize,
    /// The greatest `end` of this range and all before it.
    reach: u64,
}

/// Ranges by start.
#[derive(Debug)]
struct Ranges(Vec<UnitRange>);

impl Ranges {
    fn new(ranges: Vec<(Range, usize)>) -> Ranges {
        let mut sorted: Vec<UnitRange> = ranges
            .into_iter()
            .filter(|(range, _)| range.begin < range.end)
            .map(|(Range { begin, end }, unit)| UnitRange {
                begin,
                end,
                unit,
                reach: end,
            })
            .collect();
        sorted.sort_unstable_by_key(|range| (range.begin, range.end, range.unit));
        let mut reach = 0;
        for range in &mut sorted {
            reach = range.end.max(reach);
            range.reach = reach;
        }
        Ranges(sorted)
    }

    /// The units with this address; usually one at most.
    fn at(&self, address: u64) -> Vec<usize> {
        let before = self.0.partition_point(|range| range.begin <= address);
        let reaching = self.0[..before].iter().rev().take_while(|range| range.reach > address);
        reaching
            .filter(|range| range.end > address)
            .map(|range| range.unit)
            .collect()
    }
}

/// The code of all units of a file.
#[derive(Debug)]
pub(super) struct UnitRanges {
    listed: Ranges,
    listed_units: HashSet<usize>,
    /// The ranges of units that `.debug_aranges` leaves out, such as clang's; read when an address
    /// is in none of the other units.
    unlisted: OnceLock<Ranges>,
}

impl UnitRanges {
    /// Reads the ranges in `.debug_aranges` (DWARF 5, 6.1.2).
    pub(super) fn listed(aranges: &gimli::DebugAranges<Slice<'_>>) -> gimli::Result<UnitRanges> {
        let (mut ranges, mut listed_units) = (Vec::new(), HashSet::new());
        let mut sets = aranges.headers();
        while let Some(set) = sets.next()? {
            let unit = set.debug_info_offset().0;
            let known = ranges.len();
            let mut entries = set.entries();
            // An entry whose end overflows is skipped; other damage ends the set.
            while let Some(entry) = entries.next().transpose() {
                ranges.extend(
                    entry
                        .ok()
                        .filter(|entry| entry.length() != 0)
                        .map(|entry| (entry.range(), unit)),
                );
            }
            if ranges.len() > known {
                listed_units.insert(unit);
            }
        }
        Ok(UnitRanges {
            listed: Ranges::new(ranges),
            listed_units,
            unlisted: OnceLock::new(),
        })
    }

    /// The ranges of `.debug_info`, which has `len` bytes, that contain the units of these
    /// addresses. `None` if `.debug_aranges` lacks one of the addresses, or there are none.
    pub(super) fn parts(&self, addresses: &[u64], len: u64) -> Option<Vec<ops::Range<u64>>> {
        let mut wanted = BTreeSet::new();
        for address in addresses {
            let units = self.listed.at(*address);
            if units.is_empty() {
                return None;
            }
            wanted.extend(units.into_iter().map(|unit| unit as u64));
        }
        let mut begins: Vec<u64> = self.listed_units.iter().map(|unit| *unit as u64).collect();
        begins.sort_unstable();
        let end = |unit: u64| {
            let next = begins.partition_point(|begin| *begin <= unit);
            begins.get(next).copied().unwrap_or(len)
        };
        let parts = wanted.into_iter().map(|unit| unit..end(unit)).collect::<Vec<_>>();
        let is_sound = parts.last().is_some_and(|last| last.end <= len);
        is_sound.then_some(parts)
    }

    /// The units that have this address according to `.debug_aranges`.
    pub(super) fn units_at(&self, address: u64) -> Vec<usize> {
        self.listed.at(address)
    }

    /// The units that have this address but are not in `.debug_aranges`. The first call reads a
    /// little of each.
    pub(super) fn unlisted_units_at(
        &self,
        dwarf: &gimli::Dwarf<Slice<'_>>,
        address: u64,
        budget: &Budget,
    ) -> Vec<usize> {
        self.unlisted.get_or_init(|| self.unlisted(dwarf, budget)).at(address)
    }

    fn unlisted(&self, dwarf: &gimli::Dwarf<Slice<'_>>, budget: &Budget) -> Ranges {
        let mut unlisted = headers(dwarf);
        unlisted.retain(|(offset, header)| !self.listed_units.contains(offset) && has_code(header));
        let ranges = unlisted.into_par_iter().flat_map_iter(|(offset, header)| {
            code(dwarf, header, budget)
                .into_iter()
                .map(move |range| (range, offset))
        });
        Ranges::new(threads::scoped(|| ranges.collect()))
    }
}

/// Partial units only exist for references from others, and type units have no code.
fn has_code(header: &UnitHeader<Slice<'_>>) -> bool {
    !matches!(
        header.type_(),
        UnitType::Partial | UnitType::Type { .. } | UnitType::SplitType { .. }
    )
}

/// The ranges in the unit itself, or else in its line numbers; empty if it is damaged.
fn code(dwarf: &gimli::Dwarf<Slice<'_>>, header: UnitHeader<Slice<'_>>, budget: &Budget) -> Vec<Range> {
    let Ok(unit) = dwarf.unit(header) else {
        return Vec::new();
    };
    let unit = UnitRef::new(dwarf, &unit);
    match stated(unit, budget) {
        Ok(stated) if stated.is_empty() => Rows::read(unit, budget).ranges(),
        Ok(stated) => stated,
        Err(_) => Vec::new(),
    }
}

fn stated(unit: UnitRef<'_, Slice<'_>>, budget: &Budget) -> gimli::Result<Vec<Range>> {
    let mut entries = unit.entries_raw(None)?;
    let mut extent = Extent::default();
    if let Some(abbreviation) = entries.read_abbreviation()? {
        for specification in abbreviation.attributes() {
            extent.note(unit, &entries.read_attribute(*specification)?)?;
        }
    }
    extent.ranges(unit, budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_all_found() {
        let range = |begin, end, unit| (Range { begin, end }, unit);
        let ranges = Ranges::new(vec![
            range(10, 20, 1),
            range(0, 100, 2),
            range(12, 13, 3),
            range(30, 40, 4),
            range(7, 7, 5),
            range(9, 8, 6),
        ]);
        let listed = UnitRanges {
            listed: Ranges(ranges.0.clone()),
            listed_units: HashSet::from([1, 2, 3, 4, 9]),
            unlisted: OnceLock::new(),
        };
        assert_eq!(listed.parts(&[12], 20), Some(vec![1..2, 2..3, 3..4]));
        assert_eq!(listed.parts(&[39, 35], 20), Some(vec![2..3, 4..9]));
        assert_eq!(listed.parts(&[39, 35], 8), None);
        assert_eq!((listed.parts(&[12, 100], 20), listed.parts(&[], 20)), (None, None));
        assert_eq!(ranges.at(12), [3, 1, 2]);
        assert_eq!(ranges.at(13), [1, 2]);
        assert_eq!(ranges.at(20), [2]);
        assert_eq!(ranges.at(39), [4, 2]);
        assert_eq!(ranges.at(99), [2]);
        assert!(ranges.at(100).is_empty() && Ranges::new(Vec::new()).at(0).is_empty());
    }
}
