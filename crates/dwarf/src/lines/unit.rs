//! The units of a file, each read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gimli::{DebugInfoOffset, UnitHeader, UnitOffset, UnitRef};

use super::Slice;
use super::functions::Functions;
use super::rows::Rows;

/// A unit, and what was read of it.
pub(super) struct Unit<'d> {
    unit: gimli::Unit<Slice<'d>>,
    functions: OnceLock<Functions>,
    rows: OnceLock<Rows<'d>>,
}

impl<'d> Unit<'d> {
    pub(super) fn functions(&self, unit: UnitRef<'_, Slice<'d>>) -> &Functions {
        self.functions.get_or_init(|| Functions::read(unit))
    }

    pub(super) fn rows(&self, unit: UnitRef<'_, Slice<'d>>) -> &Rows<'d> {
        self.rows.get_or_init(|| Rows::read(unit))
    }
}

/// A file with debug information.
pub(super) struct File<'d> {
    pub(super) dwarf: Arc<gimli::Dwarf<Slice<'d>>>,
    /// Whether its `.debug_info` goes on behind what is there.
    pub(super) is_start: bool,
    /// By where they begin in `.debug_info`; `None` for those that can't be read.
    units: Mutex<HashMap<usize, Option<Arc<Unit<'d>>>>>,
    /// Where all units begin, in that order.
    offsets: OnceLock<Vec<usize>>,
}

impl<'d> File<'d> {
    pub(super) fn new(dwarf: Arc<gimli::Dwarf<Slice<'d>>>, is_start: bool) -> File<'d> {
        File {
            dwarf,
            is_start,
            units: Mutex::default(),
            offsets: OnceLock::new(),
        }
    }

    pub(super) fn unit_ref<'s>(&'s self, unit: &'s Unit<'d>) -> UnitRef<'s, Slice<'d>> {
        UnitRef::new(&self.dwarf, &unit.unit)
    }

    /// The unit that begins at `offset` of `.debug_info`.
    pub(super) fn unit(&self, offset: usize) -> Option<Arc<Unit<'d>>> {
        let read = || {
            let header = self.dwarf.unit_header(DebugInfoOffset(offset)).ok()?;
            Some(Arc::new(Unit {
                unit: self.dwarf.unit(header).ok()?,
                functions: OnceLock::new(),
                rows: OnceLock::new(),
            }))
        };
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        units.entry(offset).or_insert_with(read).clone()
    }

    /// The unit of an entry, and where in it the entry is.
    pub(super) fn entry(&self, offset: DebugInfoOffset) -> Option<(Arc<Unit<'d>>, UnitOffset)> {
        let offsets = self
            .offsets
            .get_or_init(|| headers(&self.dwarf).into_iter().map(|(offset, _)| offset).collect());
        let before = offsets.partition_point(|unit| *unit <= offset.0);
        let unit = self.unit(*offsets.get(before.checked_sub(1)?)?)?;
        let entry = offset.to_unit_offset(&unit.unit.header)?;
        Some((unit, entry))
    }
}

/// The units of `.debug_info`, up to one that is damaged: where each begins, and its header.
pub(super) fn headers<'d>(dwarf: &gimli::Dwarf<Slice<'d>>) -> Vec<(usize, UnitHeader<Slice<'d>>)> {
    let mut found = Vec::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        found.extend(header.debug_info_offset().map(|offset| (offset.0, header)));
    }
    found
}
