//! Compact C types from debug information: DWARF 2 to 5 of C compilers.
//!
//! Each unit becomes a graph of types ([`backtrail_ctype::link::Unit`]), which the linker takes as it takes what compilers made.
//! It is what `gcc -gctf` writes, and what that should write: arrays of arrays have their dimensions in C's order, large structs
//! their sizes. `_Atomic`, for which the format has no word, is seen through. What can't be said is counted with its reason.

mod build;
mod dies;
mod left_out;
mod source;

use std::borrow::Cow;

use backtrail_ctype::TypeId;
use backtrail_ctype::link::Unit;
use backtrail_elf::File;
use backtrail_wire::Endian;
use gimli::{DwLang, EndianSlice, RunTimeEndian, SectionId, constants as dw};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::lines::Error;
use dies::{Dwarf, Parsed, Ref, UnitKind};
pub use left_out::{LeftOut, Reason};
pub use source::{Source, SourceError, counted, lent};

/// Entries that refer to each other for what they don't say; real ones are not more than two.
const MAX_ORIGINS: usize = 8;

/// The sections that types are told by.
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

pub(crate) use build::Place;

/// Those that places and ranges of code are told by, besides.
pub(crate) const PLACES: [SectionId; 3] = [SectionId::DebugLoc, SectionId::DebugLocLists, SectionId::DebugRanges];

/// The sections of a file, decompressed and, in an object, relocated: what types borrow their names from.
pub struct Sections<'a> {
    main: Loaded<'a>,
    /// Of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Loaded<'a>>,
    /// Of split units' files.
    split: Vec<(SplitFile, Loaded<'a>)>,
    endian: RunTimeEndian,
}

/// The file in which the rest of a unit is (`DW_AT_dwo_name`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitFile {
    /// Where it was written.
    pub path: Vec<u8>,
    /// The folder in which the unit was compiled.
    pub folder: Vec<u8>,
}

/// The files in which the rests of a file's units are.
pub fn split_files(file: &File<'_>) -> Result<Vec<SplitFile>, Error> {
    let Some(sections) = Sections::load(file, None)? else {
        return Ok(Vec::new());
    };
    let dwarf = sections.main()?;
    let mut headers = dwarf.units();
    let mut files = Vec::new();
    while let Some(header) = headers.next()? {
        let unit = dwarf.unit(header)?;
        files.extend(dies::split_file(&dwarf, &unit)?);
    }
    Ok(files)
}

struct Loaded<'a>(Vec<(SectionId, Cow<'a, [u8]>)>);

impl<'a> Sections<'a> {
    /// Reads the sections of `file`, and of the supplementary file (dwz) where it has one. `None` where there is no debug
    /// information.
    pub fn load(file: &File<'a>, supplementary: Option<&File<'a>>) -> Result<Option<Sections<'a>>, Error> {
        Sections::load_more(file, supplementary, &[])
    }

    /// The same with sections that types are not told by.
    pub(crate) fn load_more(
        file: &File<'a>,
        supplementary: Option<&File<'a>>,
        more: &[SectionId],
    ) -> Result<Option<Sections<'a>>, Error> {
        let main = Loaded::load(file, more)?;
        if main.get(SectionId::DebugInfo).is_empty() {
            return Ok(None);
        }
        Ok(Some(Sections {
            main,
            supplementary: supplementary.map(|file| Loaded::load(file, &[])).transpose()?,
            split: Vec::new(),
            endian: match file.endian() {
                Endian::Little => RunTimeEndian::Little,
                Endian::Big => RunTimeEndian::Big,
            },
        }))
    }

    /// Adds the file in which the rest of a unit is.
    pub fn add_split(&mut self, name: SplitFile, file: &File<'a>) -> Result<(), Error> {
        self.split.push((name, Loaded::load_split(file)?));
        Ok(())
    }

    /// What the file itself says.
    pub(crate) fn main(&self) -> Result<Dwarf<'_>, Error> {
        self.dwarf(&self.main)
    }

    fn dwarf<'d>(&'d self, of: &'d Loaded<'a>) -> Result<Dwarf<'d>, Error> {
        let mut dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(EndianSlice::new(of.get(id), self.endian)))?;
        if let Some(supplementary) = &self.supplementary {
            dwarf.load_sup(|id| Ok::<_, gimli::Error>(EndianSlice::new(supplementary.get(id), self.endian)))?;
        }
        Ok(dwarf)
    }
}

