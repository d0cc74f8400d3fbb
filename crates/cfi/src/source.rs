//! The bytes of a module that its table is made from: their hash names the table in the cache.
//!
//! A table is made from call frame information, symbols and code. These are all bytes of the file
//! except the contents of sections that hold something else, of which debug information and data
//! are the large ones. A new table is made from a copy that has zeros there: so what is not hashed
//! cannot influence it.

use std::ops::Range;

use backtrail_elf::{Error, Image, Section};
use memmap2::MmapMut;

use crate::cache::{Name, Namer};

/// The version of the conversion. It names the cache's subfolder, and is part of the hash: a new
/// conversion gets a new folder, and other names for its entries.
pub(crate) const KIND: &str = "sframe-v9";

/// Sections that are read besides code.
const READ: [&[u8]; 14] = [
    b".eh_frame",
    b".eh_frame_hdr",
    b".debug_frame",
    b".zdebug_frame",
    b".sframe",
    b".gopclntab",
    b".data.rel.ro.gopclntab",
    b".gnu_debugdata",
    b".symtab",
    b".strtab",
    b".dynsym",
    b".dynstr",
    b".shstrtab",
    b".note.gnu.build-id",
];

/// The first page of a module in memory, which contains its headers.
const HEADERS: usize = 4096;

pub(crate) struct Source<'a> {
    bytes: &'a [u8],
    /// In order, without overlaps.
    ranges: Vec<Range<usize>>,
    is_in_memory: bool,
}

impl<'a> Source<'a> {
    pub(crate) fn of(image: &Image<'a>) -> Source<'a> {
        let bytes = image.bytes();
        let ranges = match image.is_in_memory() {
            true => unchanged_in_memory(image),
            false => without_other_sections(image),
        };
        Source {
            bytes,
            ranges,
            is_in_memory: image.is_in_memory(),
        }
    }

    /// The name that a table of this source has.
    pub(crate) fn name(&self) -> Name {
        name(self.bytes, &self.ranges, self.is_in_memory)
    }

    /// The number of bytes that are hashed.
    pub(crate) fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// A copy that nobody else can change; `None` if there is no memory for it.
    pub(crate) fn copy(&self) -> Option<Copy<'_>> {
        if self.is_in_memory {
            // It is a copy of the process's memory.
            return Some(Copy {
                source: self,
                copied: None,
            });
        }
        let mut copied = MmapMut::map_anon(self.bytes.len()).ok()?;
        for range in &self.ranges {
            copied[range.clone()].copy_from_slice(&self.bytes[range.clone()]);
        }
        Some(Copy {
            source: self,
            copied: Some(copied),
        })
    }
}

pub(crate) struct Copy<'s> {
    source: &'s Source<'s>,
    copied: Option<MmapMut>,
}

impl Copy<'_> {
    /// The image of the copy.
    pub(crate) fn image<'c>(&'c self, original: &Image<'c>) -> Result<Image<'c>, Error> {
        match &self.copied {
            Some(copied) => Image::parse(copied),
            None => Ok(original.clone()),
        }
    }

    /// The name that a table of this copy has.
    pub(crate) fn name(&self) -> Name {
        let bytes = self.copied.as_deref().unwrap_or(self.source.bytes);
        name(bytes, &self.source.ranges, self.source.is_in_memory)
    }
}

fn name(bytes: &[u8], ranges: &[Range<usize>], is_in_memory: bool) -> Name {
    let mut namer = Namer::new(concat!("backtrail ", env!("CARGO_PKG_VERSION"), " unwind table"));
    namer.numbers(&[KIND.len() as u64]).add(KIND.as_bytes());
    namer.numbers(&[bytes.len() as u64, u64::from(is_in_memory), ranges.len() as u64]);
    for range in ranges {
        namer.numbers(&[range.start as u64, range.end as u64]);
    }
    for range in ranges {
        namer.add(&bytes[range.clone()]);
    }
    namer.name()
}

/// The headers and all segments that the dynamic linker does not change.
fn unchanged_in_memory(image: &Image<'_>) -> Vec<Range<usize>> {
    let bytes = image.bytes();
    let segments = image.segments().iter();
    let constant = segments.filter(|segment| segment.is_load() && !segment.is_writable());
    let mut ranges: Vec<Range<usize>> = constant
        .filter_map(|segment| {
            let data = image.data_at(segment.vaddr)?;
            let start = data.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
            Some(start..start.checked_add(data.len())?.min(bytes.len()))
        })
        .filter(|range| range.start < range.end)
        .collect();
    ranges.push(0..bytes.len().min(HEADERS));
    united(ranges)
}

/// All bytes of a file except the contents of sections that are not read.
fn without_other_sections(image: &Image<'_>) -> Vec<Range<usize>> {
    let len = image.bytes().len();
    let range = |offset: u64, size: u64| {
        let start = usize::try_from(offset).unwrap_or(len).min(len);
        let size = usize::try_from(size).unwrap_or(len).min(len - start);
        start..start + size
    };
    let is_read = |section: &Section<'_>| section.is_code() || READ.contains(&section.name);
    // Linkers may put data into the segment of the code.
    let code = image.segments().iter();
    let code = code.filter(|segment| segment.is_load() && segment.is_executable());
    let code = code.map(|segment| range(segment.offset, segment.filesz));
    let holds_bytes = |section: &&Section<'_>| section.kind != NOBITS && section.kind != 0;
    let (read, others): (Vec<&Section<'_>>, _) = image
        .sections()
        .iter()
        .filter(holds_bytes)
        .partition(|section| is_read(section));
    let others = others.iter().map(|section| range(section.offset, section.size));
    let others = united(others.filter(|range| !range.is_empty()).collect());
    let mut kept: Vec<Range<usize>> = read
        .iter()
        .map(|section| range(section.offset, section.size))
        .chain(code)
        .collect();
    let mut at = 0;
    for other in others {
        kept.push(at..other.start);
        at = other.end;
    }
    kept.push(at..len);
    kept.retain(|range| !range.is_empty());
    united(kept)
}

/// `SHT_NOBITS`: a section without bytes in the file.
const NOBITS: u32 = 8;

/// The same ranges in order, without overlaps.
fn united(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut united: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match united.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => united.push(range),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_united() {
        assert_eq!(united(vec![5..9, 0..2, 2..3, 7..8, 12..13]), [0..3, 5..9, 12..13]);
    }
}
