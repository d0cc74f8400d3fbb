//! Functions, inlined calls and source lines of addresses.
//!
//! Of a file's units those are read that the addresses lie in: [`ranges`] tells which these are, [`unit`] keeps them, [`functions`] and
//! [`rows`] are what is read of one.

mod functions;
mod ranges;
mod rows;
mod unit;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use backtrail_elf::Image;
use backtrail_wire::Endian;
use gimli::{AttributeValue, EndianSlice, RunTimeEndian, SectionId};
use rayon::prelude::*;

use functions::Name;
use ranges::UnitRanges;
use unit::{File, Unit};

/// More frames than this at one address are no inlining but damage.
const MAX_INLINED: usize = 256;
/// Neither do names have longer chains of references.
const MOST_REFERENCES: usize = 16;

/// The DWARF sections of a file, decompressed: what [`Lines`] borrows.
pub struct DebugSections<'a> {
    main: Sections<'a>,
    /// Of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Sections<'a>>,
    endian: RunTimeEndian,
}

struct Sections<'a>(Vec<(SectionId, Cow<'a, [u8]>)>);

/// A function at an address, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The name: the mangled one where the file has it.
    pub function: Option<String>,
    /// The source file as the compiler named it.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
}

/// Why there are no lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A section cannot be read or decompressed.
    Elf(backtrail_elf::Error),
    /// The debug information makes no sense.
    Dwarf(gimli::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Elf(error) => error.fmt(f),
            Error::Dwarf(error) => write!(f, "damaged debug information: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<gimli::Error> for Error {
    fn from(error: gimli::Error) -> Self {
        Error::Dwarf(error)
    }
}

/// The sections that lines, functions and inlined calls are told by, the largest first: whoever unpacks it does nothing else, while others do
/// the rest.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugStr,
    SectionId::DebugAbbrev,
    SectionId::DebugRngLists,
    SectionId::DebugRanges,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
];

impl<'a> DebugSections<'a> {
    /// Reads the sections of `image`, which is the module itself or its separate debug file, and of the supplementary
    /// file (dwz) where it has one. `None` where there is no debug information.
    pub fn load(image: &Image<'a>, supplementary: Option<&Image<'a>>) -> Result<Option<DebugSections<'a>>, Error> {
        let main = Sections::load(image)?;
        if main.get(SectionId::DebugInfo).is_empty() {
            return Ok(None);
        }
        Ok(Some(DebugSections {
            main,
            supplementary: supplementary.map(Sections::load).transpose()?,
            endian: match image.endian() {
                Endian::Little => RunTimeEndian::Little,
                Endian::Big => RunTimeEndian::Big,
            },
        }))
    }
}

impl<'a> Sections<'a> {
    fn load(image: &Image<'a>) -> Result<Sections<'a>, Error> {
        // Where they are compressed this takes longer than everything that follows.
        let sections = SECTIONS
            .into_par_iter()
            .filter_map(|id| match image.section(id.name()) {
                Ok(section) => section.map(|section| Ok((id, section.data))),
                Err(error) => Some(Err(Error::Elf(error))),
            });
        sections.collect::<Result<_, _>>().map(Sections)
    }

    fn get(&self, id: SectionId) -> &[u8] {
        let section = self.0.iter().find(|(found, _)| *found == id);
        section.map_or(&[], |(_, data)| data)
    }
}

type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// Answers for the addresses of one module. A unit is read when an address first lies in it.
pub struct Lines<'d> {
    main: File<'d>,
    supplementary: Option<File<'d>>,
    ranges: UnitRanges,
}

impl<'d> Lines<'d> {
    /// Reads which units have which addresses, as far as `.debug_aranges` tells.
    pub fn new(sections: &'d DebugSections<'_>) -> Result<Lines<'d>, Error> {
        let slice = |part: &'d Sections<'_>, id| EndianSlice::new(part.get(id), sections.endian);
        let mut dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(slice(&sections.main, id)))?;
        if let Some(supplementary) = &sections.supplementary {
            dwarf.load_sup(|id| Ok::<_, gimli::Error>(slice(supplementary, id)))?;
        }
        Ok(Lines {
            supplementary: dwarf.sup.clone().map(File::new),
            ranges: UnitRanges::told(&dwarf)?,
            main: File::new(Arc::new(dwarf)),
        })
    }

    /// The functions that `svma` lies in, the innermost inlined one first, the one that has the code last. Empty where
    /// nothing is known. Damage in a unit costs what lies behind it, not the rest.
    pub fn lookup(&self, svma: u64) -> Vec<Frame> {
        let in_units = |units: Vec<usize>| {
            let units = units.into_iter().filter_map(|offset| self.main.unit(offset));
            let mut found = units.map(|unit| self.frames(&unit, svma));
            found.find(|frames| !frames.is_empty())
        };
        in_units(self.ranges.units_at(svma))
            .or_else(|| in_units(self.ranges.untold_units_at(&self.main.dwarf, svma)))
            .unwrap_or_default()
    }

    fn frames(&self, unit: &Arc<Unit<'d>>, svma: u64) -> Vec<Frame> {
        let unit_ref = self.main.unit_ref(unit);
        let rows = unit.rows(unit_ref);
        let frame = |function: Option<String>, place: Option<(Option<u64>, u32)>| Frame {
            function,
            file: place.and_then(|(file, _)| rows.file(unit_ref, file?)),
            line: place.map(|(_, line)| line).filter(|line| *line != 0),
        };
        let mut place = rows.at(svma).map(|row| (Some(row.file), row.line));
        let Some((function, calls)) = unit.functions(unit_ref).at(unit_ref, svma) else {
            return place.map(|place| frame(None, Some(place))).into_iter().collect();
        };
        let mut frames = Vec::with_capacity(calls.len() + 1);
        // Each was called from where the next one tells.
        for call in calls.iter().rev() {
            frames.push(frame(self.name(unit, call.entry), place));
            place = Some((call.file, call.line));
        }
        frames.push(frame(self.name(unit, function), place));
        frames
    }

    /// The name of a function: its own, or that of the entry that it refers to, which may be in another unit or file.
    fn name(&self, unit: &Arc<Unit<'d>>, entry: gimli::UnitOffset) -> Option<String> {
        let (mut file, mut unit, mut entry) = (&self.main, Arc::clone(unit), entry);
        for _ in 0..MOST_REFERENCES {
            let referred = match functions::name(file.unit_ref(&unit), entry).ok()? {
                Name::Is(name) => return Some(name),
                Name::At(referred) => referred,
            };
            let elsewhere = match referred {
                AttributeValue::UnitRef(offset) => {
                    entry = offset;
                    continue;
                }
                AttributeValue::DebugInfoRef(offset) => offset,
                AttributeValue::DebugInfoRefSup(offset) => {
                    file = self.supplementary.as_ref()?;
                    offset
                }
                _ => return None,
            };
            (unit, entry) = file.entry(elsewhere)?;
        }
        None
    }
}
