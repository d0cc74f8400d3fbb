//! The sections that types are read from, in all files that have a part of them.

use backtrail_elf::File;
use gimli::{EndianSlice, RunTimeEndian, Section as _, SectionId};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::dies::{Parsed, UnitKind};
use super::{parse_all, parse_types};
use crate::lines::Error;
use crate::sections::{self, Dwarf, Loaded};
use crate::split::{SplitUnit, rest_of};

const SECTIONS: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTypes,
];

/// The additional sections of a package: its indexes, and the other sections that these index.
const PACKED: [SectionId; 6] = [
    SectionId::DebugCuIndex,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
    SectionId::DebugTuIndex,
];

/// The additional sections that give locations and ranges of code.
const PLACES: [SectionId; 3] = [SectionId::DebugLoc, SectionId::DebugLocLists, SectionId::DebugRanges];

/// Bytes of an index's header (DWARF 5, 7.3.5.3).
const INDEX_HEADER: usize = 16;

/// The sections of a file, decompressed and, in an object, relocated. Types borrow their names from
/// them.
pub struct Sections<'a> {
    main: Loaded<'a>,
    /// The sections of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Loaded<'a>>,
    /// The sections of split units' files, and of packages of them.
    split: Vec<Loaded<'a>>,
    pub(super) endian: RunTimeEndian,
    /// Bytes of debug information in the files.
    pub(crate) bytes: u64,
}

