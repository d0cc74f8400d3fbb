//! The debug information in a file with rests of units, or in a package of them.

use std::sync::OnceLock;

use backtrail_elf::File;
use gimli::{DebugInfoOffset, DwarfFileType, EndianSlice, RunTimeEndian, Section as _, SectionId};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::reader::Slice;
use crate::sections::{self, Dwarf, Loaded, UNITS, endian};

/// The additional sections of a package: its indexes, and the other sections that these index.
const PACKED: [SectionId; 6] = [
    SectionId::DebugCuIndex,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
    SectionId::DebugTuIndex,
];

/// Bytes of an index's header (DWARF 5, 7.3.5.3).
const INDEX_HEADER: usize = 16;

/// The sections of a file with rests of units, or of a package of them.
pub(crate) struct Rest<'a> {
    loaded: Loaded<'a>,
    endian: RunTimeEndian,
    /// Where the units are, by their ids, if it is not a package.
    units: OnceLock<FxHashMap<u64, DebugInfoOffset>>,
}

impl<'a> Rest<'a> {
    pub(crate) fn load(file: &File<'a>) -> Result<Rest<'a>, Error> {
        Ok(Rest {
            loaded: Loaded::load_split(file, &[&UNITS[..], &PACKED].concat())?,
            endian: endian(file),
            units: OnceLock::new(),
        })
    }

    /// All of it; of a package, only that of these units, and of all type units.
    pub(crate) fn dwarfs<'d>(&'d self, main: &Dwarf<'d>, ids: &[u64]) -> Result<Vec<Dwarf<'d>>, Error> {
        if !self.is_package() {
            return Ok(vec![self.of_file(main)?]);
        }
        let package = self.package()?;
        let rows = ids.iter().filter_map(|&id| package.cu_index.find(id));
        let units = rows.map(|row| package.cu_sections(row, main));
        let types = (1..=package.tu_index.unit_count()).map(|row| package.tu_sections(row, main));
        let parts = units.chain(types).collect::<gimli::Result<Vec<_>>>()?;
        // Parts do not overlap: in a damaged index, overlapping rows would exceed the file's size.
        let len = |dwarf: &Dwarf<'_>| dwarf.debug_info.reader().len() + dwarf.debug_types.reader().len();
        let most = self.loaded.get(SectionId::DebugInfo).len() + self.loaded.get(SectionId::DebugTypes).len();
        if parts.iter().map(len).sum::<usize>() > most {
            return Err(gimli::Error::InvalidIndexRow(package.tu_index.unit_count()).into());
        }
        Ok(parts)
    }

    /// That of the unit with this id, and where the unit is in it.
    pub(crate) fn unit<'d>(&'d self, main: &Dwarf<'d>, id: u64) -> Option<(Dwarf<'d>, DebugInfoOffset)> {
        if self.is_package() {
            let dwarf = self.package().ok()?.find_cu(gimli::DwoId(id), main).ok()??;
            let place = units_of(&dwarf).find(|(known, _)| *known == id)?.1;
            return Some((dwarf, place));
        }
        let place = self.units.get_or_init(|| self.units_of_file()).get(&id)?;
        Some((self.of_file(main).ok()?, *place))
    }

    fn units_of_file(&self) -> FxHashMap<u64, DebugInfoOffset> {
        let dwarf = sections::dwarf(|id| self.loaded.get(id), None, self.endian);
        let Ok(mut dwarf) = dwarf else {
            return FxHashMap::default();
        };
        dwarf.file_type = DwarfFileType::Dwo;
        units_of(&dwarf).collect()
    }

    fn is_package(&self) -> bool {
        !self.loaded.get(SectionId::DebugCuIndex).is_empty()
    }

    fn of_file<'d>(&'d self, main: &Dwarf<'d>) -> Result<Dwarf<'d>, Error> {
        let mut dwarf = sections::dwarf(|id| self.loaded.get(id), None, self.endian)?;
        dwarf.make_dwo(main);
        Ok(dwarf)
    }

    fn package(&self) -> gimli::Result<gimli::DwarfPackage<Slice<'_>>> {
        let slice = |data| EndianSlice::new(data, self.endian);
        // GNU dwp leaves the column names out of an index without units.
        let section = |id| match id {
            SectionId::DebugTuIndex if self.loaded.get(id).len() <= INDEX_HEADER => &[],
            _ => self.loaded.get(id),
        };
        gimli::DwarfPackage::load(|id| Ok(slice(section(id))), slice(&[]))
    }
}

/// The units that are rests of others, up to the first damaged one: the id and the place of each.
fn units_of(dwarf: &Dwarf<'_>) -> impl Iterator<Item = (u64, DebugInfoOffset)> {
    let headers = sections::headers(dwarf).unwrap_or_default().into_iter();
    headers.filter_map(|header| {
        let place = header.debug_info_offset()?;
        let id = dwarf.unit(header).ok()?.dwo_id?;
        Some((id.0, place))
    })
}
