//! Functions, inlined calls and source lines of addresses.

use std::borrow::Cow;
use std::fmt;

use addr2line::Context;
use backtrail_elf::Image;
use backtrail_wire::Endian;
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use rayon::prelude::*;

/// More frames than this at one address are no inlining but damage.
const MAX_INLINED: usize = 256;

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

/// The sections that lines, functions and inlined calls are told by.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
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

/// Answers for the addresses of one module. Units are decoded when an address first lies in them.
pub struct Lines<'d> {
    context: Context<Slice<'d>>,
}

impl<'d> Lines<'d> {
    /// Reads the list of units.
    pub fn new(sections: &'d DebugSections<'_>) -> Result<Lines<'d>, Error> {
        let slice = |part: &'d Sections<'_>, id| EndianSlice::new(part.get(id), sections.endian);
        let mut dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(slice(&sections.main, id)))?;
        if let Some(supplementary) = &sections.supplementary {
            dwarf.load_sup(|id| Ok::<_, gimli::Error>(slice(supplementary, id)))?;
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        Ok(Lines {
            context: Context::from_dwarf(dwarf)?,
        })
    }

    /// The functions that `svma` lies in, the innermost inlined one first, the one that has the code last. Empty where
    /// nothing is known. Damage in a unit costs what lies behind it, not the rest.
    pub fn lookup(&self, svma: u64) -> Vec<Frame> {
        let mut found = Vec::new();
        if let Ok(mut frames) = self.context.find_frames(svma).skip_all_loads() {
            while let Ok(Some(frame)) = frames.next() {
                found.push(Frame::new(&frame));
                if found.len() == MAX_INLINED {
                    break;
                }
            }
        }
        if found.is_empty()
            && let Ok(Some(location)) = self.context.find_location(svma)
        {
            found.push(Frame {
                function: None,
                file: location.file.map(str::to_owned),
                line: location.line,
            });
        }
        found
    }
}

impl Frame {
    fn new(frame: &addr2line::Frame<'_, Slice<'_>>) -> Frame {
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        let location = frame.location.as_ref();
        Frame {
            function: name.map(Cow::into_owned),
            file: location.and_then(|location| location.file).map(str::to_owned),
            line: location.and_then(|location| location.line),
        }
    }
}