impl<'a> Loaded<'a> {
    fn load(file: &File<'a>, more: &[SectionId]) -> Result<Loaded<'a>, Error> {
        Loaded::named(file, more, |id| Some(id.name()))
    }

    fn load_split(file: &File<'a>) -> Result<Loaded<'a>, Error> {
        Loaded::named(file, &[], |id| id.dwo_name())
    }

    fn named(
        file: &File<'a>,
        more: &[SectionId],
        name: impl Fn(SectionId) -> Option<&'static str>,
    ) -> Result<Loaded<'a>, Error> {
        let mut found = Vec::new();
        for &id in SECTIONS.iter().chain(more) {
            let Some(name) = name(id) else { continue };
            if let Some(section) = file.debug_section(name).map_err(Error::Elf)? {
                found.push((id, section.data));
            }
        }
        Ok(Loaded(found))
    }

    fn get(&self, id: SectionId) -> &[u8] {
        let section = self.0.iter().find(|(found, _)| *found == id);
        section.map_or(&[], |(_, data)| data)
    }
}

/// The names of units, which are put together from their parts: what [`Made`] borrows besides the sections.
pub struct Parts<'d>(All<'d>);

/// What was made.
pub struct Made<'d> {
    /// Each C unit's types, functions and variables.
    pub units: Vec<Unit<'d>>,
    /// What is not among them.
    pub left_out: LeftOut,
}

/// All units of a file and of its supplementary one.
struct All<'d> {
    units: Vec<Parsed<'d>>,
    /// Those of the file itself: the supplementary file's, and type units, follow.
    own: usize,
    supplementary: usize,
    /// The first of those that were in files of their own.
    split: usize,
    types: FxHashMap<u64, u32>,
    big: bool,
}

