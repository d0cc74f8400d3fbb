//! The headers of a file, decoded so that they can be written again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use backtrail_arch::Arch;
use backtrail_wire::{Bytes, Endian};

use super::view::View;
use crate::constants::*;
use crate::header::Header;
use crate::header::to_usize;
use crate::{Error, ErrorKind, Kind, Result};

/// All of `Elf64_Phdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramHeader {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) vaddr: u64,
    pub(super) paddr: u64,
    pub(super) filesz: u64,
    pub(super) memsz: u64,
    pub(super) align: u64,
}

impl ProgramHeader {
    fn decode(table: Bytes<'_>, at: usize) -> Result<ProgramHeader> {
        Ok(ProgramHeader {
            kind: table.u32(at)?,
            flags: table.u32(at + 4)?,
            offset: table.u64(at + 8)?,
            vaddr: table.u64(at + 16)?,
            paddr: table.u64(at + 24)?,
            filesz: table.u64(at + 32)?,
            memsz: table.u64(at + 40)?,
            align: table.u64(at + 48)?,
        })
    }

    fn encode(&self, out: &mut Encoder) {
        out.u32(self.kind);
        out.u32(self.flags);
        for field in [self.offset, self.vaddr, self.paddr, self.filesz, self.memsz, self.align] {
            out.u64(field);
        }
    }

    /// The offset after its last byte in the file.
    pub(super) fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.filesz)
    }

    /// The address after its last byte in memory.
    pub(super) fn memory_end(&self) -> u64 {
        self.vaddr.saturating_add(self.memsz)
    }

    pub(super) fn is_load(&self) -> bool {
        self.kind == PT_LOAD
    }

    /// Whether it is loaded, and neither writable nor executable.
    pub(super) fn is_constant(&self) -> bool {
        self.is_load() && self.flags & (PF_X | PF_W) == 0
    }
}

/// All of `Elf64_Shdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SectionHeader {
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) link: u32,
    pub(super) info: u32,
    pub(super) align: u64,
    pub(super) entsize: u64,
}

impl SectionHeader {
    fn decode(table: Bytes<'_>, at: usize) -> Result<SectionHeader> {
        Ok(SectionHeader {
            name: table.u32(at)?,
            kind: table.u32(at + 4)?,
            flags: table.u64(at + 8)?,
            address: table.u64(at + 16)?,
            offset: table.u64(at + 24)?,
            size: table.u64(at + 32)?,
            link: table.u32(at + 40)?,
            info: table.u32(at + 44)?,
            align: table.u64(at + 48)?,
            entsize: table.u64(at + 56)?,
        })
    }

    fn encode(&self, out: &mut Encoder) {
        out.u32(self.name);
        out.u32(self.kind);
        for field in [self.flags, self.address, self.offset, self.size] {
            out.u64(field);
        }
        out.u32(self.link);
        out.u32(self.info);
        out.u64(self.align);
        out.u64(self.entsize);
    }

    /// Whether the file contains bytes of it.
    pub(super) fn has_bytes(&self) -> bool {
        self.kind != SHT_NULL && self.kind != SHT_NOBITS && self.size > 0
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }

