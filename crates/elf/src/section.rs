//! Section headers, of either class.

use std::ops::Range;

use backtrail_wire::Bytes;

use crate::Result;
use crate::constants::*;
use crate::header::{Class, Header, to_usize};
use crate::source::Source;

/// A section header (gABI 4.3, "Section header").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// The name; empty if the string table does not contain it.
    pub name: &'a [u8],
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_addr`.
    pub address: u64,
    /// `sh_offset`.
    pub offset: u64,
    /// `sh_size`.
    pub size: u64,
    /// `sh_link`.
    pub link: u32,
    /// `sh_info`.
    pub info: u32,
    /// `sh_addralign`.
    pub align: u64,
}

impl Section<'_> {
    /// Whether it is loaded into memory (`SHF_ALLOC`).
    pub fn is_loaded(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }

    /// Whether it contains instructions (`SHF_EXECINSTR`).
    pub fn is_code(&self) -> bool {
        self.flags & SHF_EXECINSTR != 0
    }

    /// Whether the file has its bytes: not so in a debug file that was split off (`SHT_NOBITS`).
    pub fn has_bytes(&self) -> bool {
        self.kind != SHT_NOBITS
    }

    /// The addresses that it is loaded at.
    pub fn memory(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }
}

/// The section headers that the file contains; none if they make no sense.
pub(crate) fn sections<'a>(source: Source<'a>, header: &Header) -> Vec<Section<'a>> {
    let size = header.class.section_header_bytes();
    if header.shoff == 0 || usize::from(header.shentsize) != size {
        return Vec::new();
    }
    let promised = match header.shnum {
        0 => section_0(source, header).map_or(0, |section| section.size),
        count => u64::from(count),
    };
    let room = (source.len() as u64).saturating_sub(header.shoff) / size as u64;
    let count = to_usize(promised.min(room));
    let Some(table) = source.up_to(to_usize(header.shoff), count.saturating_mul(size)) else {
        return Vec::new();
    };
    let table = Bytes::new(table, header.endian);
    let mut names_at = Vec::with_capacity(count);
    let mut sections: Vec<Section<'a>> = Vec::with_capacity(count);
    for index in 0..count {
        let Ok((section, name)) = section(table, header.class, index * size) else {
            break;
        };
        sections.push(section);
        names_at.push(name);
    }
    let strings = match header.shstrndx {
        SHN_XINDEX => section_0(source, header).map_or(0, |section| section.link.into()),
        index => u64::from(index),
    };
    let table = sections.get(to_usize(strings)).filter(|table| table.kind == SHT_STRTAB);
    let Some(names) = table.and_then(|table| source.slice(to_usize(table.offset), to_usize(table.size)).ok()) else {
        return sections;
    };
    let names = Bytes::new(names, header.endian);
    for (section, name) in sections.iter_mut().zip(names_at) {
        section.name = names.cursor(name as usize).c_str().unwrap_or_default();
    }
    sections
}

/// A section without its name, and the name's offset in the string table.
fn section<'a>(bytes: Bytes<'a>, class: Class, at: usize) -> Result<(Section<'a>, u32)> {
    let mut cursor = bytes.cursor(at);
    let name = cursor.u32()?;
    let section = Section {
        name: &[],
        kind: cursor.u32()?,
        flags: class.word(&mut cursor)?,
        address: class.word(&mut cursor)?,
        offset: class.word(&mut cursor)?,
        size: class.word(&mut cursor)?,
        link: cursor.u32()?,
        info: cursor.u32()?,
        align: class.word(&mut cursor)?,
    };
    Ok((section, name))
}

/// Section 0, which contains numbers that do not fit into the header.
pub(crate) fn section_0<'a>(source: Source<'a>, header: &Header) -> Option<Section<'a>> {
    if header.shoff == 0 {
        return None;
    }
    let bytes = source
        .slice(to_usize(header.shoff), header.class.section_header_bytes())
        .ok()?;
    let (section, _) = section(Bytes::new(bytes, header.endian), header.class, 0).ok()?;
    Some(section)
}
