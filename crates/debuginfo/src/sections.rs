//! The sections of debug information, decompressed and, in an object, relocated.

use std::borrow::Cow;

use backtrail_ctype::threads;
use backtrail_elf::File;
use gimli::{EndianSlice, RunTimeEndian, SectionId, UnitHeader};
use rayon::prelude::*;

use crate::error::Error;
use crate::reader::{Slice, run_time};

/// The sections of units, without those that give locations and ranges of code.
pub(crate) const UNITS: [SectionId; 9] = [
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

pub(crate) type Dwarf<'d> = gimli::Dwarf<Slice<'d>>;

/// Sections by id.
pub(crate) struct Loaded<'a>(Vec<(SectionId, Cow<'a, [u8]>)>);

impl<'a> Loaded<'a> {
    /// Loads sections of a file.
    pub(crate) fn load(file: &File<'a>, ids: &[SectionId]) -> Result<Loaded<'a>, Error> {
        Loaded::named(file, ids, |id| Some(id.name()))
    }

    /// Loads sections of split units, from their own file or from a package.
    pub(crate) fn load_split(file: &File<'a>, ids: &[SectionId]) -> Result<Loaded<'a>, Error> {
        Loaded::named(file, ids, SectionId::dwo_name)
    }

    /// In parallel: decompressing sections takes longer than most of what follows.
    fn named(
        file: &File<'a>,
        ids: &[SectionId],
        name: fn(SectionId) -> Option<&'static str>,
    ) -> Result<Loaded<'a>, Error> {
        let load = |&id: &SectionId| {
            let section = file.debug_section(name(id)?);
            let section = section.map(|section| Some((id, section?.data)));
            section.map_err(Error::Elf).transpose()
        };
        let sections = threads::scoped(|| ids.into_par_iter().filter_map(load).collect::<Result<_, _>>());
        sections.map(Loaded)
    }

    /// The contents of a section; empty if it is missing.
    pub(crate) fn get(&self, id: SectionId) -> &[u8] {
        let section = self.0.iter().find(|(found, _)| *found == id);
        section.map_or(&[], |(_, data)| data)
    }
}

/// The sections that `get` returns, with those of the supplementary file.
pub(crate) fn dwarf<'d>(
    get: impl Fn(SectionId) -> &'d [u8],
    supplementary: Option<&'d Loaded<'_>>,
    endian: RunTimeEndian,
) -> gimli::Result<Dwarf<'d>> {
    let slice = |bytes| Ok::<_, gimli::Error>(EndianSlice::new(bytes, endian));
    let mut dwarf = gimli::Dwarf::load(|id| slice(get(id)))?;
    if let Some(supplementary) = supplementary {
        dwarf.load_sup(|id| slice(supplementary.get(id)))?;
    }
    Ok(dwarf)
}

/// The headers of all units.
pub(crate) fn headers<'d>(dwarf: &Dwarf<'d>) -> gimli::Result<Vec<UnitHeader<Slice<'d>>>> {
    let mut headers = Vec::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        headers.push(header);
    }
    Ok(headers)
}

/// The byte order of a file.
pub(crate) fn endian(file: &File<'_>) -> RunTimeEndian {
    run_time(file.endian())
}