impl<'d> Parts<'d> {
    /// Reads all units, in parallel.
    pub fn read(sections: &'d Sections<'_>) -> Result<Parts<'d>, Error> {
        let dwarf = sections.main()?;
        let mut units = parse_all(&dwarf, dwarf.units())?;
        let own = units.len();
        if let Some(supplementary) = &sections.supplementary {
            let dwarf = sections.dwarf(supplementary)?;
            units.extend(parse_all(&dwarf, dwarf.units())?);
        }
        let supplementary = units.len();
        units.extend(parse_types(&dwarf)?);
        let split = units.len();
        for (file, loaded) in &sections.split {
            let mut dwarf = sections.dwarf(loaded)?;
            dwarf.file_type = gimli::DwarfFileType::Dwo;
            let mut of_file = parse_all(&dwarf, dwarf.units())?;
            of_file.extend(parse_types(&dwarf)?);
            // The folder is told by the part that is not here.
            for unit in of_file.iter_mut().filter(|unit| !unit.name.starts_with(b"/")) {
                unit.name = [&file.folder, &b"/"[..], &unit.name].concat();
            }
            units.extend(of_file);
        }
        for unit in &mut units[..own] {
            let is_here = |file: &SplitFile| sections.split.iter().any(|(here, _)| here == file);
            if unit.rest.as_ref().is_some_and(is_here) {
                unit.kind = UnitKind::Partial;
            }
        }
        let mut types = FxHashMap::default();
        for (number, unit) in units.iter().enumerate() {
            if let UnitKind::Type(signature, _) = unit.kind {
                types.insert(signature, number as u32);
            }
        }
        Ok(Parts(All {
            units,
            own,
            supplementary,
            split,
            types,
            big: sections.endian == RunTimeEndian::Big,
        }))
    }

    /// Makes the types, in parallel.
    pub fn make<'p>(&'p self) -> Made<'p>
    where
        'd: 'p,
    {
        self.make_of(false)
    }

    /// Likewise, and of units in other languages than C the types of arguments and results that C has too.
    pub fn make_with_arguments<'p>(&'p self) -> Made<'p>
    where
        'd: 'p,
    {
        self.make_of(true)
    }

    fn make_of<'p>(&'p self, arguments: bool) -> Made<'p>
    where
        'd: 'p,
    {
        let all = &self.0;
        let numbers: Vec<usize> = (0..all.own).chain(all.split..all.units.len()).collect();
        let made = numbers.into_par_iter().map(|number| {
            let parsed = &all.units[number];
            let mut left_out = LeftOut::default();
            match (parsed.kind, parsed.language) {
                (UnitKind::Skeleton, _) => left_out.add(Reason::Split, &parsed.name),
                (UnitKind::Compilation, Some(language)) if !is_c(language) => {
                    left_out.add(Reason::Language(language), &parsed.name);
                    if arguments {
                        let (unit, _) = build::arguments_with_ids(all, number as u32);
                        let unit = Unit {
                            name: &parsed.name[..],
                            ..unit
                        };
                        return (Some(unit), left_out);
                    }
                }
                (UnitKind::Compilation, _) => {
                    let (unit, left_out) = build::unit(all, number as u32);
                    let unit = Unit {
                        name: &parsed.name[..],
                        ..unit
                    };
                    return (Some(unit), left_out);
                }
                (UnitKind::Partial | UnitKind::Type(..), _) => {}
            }
            (None, left_out)
        });
        let mut result = Made {
            units: Vec::new(),
            left_out: LeftOut::default(),
        };
        for (unit, left_out) in made.collect::<Vec<_>>() {
            result.units.extend(unit);
            result.left_out.merge(left_out);
        }
        // Units need not refer to all of them: what the variables of a function are of, is none of their types.
        if !all.types.is_empty() {
            let numbers = (0..all.units.len()).filter(|&number| matches!(all.units[number].kind, UnitKind::Type(..)));
            let (unit, left_out) = build::units(all, numbers);
            result.units.push(unit);
            result.left_out.merge(left_out);
        }
        result
    }
}

impl<'d> Parts<'d> {
    /// Which of the file's units there are.
    pub(crate) fn own(&self) -> std::ops::Range<u32> {
        0..self.0.own as u32
    }

    /// A unit's types, and where each entry that is a type is among them; of a unit in another language than C those of arguments and results alone. `None` for
    /// units of other sorts.
    pub(crate) fn unit(&self, number: u32) -> Option<(Unit<'d>, FxHashMap<Place, TypeId>)> {
        if self.0.units[number as usize].kind != UnitKind::Compilation {
            return None;
        }
        Some(match self.is_c(number) {
            true => build::unit_with_ids(&self.0, number),
            false => build::arguments_with_ids(&self.0, number),
        })
    }

    /// Whether a unit is in C, as far as it says.
    pub(crate) fn is_c(&self, number: u32) -> bool {
        self.0.units[number as usize].language.is_none_or(is_c)
    }

    /// A unit's name.
    pub(crate) fn name(&self, number: u32) -> &[u8] {
        &self.0.units[number as usize].name
    }

    /// The entry at an offset of a unit.
    pub(crate) fn entry(&self, unit: u32, offset: u64) -> Option<Place> {
        self.0.entry(unit, offset)
    }

    /// The entry that another's attribute refers to, from where it stands.
    pub(crate) fn referred(&self, unit: u32, value: &gimli::AttributeValue<dies::Slice<'_>>) -> Option<Place> {
        self.0.resolve(unit, dies::reference(value)?)
    }

