//! The sections that types are read from, in all files that have a part of them.

use backtrail_elf::File;
use gimli::{RunTimeEndian, SectionId};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::dies::{Parsed, UnitKind};
use super::{parse_all, parse_types};
use crate::error::Error;
use crate::sections::{self, Dwarf, Loaded, UNITS};
use crate::split::{Rest, SplitUnit, rest_of};

/// The additional sections that give locations and ranges of code.
const PLACES: [SectionId; 3] = [SectionId::DebugLoc, SectionId::DebugLocLists, SectionId::DebugRanges];

/// The sections of a file, decompressed and, in an object, relocated. Types borrow their names from
/// them.
pub struct Sections<'a> {
    main: Loaded<'a>,
    /// The sections of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Loaded<'a>>,
    /// What split units have in other files.
    rests: Vec<Rest<'a>>,
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
        let main = Loaded::load(file, &[&UNITS, more].concat())?;
        if main.get(SectionId::DebugInfo).is_empty() {
            return Ok(None);
        }
        let bytes = debug_bytes(file) + supplementary.map_or(0, debug_bytes);
        let supplementary = supplementary.map(|file| Loaded::load(file, &UNITS));
        Ok(Some(Sections {
            main,
            supplementary: supplementary.transpose()?,
            rests: Vec::new(),
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
        self.rests.push(Rest::load(file)?);
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

    /// The debug information in the added files; of packages, only that of these units, and of all
    /// type units.
    pub(crate) fn rest_dwarfs<'d>(&'d self, main: &Dwarf<'d>, ids: &[u64]) -> Result<Vec<Dwarf<'d>>, Error> {
        let mut found = Vec::new();
        for rest in &self.rests {
            found.extend(rest.dwarfs(main, ids)?);
        }
        Ok(found)
    }

    /// The units with these ids in the added files, and all type units there, each only once.
    pub(super) fn split<'d>(&'d self, main: &Dwarf<'d>, ids: &[u64]) -> Result<Vec<Parsed<'d>>, Error> {
        let wanted: FxHashSet<u64> = ids.iter().copied().collect();
        let (mut units, mut types) = (FxHashSet::default(), FxHashSet::default());
        let dwarfs = self.rest_dwarfs(main, ids)?;
        let parsed = dwarfs.par_iter().map(all_of).collect::<Result<Vec<_>, _>>()?;
        let own = parsed.into_iter().flatten().filter(|unit| match (unit.kind, unit.id) {
            (UnitKind::Type(signature, _), _) => types.insert(signature),
            (_, Some(id)) => wanted.contains(&id) && units.insert(id),
            (_, None) => false,
        });
        Ok(own.collect())
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
