//! The sections that contain lines, functions and inlined calls. If they are compressed, unpacking
//! them takes longer than everything after it.

use std::borrow::Cow;
use std::sync::OnceLock;

use backtrail_elf::budget::Budget;
use backtrail_elf::{Image, Packed};
use gimli::{EndianSlice, RunTimeEndian, SectionId};

use super::Error;
use super::ranges::UnitRanges;
use crate::sections::{self, Dwarf, Loaded};

/// The DWARF sections of a file, decompressed. [`Lines`](super::Lines) borrows them.
pub struct DebugSections<'a> {
    info: Info<'a>,
    others: Loaded<'a>,
    ranges: UnitRanges,
    /// The sections of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Loaded<'a>>,
    endian: RunTimeEndian,
    budget: Budget,
}

/// `.debug_info`.
enum Info<'a> {
    Whole(Cow<'a, [u8]>),
    Parts {
        /// The parts that were requested first, by offset.
        parts: Vec<(usize, Vec<u8>)>,
        packed: Packed<'a>,
        /// All of it, once something else is requested; empty if it can't be unpacked.
        whole: OnceLock<Vec<u8>>,
    },
}

/// The sections other than `.debug_info` and `.debug_aranges`, the largest first: one thread
/// unpacks only that, while others do the rest.
const OTHERS: [SectionId; 8] = [
    SectionId::DebugLine,
    SectionId::DebugStr,
    SectionId::DebugAbbrev,
    SectionId::DebugRngLists,
    SectionId::DebugRanges,
    SectionId::DebugAddr,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
];

impl<'a> DebugSections<'a> {
    /// Reads the sections of `image`, which is the module itself or its separate debug file, and of
    /// the supplementary file (dwz) if it has one. `None` if there is no debug information.
    ///
    /// If `.debug_info` is compressed, it is unpacked only up to the last unit that contains one of
    /// the addresses `asked`, and only those units are kept, if `.debug_aranges` lists them; the
    /// rest is unpacked when something needs it.
    pub fn load(
        image: &Image<'a>,
        supplementary: Option<&Image<'a>>,
        asked: &[u64],
    ) -> Result<Option<DebugSections<'a>>, Error> {
        let Some(packed) = image.packed(SectionId::DebugInfo.name()).map_err(Error::Elf)? else {
            return Ok(None);
        };
        if packed.unpacked_len() == 0 {
            return Ok(None);
        }
        let endian = sections::endian(image);
        let info = || {
            let aranges = Loaded::load(image, &[SectionId::DebugAranges])?;
            let ranges = UnitRanges::listed(&EndianSlice::new(aranges.get(SectionId::DebugAranges), endian).into())?;
            Ok::<_, Error>((Info::unpack(packed, &ranges, asked)?, ranges))
        };
        let others = || {
            let others = Loaded::load(image, &OTHERS)?;
            let supplementary = supplementary.map(|image| {
                let all = [&[SectionId::DebugInfo][..], &OTHERS].concat();
                Loaded::load(image, &all)
            });
            Ok::<_, Error>((others, supplementary.transpose()?))
        };
        let (info, others) = rayon::join(info, others);
        let ((info, ranges), (others, supplementary)) = (info?, others?);
        Ok(Some(DebugSections {
            info,
            others,
            ranges,
            supplementary,
            endian,
            budget: image.budget().clone(),
        }))
    }

    /// The parts of `.debug_info` that were unpacked at first, with their offsets; `None` if all of
    /// it was.
    pub(super) fn parts(&self) -> Option<&[(usize, Vec<u8>)]> {
        match &self.info {
            Info::Whole(_) => None,
            Info::Parts { parts, .. } => Some(parts),
        }
    }

    /// Whether only parts of `.debug_info` were unpacked at first.
    pub fn is_partial(&self) -> bool {
        self.parts().is_some()
    }

    /// The ranges of all units.
    pub(super) fn ranges(&self) -> &UnitRanges {
        &self.ranges
    }

    /// All sections; without `.debug_info` if only [parts](Self::parts) of it were unpacked.
    pub(super) fn dwarf(&self) -> gimli::Result<Dwarf<'_>> {
        match &self.info {
            Info::Whole(info) => self.with_info(info),
            Info::Parts { .. } => self.with_info(&[]),
        }
    }

    /// All sections, with as much of `.debug_info` as can be unpacked.
    pub(super) fn whole_dwarf(&self) -> gimli::Result<Dwarf<'_>> {
        match &self.info {
            Info::Whole(info) => self.with_info(info),
            Info::Parts { packed, whole, .. } => {
                self.with_info(whole.get_or_init(|| packed.unpack().map_or_else(|_| Vec::new(), Cow::into_owned)))
            }
        }
    }

    /// What reading them may cost.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The byte order of the sections.
    pub(super) fn endian(&self) -> RunTimeEndian {
        self.endian
    }

    fn with_info<'s>(&'s self, info: &'s [u8]) -> gimli::Result<Dwarf<'s>> {
        let section = |id| match id {
            SectionId::DebugInfo => info,
            _ => self.others.get(id),
        };
        sections::dwarf(section, self.supplementary.as_ref(), self.endian)
    }
}

impl<'a> Info<'a> {
    fn unpack(packed: Packed<'a>, ranges: &UnitRanges, asked: &[u64]) -> Result<Info<'a>, Error> {
        if let Some(wanted) = ranges.parts(asked, packed.unpacked_len())
            && let Some(parts) = packed.unpack_parts(&wanted).map_err(Error::Elf)?
        {
            let begins = wanted.iter().map(|part| part.start as usize);
            return Ok(Info::Parts {
                parts: begins.zip(parts).collect(),
                packed,
                whole: OnceLock::new(),
            });
        }
        packed.unpack().map(Info::Whole).map_err(Error::Elf)
    }
}
