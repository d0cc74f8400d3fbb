//! The sections that lines, functions and inlined calls are told by. Where they are compressed, to unpack them takes longer than all that follows.

use std::borrow::Cow;
use std::sync::OnceLock;

use backtrail_elf::{Image, Packed};
use backtrail_wire::Endian;
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use rayon::prelude::*;

use super::ranges::UnitRanges;
use super::{Error, Slice};

/// The DWARF sections of a file, decompressed: what [`Lines`](super::Lines) borrows.
pub struct DebugSections<'a> {
    /// Of `.debug_info`, perhaps, its start alone.
    info: Cow<'a, [u8]>,
    /// Where that is so, all of it; empty where it can't be unpacked.
    rest: Option<(Packed<'a>, OnceLock<Vec<u8>>)>,
    others: Sections<'a>,
    ranges: UnitRanges,
    /// Of the file that `.gnu_debugaltlink` names.
    supplementary: Option<Sections<'a>>,
    endian: RunTimeEndian,
}

struct Sections<'a>(Vec<(SectionId, Cow<'a, [u8]>)>);

/// Those beside `.debug_info` and `.debug_aranges`, the largest first: whoever unpacks it does nothing else, while others do the rest.
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
    /// Reads the sections of `image`, which is the module itself or its separate debug file, and of the supplementary
    /// file (dwz) where it has one. `None` where there is no debug information.
    ///
    /// Where it is compressed, `.debug_info` is unpacked no further than the units of the addresses `asked` lie, as far as `.debug_aranges` tells; the
    /// rest is once something needs it.
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
        let endian = match image.endian() {
            Endian::Little => RunTimeEndian::Little,
            Endian::Big => RunTimeEndian::Big,
        };
        let info = || {
            let aranges = unpack(image, SectionId::DebugAranges)?.unwrap_or_default();
            let ranges = UnitRanges::told(&EndianSlice::new(&aranges, endian).into())?;
            let start = ranges.reach(asked).unwrap_or(u64::MAX);
            Ok::<_, Error>((packed.unpack_start(start).map_err(Error::Elf)?, ranges))
        };
        let others = || {
            let others = Sections::load(image, &OTHERS)?;
            let supplementary = supplementary.map(|image| {
                let all = [&[SectionId::DebugInfo][..], &OTHERS].concat();
                Sections::load(image, &all)
            });
            Ok::<_, Error>((others, supplementary.transpose()?))
        };
        let (info, others) = rayon::join(info, others);
        let ((info, ranges), (others, supplementary)) = (info?, others?);
        let is_start = (info.len() as u64) < packed.unpacked_len();
        Ok(Some(DebugSections {
            info,
            rest: is_start.then(|| (packed, OnceLock::new())),
            others,
            ranges,
            supplementary,
            endian,
        }))
    }

    /// Whether `.debug_info` goes on behind what was unpacked of it at first.
    pub fn has_start_only(&self) -> bool {
        self.rest.is_some()
    }

    /// Which units have which addresses.
    pub(super) fn ranges(&self) -> &UnitRanges {
        &self.ranges
    }

    /// What was unpacked.
    pub(super) fn dwarf(&self) -> gimli::Result<gimli::Dwarf<Slice<'_>>> {
        self.with_info(&self.info)
    }

    /// The same with all of `.debug_info`; where that can't be had, with what is there.
    pub(super) fn whole_dwarf(&self) -> gimli::Result<gimli::Dwarf<Slice<'_>>> {
        let Some((packed, whole)) = &self.rest else {
            return self.dwarf();
        };
        let whole = whole.get_or_init(|| packed.unpack().map_or_else(|_| Vec::new(), Cow::into_owned));
        self.with_info(if whole.is_empty() { &self.info } else { whole })
    }

    fn with_info<'s>(&'s self, info: &'s [u8]) -> gimli::Result<gimli::Dwarf<Slice<'s>>> {
        let slice = |bytes| Ok::<_, gimli::Error>(EndianSlice::new(bytes, self.endian));
        let mut dwarf = gimli::Dwarf::load(|id| match id {
            SectionId::DebugInfo => slice(info),
            _ => slice(self.others.get(id)),
        })?;
        if let Some(supplementary) = &self.supplementary {
            dwarf.load_sup(|id| slice(supplementary.get(id)))?;
        }
        Ok(dwarf)
    }
}

impl<'a> Sections<'a> {
    fn load(image: &Image<'a>, ids: &[SectionId]) -> Result<Sections<'a>, Error> {
        let sections = ids.into_par_iter().filter_map(|id| match unpack(image, *id) {
            Ok(data) => data.map(|data| Ok((*id, data))),
            Err(error) => Some(Err(error)),
        });
        sections.collect::<Result<_, _>>().map(Sections)
    }

    fn get(&self, id: SectionId) -> &[u8] {
        let section = self.0.iter().find(|(found, _)| *found == id);
        section.map_or(&[], |(_, data)| data)
    }
}

fn unpack<'a>(image: &Image<'a>, id: SectionId) -> Result<Option<Cow<'a, [u8]>>, Error> {
    let section = image.section(id.name()).map_err(Error::Elf)?;
    Ok(section.map(|section| section.data))
}
