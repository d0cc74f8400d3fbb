//! The units of a file, each read only once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use backtrail_elf::budget::Budget;
use gimli::{DebugInfoOffset, RunTimeEndian, Section as _, UnitHeader, UnitOffset, UnitRef, UnitType};

use super::functions::Functions;
use super::rows::Rows;
use crate::reader::Slice;
use crate::split::{SplitUnit, rest_of};

/// A unit, with the parts of it that were read.
pub(super) struct Unit<'d> {
    unit: gimli::Unit<Slice<'d>>,
    functions: OnceLock<Functions>,
    rows: OnceLock<Rows<'d>>,
}

impl<'d> Unit<'d> {
    /// The id that it shares with its rest or its skeleton, if it is split.
    pub(super) fn split_id(&self) -> Option<u64> {
        self.unit.dwo_id.map(|id| id.0)
    }

    pub(super) fn functions(&self, unit: UnitRef<'_, Slice<'d>>, budget: &Budget) -> &Functions {
        self.functions.get_or_init(|| Functions::read(unit, budget))
    }

    pub(super) fn rows(&self, unit: UnitRef<'_, Slice<'d>>, budget: &Budget) -> &Rows<'d> {
        self.rows.get_or_init(|| Rows::read(unit, budget))
    }
}

/// A file with debug information.
pub(super) struct File<'d> {
    pub(super) dwarf: Arc<gimli::Dwarf<Slice<'d>>>,
    /// The parts of `.debug_info` that are unpacked, by offset, each with a unit at its start;
    /// `None` if all of it is.
    parts: Option<Vec<(usize, gimli::DebugInfo<Slice<'d>>)>>,
    /// Units by their offset in `.debug_info`; `None` for unreadable units.
    units: Mutex<HashMap<usize, Option<Arc<Unit<'d>>>>>,
    /// The offsets of all units, in order.
    offsets: OnceLock<Vec<usize>>,
    /// The unit whose rest is in this file, if that is all that is read of it.
    skeleton: Option<Arc<Unit<'d>>>,
}

impl<'d> File<'d> {
    pub(super) fn new(dwarf: Arc<gimli::Dwarf<Slice<'d>>>) -> File<'d> {
        File {
            dwarf,
            parts: None,
            units: Mutex::default(),
            offsets: OnceLock::new(),
            skeleton: None,
        }
    }

    /// A file with the rest of a unit.
    pub(super) fn of_rest(dwarf: Arc<gimli::Dwarf<Slice<'d>>>, skeleton: Arc<Unit<'d>>) -> File<'d> {
        File {
            skeleton: Some(skeleton),
            ..File::new(dwarf)
        }
    }

    /// A file of whose `.debug_info` only these parts are available, by offset.
    pub(super) fn of_parts(
        dwarf: Arc<gimli::Dwarf<Slice<'d>>>,
        parts: &'d [(usize, Vec<u8>)],
        endian: RunTimeEndian,
    ) -> File<'d> {
        let parts = parts
            .iter()
            .map(|(begin, bytes)| (*begin, gimli::DebugInfo::new(bytes, endian)));
        File {
            parts: Some(parts.collect()),
            ..File::new(dwarf)
        }
    }

    /// Whether units of the file are missing.
    pub(super) fn is_partial(&self) -> bool {
        self.parts.is_some()
    }

    pub(super) fn unit_ref<'s>(&'s self, unit: &'s Unit<'d>) -> UnitRef<'s, Slice<'d>> {
        UnitRef::new(&self.dwarf, &unit.unit)
    }

    /// The unit at `offset` of `.debug_info`.
    pub(super) fn unit(&self, offset: usize) -> Option<Arc<Unit<'d>>> {
        let read = || {
            let mut unit = self.dwarf.unit(self.header(offset)?).ok()?;
            if let Some(skeleton) = &self.skeleton {
                unit.copy_relocated_attributes(&skeleton.unit);
            }
            Some(Arc::new(Unit {
                unit,
                functions: OnceLock::new(),
                rows: OnceLock::new(),
            }))
        };
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        units.entry(offset).or_insert_with(read).clone()
    }

    fn header(&self, offset: usize) -> Option<UnitHeader<Slice<'d>>> {
        let Some(parts) = &self.parts else {
            return self.dwarf.unit_header(DebugInfoOffset(offset)).ok();
        };
        let (_, info) = part(parts, offset).filter(|(begin, _)| *begin == offset)?;
        info.units().next().ok()?
    }

    /// Whether units may be split: their skeletons have addresses in a section of their own.
    pub(super) fn may_be_split(&self) -> bool {
        !self.dwarf.debug_addr.reader().is_empty()
    }

    /// The offsets of all units, in order.
    pub(super) fn offsets(&self) -> &[usize] {
        self.offsets
            .get_or_init(|| headers(&self.dwarf).into_iter().map(|(offset, _)| offset).collect())
    }

    /// Where the rest of the unit at `offset` is, if it is split.
    pub(super) fn rest(&self, offset: usize) -> Option<SplitUnit> {
        let header = self.header(offset)?;
        if header.version() >= 5 && !matches!(header.type_(), UnitType::Skeleton(_)) {
            return None;
        }
        rest_of(&self.dwarf, &self.dwarf.unit(header).ok()?).ok()?
    }

    /// The unit of an entry, and the entry's offset in it.
    pub(super) fn entry(&self, offset: DebugInfoOffset) -> Option<(Arc<Unit<'d>>, UnitOffset)> {
        if let Some(parts) = &self.parts {
            let (begin, _) = part(parts, offset.0)?;
            let unit = self.unit(begin)?;
            // The unit's offsets count from the start of its part.
            let entry = DebugInfoOffset(offset.0 - begin).to_unit_offset(&unit.unit.header)?;
            return Some((unit, entry));
        }
        let offsets = self.offsets();
        let before = offsets.partition_point(|unit| *unit <= offset.0);
        let unit = self.unit(*offsets.get(before.checked_sub(1)?)?)?;
        let entry = offset.to_unit_offset(&unit.unit.header)?;
        Some((unit, entry))
    }
}

/// The last part that begins at or before `offset`.
fn part<'p, 'd>(
    parts: &'p [(usize, gimli::DebugInfo<Slice<'d>>)],
    offset: usize,
) -> Option<(usize, &'p gimli::DebugInfo<Slice<'d>>)> {
    let before = parts.partition_point(|(begin, _)| *begin <= offset);
    let (begin, info) = parts.get(before.checked_sub(1)?)?;
    Some((*begin, info))
}

/// The units of `.debug_info`, up to the first damaged one, each with its offset and header.
pub(super) fn headers<'d>(dwarf: &gimli::Dwarf<Slice<'d>>) -> Vec<(usize, UnitHeader<Slice<'d>>)> {
    let mut found = Vec::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        found.extend(header.debug_info_offset().map(|offset| (offset.0, header)));
    }
    found
}