    /// Where the rest of an entry is said first: the entry itself, or what it is a copy or the definition of.
    pub(crate) fn root(&self, mut at: Place) -> Place {
        for _ in 0..MAX_ORIGINS {
            match self.die(at).origin.and_then(|origin| self.0.resolve(at.0, origin)) {
                Some(origin) => at = origin,
                None => break,
            }
        }
        at
    }

    /// An entry's name and the entry of its type, told there or where the rest is said.
    pub(crate) fn described(&self, mut at: Place) -> (&'d [u8], Option<Place>) {
        let (mut name, mut of) = (&b""[..], None);
        for _ in 0..MAX_ORIGINS {
            let die = self.die(at);
            if name.is_empty() {
                name = die.name;
            }
            of = of.or(die.of.and_then(|of| self.0.resolve(at.0, of)));
            match die.origin.and_then(|origin| self.0.resolve(at.0, origin)) {
                Some(origin) => at = origin,
                None => break,
            }
        }
        (name, of)
    }

    /// Whether the entry is known beyond its unit.
    pub(crate) fn is_external(&self, at: Place) -> bool {
        self.die(at).external || self.die(self.root(at)).external
    }

    fn die(&self, at: Place) -> &dies::Die<'d> {
        &self.0.units[at.0 as usize].dies[at.1 as usize]
    }
}

fn parse_all<'d>(
    dwarf: &Dwarf<'d>,
    mut units: gimli::DebugInfoUnitHeadersIter<dies::Slice<'d>>,
) -> gimli::Result<Vec<Parsed<'d>>> {
    let mut headers = Vec::new();
    while let Some(header) = units.next()? {
        headers.push(header);
    }
    headers
        .into_par_iter()
        .map(|header| dies::parse(dwarf, header))
        .collect()
}

fn parse_types<'d>(dwarf: &Dwarf<'d>) -> gimli::Result<Vec<Parsed<'d>>> {
    let mut headers = Vec::new();
    let mut all = dwarf.type_units();
    while let Some(header) = all.next()? {
        headers.push(header);
    }
    let parsed = headers.into_par_iter().map(|header| dies::parse(dwarf, header));
    parsed.collect()
}

/// Assembly among them, whose units have no types.
fn is_c(language: DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_C89
            | dw::DW_LANG_C
            | dw::DW_LANG_C99
            | dw::DW_LANG_C11
            | dw::DW_LANG_C17
            | dw::DW_LANG_Mips_Assembler
    )
}

impl All<'_> {
    /// The entry that a unit refers to.
    fn resolve(&self, unit: u32, reference: Ref) -> Option<build::Place> {
        match reference {
            Ref::Unit(offset) => self.entry(unit, offset),
            Ref::Info(offset) => {
                let of_supplementary = (self.own..self.supplementary).contains(&(unit as usize));
                let range = if of_supplementary {
                    self.own..self.supplementary
                } else {
                    0..self.own
                };
                self.in_section(range, offset)
            }
            Ref::Supplementary(offset) => self.in_section(self.own..self.supplementary, offset),
            Ref::Signature(signature) => {
                let &unit = self.types.get(&signature)?;
                match self.units[unit as usize].kind {
                    UnitKind::Type(_, offset) => self.entry(unit, offset),
                    _ => None,
                }
            }
        }
    }

    fn in_section(&self, range: std::ops::Range<usize>, offset: u64) -> Option<build::Place> {
        let start = range.start;
        let units = self.units.get(range)?;
        let after = units.partition_point(|unit| unit.start <= offset);
        let number = after.checked_sub(1)?;
        self.entry((start + number) as u32, offset - units[number].start)
    }

    fn entry(&self, unit: u32, offset: u64) -> Option<build::Place> {
        let dies = &self.units.get(unit as usize)?.dies;
        let index = dies.binary_search_by_key(&offset, |die| die.offset).ok()?;
        Some((unit, index as u32))
    }
}