impl<'a> Sections<'a> {
    /// Reads the sections of `file`, and of the supplementary file (dwz) if it has one. `None` if
    /// there is no debug information.
    pub fn load(file: &File<'a>, supplementary: Option<&File<'a>>) -> Result<Option<Sections<'a>>, Error> {
        Sections::load_more(file, supplementary, &[])
    }

    /// Like `Sections::load`, with the sections that only arguments need.
    pub fn load_for_arguments(
        file: &File<'a>,
        supplementary: Option<&File<'a>>,
    ) -> Result<Option<Sections<'a>>, Error> {
        Sections::load_more(file, supplementary, &PLACES)
    }

    fn load_more(
        file: &File<'a>,
        supplementary: Option<&File<'a>>,
        more: &[SectionId],
    ) -> Result<Option<Sections<'a>>, Error> {
        let main = Loaded::load(file, &[&SECTIONS, more].concat())?;
        if main.get(SectionId::DebugInfo).is_empty() {
            return Ok(None);
        }
        let bytes = debug_bytes(file) + supplementary.map_or(0, debug_bytes);
        let supplementary = supplementary.map(|file| Loaded::load(file, &SECTIONS));
        Ok(Some(Sections {
            main,
            supplementary: supplementary.transpose()?,
            split: Vec::new(),
            endian: sections::endian(file),
            bytes,
        }))
    }

    /// The units whose rests are in other files ([`SplitFiles`](crate::split::SplitFiles) finds
    /// them).
    pub fn split_units(&self) -> Result<Vec<SplitUnit>, Error> {
        let dwarf = self.main()?;
        let mut headers = dwarf.units();
        let mut found = Vec::new();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            found.extend(rest_of(&dwarf, &unit)?);
        }
        Ok(found)
    }

    /// Adds a file that contains the rests of units, or a package of them.
    pub fn add_split(&mut self, file: &File<'a>) -> Result<(), Error> {
        let loaded = Loaded::load_split(file, &[&SECTIONS[..], &PACKED].concat())?;
        self.split.push(loaded);
        self.bytes += debug_bytes(file);
        Ok(())
    }

    /// The file's own debug information.
    pub(crate) fn main(&self) -> Result<Dwarf<'_>, Error> {
        self.dwarf(&self.main)
    }

    /// The supplementary file's debug information.
    pub(super) fn supplementary(&self) -> Result<Option<Dwarf<'_>>, Error> {
        self.supplementary.as_ref().map(|of| self.dwarf(of)).transpose()
    }

    fn dwarf<'d>(&'d self, of: &'d Loaded<'a>) -> Result<Dwarf<'d>, Error> {
        Ok(sections::dwarf(
            |id| of.get(id),
            self.supplementary.as_ref(),
            self.endian,
        )?)
    }

    /// The units with these ids in the added files, and all type units there, each only once.
    pub(super) fn split<'d>(&'d self, main: &Dwarf<'d>, ids: &[u64]) -> Result<Vec<Parsed<'d>>, Error> {
        let wanted: FxHashSet<u64> = ids.iter().copied().collect();
        let (mut units, mut types) = (FxHashSet::default(), FxHashSet::default());
        let dwarfs = self.split_dwarfs(main, ids)?;
        let parsed = dwarfs.par_iter().map(all_of).collect::<Result<Vec<_>, _>>()?;
        let own = parsed.into_iter().flatten().filter(|unit| match (unit.kind, unit.id) {
            (UnitKind::Type(signature, _), _) => types.insert(signature),
            (_, Some(id)) => wanted.contains(&id) && units.insert(id),
            (_, None) => false,
        });
        Ok(own.collect())
    }

    /// The debug information in the added files; of packages, only that of these units, and of all
    /// type units.
    pub(crate) fn split_dwarfs<'d>(&'d self, main: &Dwarf<'d>, ids: &[u64]) -> Result<Vec<Dwarf<'d>>, Error> {
        let mut found = Vec::new();
        for of in &self.split {
            match of.get(SectionId::DebugCuIndex).is_empty() {
                true => found.push(self.of_file(main, of)?),
                false => found.extend(self.of_package(main, of, ids)?),
            }
        }
        Ok(found)
    }

    fn of_file<'d>(&'d self, main: &Dwarf<'d>, of: &'d Loaded<'a>) -> Result<Dwarf<'d>, Error> {
        let mut dwarf = self.dwarf(of)?;
        dwarf.make_dwo(main);
        Ok(dwarf)
    }

    fn of_package<'d>(&'d self, main: &Dwarf<'d>, of: &'d Loaded<'a>, ids: &[u64]) -> Result<Vec<Dwarf<'d>>, Error> {
        let slice = |data| EndianSlice::new(data, self.endian);
        // GNU dwp leaves the column names out of an index without units.
        let section = |id| match id {
            SectionId::DebugTuIndex if of.get(id).len() <= INDEX_HEADER => &[],
            _ => of.get(id),
        };
        let package = gimli::DwarfPackage::load(|id| Ok::<_, gimli::Error>(slice(section(id))), slice(&[]))?;
        let rows = ids.iter().filter_map(|&id| package.cu_index.find(id));
        let units = rows.map(|row| package.cu_sections(row, main));
        let types = (1..=package.tu_index.unit_count()).map(|row| package.tu_sections(row, main));
        let parts = units.chain(types).collect::<gimli::Result<Vec<_>>>()?;
        // Parts do not overlap: in a damaged index, overlapping rows would exceed the file's size.
        let len = |dwarf: &Dwarf<'_>| dwarf.debug_info.reader().len() + dwarf.debug_types.reader().len();
        let most = of.get(SectionId::DebugInfo).len() + of.get(SectionId::DebugTypes).len();
        if parts.iter().map(len).sum::<usize>() > most {
            return Err(gimli::Error::InvalidIndexRow(package.tu_index.unit_count()).into());
        }
        Ok(parts)
    }
}

fn debug_bytes(file: &File<'_>) -> u64 {
    let debug = file
        .sections()
        .iter()
        .filter(|section| section.name.starts_with(b".debug_"));
    debug.map(|section| section.size).sum()
}

fn all_of<'d>(dwarf: &Dwarf<'d>) -> Result<Vec<Parsed<'d>>, Error> {
    let mut all = parse_all(dwarf)?;
    all.extend(parse_types(dwarf)?);
    Ok(all)
}
