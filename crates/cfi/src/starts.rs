//! The starts of functions without symbols, from the tables that describe their frames.
//!
//! `.eh_frame` and `.sframe` remain in stripped files, because exceptions and stack traces need
//! them. The search table of `.eh_frame_hdr` finds the start for one address; only files without it
//! are read completely, once.

use std::borrow::Cow;
use std::sync::OnceLock;

use backtrail_arch::{Arch, Cpu};
use backtrail_elf::{Image, SectionData};
use backtrail_sframe::Section;
use backtrail_wire::{Bytes, Endian};
use gimli::{BaseAddresses, UnwindSection};

use crate::eh_frame::{self, EhFrame, MAX_CIE_BYTES, augmentation};
use crate::reader::{Slice, run_time};
use crate::tables;

/// The starts of a file's functions.
#[derive(Debug)]
pub struct FunctionStarts<'a> {
    eh_frame: Option<Frames<'a>>,
    sframe: Option<SectionData<'a>>,
}

#[derive(Debug)]
struct Frames<'a> {
    data: Cow<'a, [u8]>,
    address: u64,
    header: Option<SectionData<'a>>,
    bases: BaseAddresses,
    arch: &'static Arch,
    endian: Endian,
    /// Start and end of each function, by start, in a file without a search table.
    list: OnceLock<Vec<(u64, u64)>>,
}

impl<'a> FunctionStarts<'a> {
    /// The starts of `image`; `None` if nothing in it describes frames.
    pub fn of_image(image: &Image<'a>) -> Option<FunctionStarts<'a>> {
        let sframe = tables::own_section(image);
        let section = image.eh_frame().ok().flatten();
        if section.is_none() && sframe.is_none() {
            return None;
        }
        let header = image.eh_frame_hdr().ok().flatten();
        Some(FunctionStarts {
            eh_frame: section.map(|section| Frames::new(image, section, header)),
            sframe,
        })
    }

    /// The start of the function that has the code at `svma`.
    pub fn start(&self, svma: u64) -> Option<u64> {
        let by_frames = || self.eh_frame.as_ref()?.start(svma);
        by_frames().or_else(|| {
            let own = self.sframe.as_ref()?;
            let section = Section::parse(&own.data, own.address).ok()?;
            let function = section.lookup(svma).ok()??.function;
            // One description of many equal blocks, such as the entries of a linkage table, is not
            // a function.
            function.repeat.is_none().then_some(function.start)
        })
    }
}

impl<'a> Frames<'a> {
    fn new(image: &Image<'_>, section: SectionData<'a>, header: Option<SectionData<'a>>) -> Frames<'a> {
        let input = EhFrame::of_image(image, &[], section.address);
        let mut bases = eh_frame::bases(&input);
        if let Some(header) = &header {
            bases = bases.set_eh_frame_hdr(header.address);
        }
        let data = match image.arch().cpu {
            Cpu::Aarch64 => {
                let normalized = augmentation::normalize(Bytes::new(&section.data, image.endian()), Cpu::Aarch64).data;
                Cow::Owned(normalized.into_owned())
            }
            Cpu::X86_64 | Cpu::S390x => section.data,
        };
        Frames {
            data,
            address: section.address,
            header,
            bases,
            arch: image.arch(),
            endian: image.endian(),
            list: OnceLock::new(),
        }
    }

    fn start(&self, svma: u64) -> Option<u64> {
        let (start, end) = match self.search(svma) {
            Some(offset) => self.range(offset)?,
            None => {
                let list = self.list.get_or_init(|| self.list());
                let after = list.partition_point(|(start, _)| *start <= svma);
                *list.get(after.checked_sub(1)?)?
            }
        };
        (start..end).contains(&svma).then_some(start)
    }

    fn section(&self) -> gimli::EhFrame<Slice<'_>> {
        let mut section = gimli::EhFrame::new(&self.data, run_time(self.endian));
        section.set_address_size(self.arch.pointer_bytes);
        if self.arch.cpu == Cpu::Aarch64 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        section
    }

    /// Start and end of the function of the FDE at this offset.
    fn range(&self, offset: usize) -> Option<(u64, u64)> {
        let fde = self
            .section()
            .fde_from_offset(&self.bases, offset.into(), |section, bases, cie| {
                let cie = section.cie_from_offset(bases, cie)?;
                match cie.entry_len() <= MAX_CIE_BYTES {
                    true => Ok(cie),
                    false => Err(gimli::Error::NotCieId(cie.offset() as u64)),
                }
            });
        let fde = fde.ok()?;
        Some((fde.initial_address(), fde.initial_address().checked_add(fde.len())?))
    }

    /// The offset of the last FDE that begins at or before `svma`, by the search table.
    fn search(&self, svma: u64) -> Option<usize> {
        let header = self.header.as_ref()?;
        let parsed = gimli::EhFrameHdr::new(&header.data, run_time(self.endian));
        let parsed = parsed.parse(&self.bases, self.arch.pointer_bytes).ok()?;
        let found = parsed.table()?.lookup(svma, &self.bases).ok()?;
        usize::try_from(found.direct().ok()?.checked_sub(self.address)?).ok()
    }

    fn list(&self) -> Vec<(u64, u64)> {
        let (offsets, _) = eh_frame::fdes(Bytes::new(&self.data, self.endian));
        let mut list: Vec<(u64, u64)> = offsets.into_iter().filter_map(|offset| self.range(offset)).collect();
        list.sort_unstable();
        // If several have one start, the longest counts.
        list.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = later.1;
            }
            same
        });
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_elf::FileBytes;

    /// Finds the functions that `.eh_frame` of this test describes, with the search table and
    /// without it.
    #[test]
    fn both_ways_give_the_start_of_every_function_and_nothing_between() {
        let file = FileBytes::open(std::env::current_exe().expect("a path")).expect("this program");
        let image = Image::of(&file).expect("ELF");
        let by_table = FunctionStarts::of_image(&image).expect("frames");
        let by_list = FunctionStarts {
            eh_frame: by_table.eh_frame.as_ref().map(|frames| Frames {
                data: frames.data.clone(),
                header: None,
                bases: frames.bases.clone(),
                list: OnceLock::new(),
                ..*frames
            }),
            sframe: None,
        };
        let frames = by_list.eh_frame.as_ref().expect("frames");
        let list = frames.list();
        assert!(list.len() > 1_000, "{} functions", list.len());
        for &(start, end) in &list {
            for svma in [start, start + (end - start) / 2, end - 1] {
                assert_eq!(by_table.start(svma), Some(start), "{svma:#x}");
                assert_eq!(by_list.start(svma), Some(start), "{svma:#x}");
            }
        }
        let holes = list.windows(2).filter(|pair| pair[0].1 < pair[1].0);
        for pair in holes {
            assert_eq!(by_table.start(pair[0].1), None, "{:#x}", pair[0].1);
        }
        assert_eq!(by_table.start(0), None);
    }
}
