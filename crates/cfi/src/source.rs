//! The bytes of a module that its table is made from: their hash names the table in the cache.
//!
//! A table is made from call frame information, symbols and code. These are all bytes of the file
//! except the contents of sections that hold something else, of which debug information and data
//! are the large ones. A new table is made from a file that has zeros there: so what is not hashed
//! cannot influence it. Bytes that were read don't change any more, whatever happens to the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use backtrail_elf::{Image, Section};
use memmap2::MmapMut;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::cache::{Name, Namer};

/// The version of the conversion. It names the cache's subfolder, and is part of the hash: a new
/// conversion gets a new folder, and other names for its entries.
pub(crate) const KIND: &str = "sframe-v19";

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
    len: usize,
    /// Where they are in the file, and what is there, in order and without overlaps.
    parts: Vec<(usize, &'a [u8])>,
    is_in_memory: bool,
}

impl<'a> Source<'a> {
    /// # Errors
    /// If not all of it can be read.
    pub(crate) fn of(image: &Image<'a>) -> Result<Source<'a>, backtrail_elf::Error> {
        let ranges = match image.is_in_memory() {
            true => unchanged_in_memory(image),
            false => without_other_sections(image),
        };
        let part = |range: Range<usize>| image.bytes_in(range.clone()).map(|bytes| (range.start, bytes));
        Ok(Source {
            len: image.len(),
            parts: ranges.into_iter().map(part).collect::<Result<_, _>>()?,
            is_in_memory: image.is_in_memory(),
        })
    }

    /// The name that a table of this source has.
    pub(crate) fn name(&self) -> Name {
        let mut namer = Namer::new(concat!("backtrail ", env!("CARGO_PKG_VERSION"), " unwind table"));
        namer.numbers(&[KIND.len() as u64]).add(KIND.as_bytes());
        namer.numbers(&[self.len as u64, u64::from(self.is_in_memory), self.parts.len() as u64]);
        for (start, bytes) in &self.parts {
            namer.numbers(&[*start as u64, bytes.len() as u64]);
        }
        for (_, bytes) in &self.parts {
            namer.add(bytes);
        }
        namer.name()
    }

    /// The number of bytes that are hashed.
    pub(crate) fn hashed(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// A file with nothing but these bytes; `None` if there is no memory for it, or if the bytes
    /// are a copy of a process's memory, which is used as it is.
    pub(crate) fn alone(&self) -> Option<MmapMut> {
        if self.is_in_memory {
            return None;
        }
        let mut alone = MmapMut::map_anon(self.len).ok()?;
        for (start, bytes) in &self.parts {
            alone[*start..start + bytes.len()].copy_from_slice(bytes);
        }
        Some(alone)
    }

    /// The same as a file in memory that nobody changes, to send to another process.
    pub(crate) fn sealed(&self) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("module", flags)?);
        file.set_len(self.len as u64)?;
        for (start, bytes) in &self.parts {
            file.write_all_at(bytes, *start as u64)?;
        }
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }
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
    let len = image.len();
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