    pub(super) fn file_end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// Bytes in the file's byte order.
pub(super) struct Encoder {
    pub(super) bytes: Vec<u8>,
    endian: Endian,
}

impl Encoder {
    pub(super) fn new(endian: Endian) -> Encoder {
        Encoder {
            bytes: Vec::new(),
            endian,
        }
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend(match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
    }
}

/// A linked file with decoded headers that will be written again.
#[derive(Clone, Debug)]
pub(super) struct Draft<'a> {
    pub(super) view: View<'a>,
    pub(super) endian: Endian,
    pub(super) kind: Kind,
    pub(super) arch: &'static Arch,
    pub(super) phoff: u64,
    pub(super) segments: Vec<ProgramHeader>,
    pub(super) shoff: u64,
    /// Empty if the file has none.
    pub(super) sections: Vec<SectionHeader>,
    pub(super) shstrndx: u32,
    /// Whether code or data refers to an address in a range: all code was read to know it.
    pub(super) referred: Rc<RefCell<BTreeMap<(u64, u64), bool>>>,
}

impl<'a> Draft<'a> {
    /// Decodes the headers of a linked file. They must make sense: headers that cannot be
    /// understood cannot be preserved.
    pub(super) fn parse(view: View<'a>) -> Result<Draft<'a>> {
        let start = view
            .read(0, (view.len() as u64).min(EHDR_BYTES as u64))
            .unwrap_or_default();
        let (header, arch) = Header::with_arch(&start)?;
        if !matches!(header.kind, Kind::Executable | Kind::Shared) {
            return Err(Error::at(ErrorKind::NotLinked, E_TYPE));
        }
        let truncated = |end: u64, offset: u64| {
            let missing = end.saturating_sub(view.len() as u64);
            Error::at(ErrorKind::Truncated { missing }, offset)
        };
        if usize::from(header.phentsize) != PHDR_BYTES {
            return Err(Error::at(ErrorKind::ProgramHeaderSize(header.phentsize), E_PHENTSIZE));
        }
        if header.phnum == PN_XNUM {
            return Err(Error::at(ErrorKind::TooManyHeaders(header.phnum.into()), E_PHNUM));
        }
        let len = u64::from(header.phnum) * PHDR_BYTES as u64;
        let table = view.read(header.phoff, len);
        let table = table.ok_or_else(|| truncated(header.phoff.saturating_add(len), header.phoff))?;
        let table = Bytes::new(&table, header.endian);
        let segments = (0..usize::from(header.phnum)).map(|index| ProgramHeader::decode(table, index * PHDR_BYTES));
        let segments = segments.collect::<Result<Vec<_>>>()?;
        let (sections, shstrndx) = sections(&view, &header)?;
        let draft = Draft {
            endian: header.endian,
            kind: header.kind,
            arch,
            phoff: header.phoff,
            segments,
            shoff: if sections.is_empty() { 0 } else { header.shoff },
            sections,
            shstrndx,
            referred: Rc::default(),
            view,
        };
        draft.check()?;
        Ok(draft)
    }

    /// Checks what the rest relies on: the first section is null, and segments are in order, whole,
    /// and placed where a loader can map them.
    fn check(&self) -> Result<()> {
        // Edits rely on the first section being null, as it always is.
        if self.sections.first().is_some_and(|first| first.kind != SHT_NULL) {
            return Err(Error::at(ErrorKind::SectionHeaders, E_SHOFF));
        }
        let mut end = None;
        for (index, segment) in self.segments.iter().enumerate() {
            let at = self.phoff + (index * PHDR_BYTES) as u64;
            if segment.filesz > 0 && segment.file_end() > self.view.len() as u64 {
                let missing = segment.file_end() - self.view.len() as u64;
                return Err(Error::at(ErrorKind::Truncated { missing }, at + 32));
            }
            if !segment.is_load() {
                continue;
            }
            let align = segment.align.max(1);
            let sound = align.is_power_of_two()
                && align <= MAX_SEGMENT_ALIGN
                && segment.vaddr % align == segment.offset % align
                && segment.filesz <= segment.memsz
                && segment
                    .vaddr
                    .checked_add(segment.memsz)
                    .is_some_and(|end| end <= MAX_ADDRESS);
            if !sound || end.is_some_and(|end| segment.vaddr < end) {
                return Err(Error::at(ErrorKind::Segments, at));
            }
            end = Some(segment.memory_end());
        }
        match end {
            Some(_) => Ok(()),
            None => Err(Error::at(ErrorKind::NotLoaded, E_PHNUM)),
        }
    }

    pub(super) fn loads(&self) -> impl DoubleEndedIterator<Item = &ProgramHeader> {
        self.segments.iter().filter(|segment| segment.is_load())
    }

    /// The offset after the last program header.
    pub(super) fn table_end(&self) -> u64 {
        self.phoff + (self.segments.len() * PHDR_BYTES) as u64
    }

    /// The offset after the last section header.
    pub(super) fn sections_end(&self) -> u64 {
        self.shoff + (self.sections.len() * SHDR_BYTES) as u64
    }

    /// The first section of this type, otherwise the first with this name.
    pub(super) fn find_section(&self, kind: u32, name: &[u8]) -> Option<usize> {
        let by_kind = self.sections.iter().position(|section| section.kind == kind);
        by_kind.or_else(|| self.find_section_named(name))
    }

    /// The section with this name.
    pub(super) fn find_section_named(&self, name: &[u8]) -> Option<usize> {
        let names = self.names()?;
        self.sections.iter().position(|section| {
            let rest = names.get(section.name as usize..).unwrap_or_default();
            section.kind != SHT_NULL && rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// The bytes of `.shstrtab`.
    pub(super) fn names(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
        let strings = self.sections.get(self.shstrndx as usize)?;
        match strings.kind {
            SHT_STRTAB => self.view.read(strings.offset, strings.size),
            _ => None,
        }
    }

    /// The address of the byte at `offset`, according to the segments.
    pub(super) fn address_of(&self, offset: u64) -> Option<u64> {
        let mut loads = self.loads();
        let load = loads.find(|load| offset >= load.offset && offset < load.file_end())?;
        Some(load.vaddr + (offset - load.offset))
    }

    /// The offset of a dynamic entry's value in the file, and the value.
    pub(super) fn dynamic_entry(&self, tag: u64) -> Option<(u64, u64)> {
        let dynamic = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
        let bytes = self.view.read(dynamic.offset, dynamic.filesz)?;
        let bytes = Bytes::new(&bytes, self.endian);
        let mut at = 0;
        loop {
            match bytes.u64(at).ok()? {
                DT_NULL => return None,
                found if found == tag => return Some((dynamic.offset + at as u64 + 8, bytes.u64(at + 8).ok()?)),
                _ => at += 16,
            }
        }
    }

    pub(super) fn encoder(&self) -> Encoder {
        Encoder::new(self.endian)
    }

    pub(super) fn encode_segments(&self) -> Vec<u8> {
        let mut out = self.encoder();
        for segment in &self.segments {
            segment.encode(&mut out);
        }
        out.bytes
    }

    pub(super) fn encode_sections(&self) -> Vec<u8> {
        let mut out = self.encoder();
        let mut sections = self.sections.clone();
        // Values that do not fit e_shnum or e_shstrndx are in section 0.
        if let Some(null) = sections.first_mut() {
            let count = self.sections.len();
            null.size = if count >= usize::from(SHN_LORESERVE) {
                count as u64
            } else {
                0
            };
            null.link = if self.shstrndx >= SHN_LORESERVE.into() {
                self.shstrndx
            } else {
                0
            };
        }
        for section in &sections {
            section.encode(&mut out);
        }
        out.bytes
    }

    /// The ELF header, unchanged except for the tables' offsets and lengths.
    pub(super) fn encode_header(&self) -> Vec<u8> {
        let old = self.view.read(0, EHDR_BYTES as u64).unwrap_or_default();
        let mut out = self.encoder();
        out.bytes.extend(&old[..32]);
        out.u64(self.phoff);
        out.u64(self.shoff);
        out.bytes.extend(&old[48..56]);
        out.u16(self.segments.len() as u16);
        out.bytes.extend(&old[58..60]);
        let count = self.sections.len();
        out.u16(if count >= usize::from(SHN_LORESERVE) {
            0
        } else {
            count as u16
        });
        out.u16(match u16::try_from(self.shstrndx) {
            Ok(index) if index < SHN_LORESERVE => index,
            _ => SHN_XINDEX,
        });
        if self.sections.is_empty() {
            // Bytes without a meaning are preserved.
            out.bytes.truncate(40);
            out.bytes.extend(&old[40..56]);
            out.u16(self.segments.len() as u16);
            out.bytes.extend(&old[58..64]);
        }
        out.bytes
    }
}

/// All section headers, or none; a damaged table cannot be preserved.
pub(super) fn sections(view: &View<'_>, header: &Header) -> Result<(Vec<SectionHeader>, u32)> {
    let damaged = || Error::at(ErrorKind::SectionHeaders, E_SHOFF);
    if header.shoff == 0 {
        return Ok((Vec::new(), 0));
    }
    if usize::from(header.shentsize) != SHDR_BYTES {
        return Err(damaged());
    }
    let first = view.read(header.shoff, SHDR_BYTES as u64).ok_or_else(damaged)?;
    let first = SectionHeader::decode(Bytes::new(&first, header.endian), 0)?;
    let count = match header.shnum {
        0 => first.size,
        count => count.into(),
    };
    let names = match header.shstrndx {
        SHN_XINDEX => first.link,
        index => index.into(),
    };
    let len = count.checked_mul(SHDR_BYTES as u64).ok_or_else(damaged)?;
    let table = view.read(header.shoff, len).ok_or_else(damaged)?;
    let table = Bytes::new(&table, header.endian);
    let sections = (0..to_usize(count)).map(|index| SectionHeader::decode(table, index * SHDR_BYTES));
    Ok((sections.collect::<Result<_>>()?, names))
}

/// Whether a file without section headers ends with a section header table after `start` that only
/// the ELF header no longer refers to.
pub(super) fn forgotten_sections(draft: &Draft<'_>, start: u64) -> bool {
    /// Every linked file has at least a null section, one of code, and one of names.
    const LEAST: usize = 3;
    if !draft.sections.is_empty() {
        return false;
    }
    let len = draft.view.len() as u64;
    let mut at = len;
    let mut count = 0;
    while let Some(before) = at.checked_sub(SHDR_BYTES as u64).filter(|before| *before >= start) {
        at = before;
        count += 1;
        let Some(bytes) = draft.view.read(at, SHDR_BYTES as u64) else {
            return false;
        };
        let Ok(section) = SectionHeader::decode(Bytes::new(&bytes, draft.endian), 0) else {
            return false;
        };
        if section == SectionHeader::default() {
            return count >= LEAST;
        }
        if section.kind == SHT_NULL || (section.has_bytes() && section.file_end() > at) {
            return false;
        }
    }
    false
}
