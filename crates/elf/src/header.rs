//! The ELF header, and the tables that it leads to, of either class.

use backtrail_arch::{Arch, aarch64, s390x, x86_64};
use backtrail_wire::{Bytes, Cursor, Endian};

use crate::constants::*;
use crate::image::{Kind, Section, Segment, to_usize};
use crate::{Error, ErrorKind, Result};

/// `EI_CLASS`: whether addresses, offsets and sizes have 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// `ELFCLASS32`
    Elf32,
    /// `ELFCLASS64`
    Elf64,
}

impl Class {
    pub(crate) fn word_bytes(self) -> u8 {
        match self {
            Class::Elf32 => 4,
            Class::Elf64 => 8,
        }
    }

    fn word(self, cursor: &mut Cursor<'_>) -> Result<u64> {
        Ok(match self {
            Class::Elf32 => cursor.u32()?.into(),
            Class::Elf64 => cursor.u64()?,
        })
    }

    pub(crate) fn header_bytes(self) -> usize {
        match self {
            Class::Elf32 => EHDR32_BYTES,
            Class::Elf64 => EHDR_BYTES,
        }
    }

    pub(crate) fn program_header_bytes(self) -> usize {
        match self {
            Class::Elf32 => PHDR32_BYTES,
            Class::Elf64 => PHDR_BYTES,
        }
    }

    pub(crate) fn section_header_bytes(self) -> usize {
        match self {
            Class::Elf32 => SHDR32_BYTES,
            Class::Elf64 => SHDR_BYTES,
        }
    }
}

/// The ELF header, as far as it is used.
pub(crate) struct Header {
    pub(crate) class: Class,
    pub(crate) endian: Endian,
    pub(crate) machine: u16,
    pub(crate) kind: Kind,
    pub(crate) entry: u64,
    pub(crate) phoff: u64,
    pub(crate) phentsize: u16,
    pub(crate) phnum: u16,
    pub(crate) shoff: u64,
    pub(crate) shentsize: u16,
    pub(crate) shnum: u16,
    pub(crate) shstrndx: u16,
}

impl Header {
    /// Of any machine.
    pub(crate) fn parse(raw: &[u8]) -> Result<Header> {
        let (class, endian) = identification(raw)?;
        let bytes = Bytes::new(raw, endian);
        bytes.slice(0, class.header_bytes())?;
        let kind = match bytes.u16(16)? {
            ET_REL => Kind::Relocatable,
            ET_EXEC => Kind::Executable,
            ET_DYN => Kind::Shared,
            ET_CORE => Kind::Core,
            other => return Err(Error::new(ErrorKind::Type(other), 16)),
        };
        let mut cursor = bytes.cursor(24);
        let entry = class.word(&mut cursor)?;
        let phoff = class.word(&mut cursor)?;
        let shoff = class.word(&mut cursor)?;
        // e_flags and e_ehsize.
        cursor.slice(6)?;
        Ok(Header {
            class,
            endian,
            machine: bytes.u16(18)?,
            kind,
            entry,
            phoff,
            shoff,
            phentsize: cursor.u16()?,
            phnum: cursor.u16()?,
            shentsize: cursor.u16()?,
            shnum: cursor.u16()?,
            shstrndx: cursor.u16()?,
        })
    }

    /// Of a machine whose code is known, all of which have 64 bits; and that machine.
    pub(crate) fn with_arch(raw: &[u8]) -> Result<(Header, &'static Arch)> {
        let (class, endian) = identification(raw)?;
        if class != Class::Elf64 {
            return Err(Error::new(ErrorKind::Class(ELFCLASS32), 4));
        }
        let bytes = Bytes::new(raw, endian);
        bytes.slice(0, class.header_bytes())?;
        let machine = bytes.u16(18)?;
        let arch = match (machine, endian) {
            (EM_X86_64, Endian::Little) => &x86_64::ARCH,
            (EM_AARCH64, _) => &aarch64::ARCH,
            (EM_S390, Endian::Big) => &s390x::ARCH,
            (EM_X86_64 | EM_S390, _) => return Err(Error::new(ErrorKind::MachineByteOrder(machine), 18)),
            _ => return Err(Error::new(ErrorKind::Machine(machine), 18)),
        };
        Ok((Header::parse(raw)?, arch))
    }
}

/// `e_ident`
fn identification(raw: &[u8]) -> Result<(Class, Endian)> {
    if !raw.starts_with(b"\x7fELF") {
        return Err(Error::new(ErrorKind::NotElf, 0));
    }
    let ident = Bytes::new(raw, Endian::Little);
    let class = match ident.u8(4)? {
        ELFCLASS32 => Class::Elf32,
        ELFCLASS64 => Class::Elf64,
        other => return Err(Error::new(ErrorKind::Class(other), 4)),
    };
    let endian = match ident.u8(5)? {
        ELFDATA2LSB => Endian::Little,
        ELFDATA2MSB => Endian::Big,
        other => return Err(Error::new(ErrorKind::ByteOrder(other), 5)),
    };
    Ok((class, endian))
}

/// Section 0, which has the numbers for which the header has no room.
fn section_0<'a>(bytes: Bytes<'a>, header: &Header) -> Option<Section<'a>> {
    if header.shoff == 0 {
        return None;
    }
    let (section, _) = section(bytes, header.class, to_usize(header.shoff)).ok()?;
    Some(section)
}

pub(crate) fn segments(bytes: Bytes<'_>, header: &Header) -> Result<Vec<Segment>> {
    let count = match header.phnum {
        PN_XNUM => section_0(bytes, header).map_or(u64::from(PN_XNUM), |section| section.info.into()),
        count => u64::from(count),
    };
    if count == 0 {
        return Ok(Vec::new());
    }
    let size = header.class.program_header_bytes();
    if usize::from(header.phentsize) != size {
        // e_phentsize is there.
        let at = header.class.header_bytes() as u64 - 10;
        return Err(Error::new(ErrorKind::ProgramHeaderSize(header.phentsize), at));
    }
    let table = bytes.slice(to_usize(header.phoff), to_usize(count.saturating_mul(size as u64)))?;
    let table = Bytes::new(table, bytes.endian());
    (0..to_usize(count))
        .map(|index| segment(&mut table.cursor(index * size), header.class))
        .collect()
}

fn segment(cursor: &mut Cursor<'_>, class: Class) -> Result<Segment> {
    let kind = cursor.u32()?;
    let early = match class {
        Class::Elf32 => None,
        Class::Elf64 => Some(cursor.u32()?),
    };
    let offset = class.word(cursor)?;
    let vaddr = class.word(cursor)?;
    // p_paddr.
    class.word(cursor)?;
    let filesz = class.word(cursor)?;
    let memsz = class.word(cursor)?;
    let flags = match early {
        Some(flags) => flags,
        None => cursor.u32()?,
    };
    Ok(Segment {
        kind,
        flags,
        offset,
        vaddr,
        filesz,
        memsz,
        align: class.word(cursor)?,
    })
}

/// The section headers, as many as the file holds; none where they make no sense.
pub(crate) fn sections<'a>(bytes: Bytes<'a>, header: &Header) -> Vec<Section<'a>> {
    let size = header.class.section_header_bytes();
    if header.shoff == 0 || usize::from(header.shentsize) != size {
        return Vec::new();
    }
    let promised = match header.shnum {
        0 => section_0(bytes, header).map_or(0, |section| section.size),
        count => u64::from(count),
    };
    let room = (bytes.len() as u64).saturating_sub(header.shoff) / size as u64;
    let count = to_usize(promised.min(room));
    let mut names_at = Vec::with_capacity(count);
    let mut sections: Vec<Section<'a>> = Vec::with_capacity(count);
    for index in 0..count {
        let Ok((section, name)) = section(bytes, header.class, to_usize(header.shoff) + index * size) else {
            break;
        };
        sections.push(section);
        names_at.push(name);
    }
    let strings = match header.shstrndx {
        SHN_XINDEX => section_0(bytes, header).map_or(0, |section| section.link.into()),
        index => u64::from(index),
    };
    let table = sections.get(to_usize(strings)).filter(|table| table.kind == SHT_STRTAB);
    let Some(names) = table.and_then(|table| bytes.slice(to_usize(table.offset), to_usize(table.size)).ok()) else {
        return sections;
    };
    let names = Bytes::new(names, bytes.endian());
    for (section, name) in sections.iter_mut().zip(names_at) {
        section.name = names.cursor(name as usize).c_str().unwrap_or_default();
    }
    sections
}

/// A section whose name is not known yet, and where the name is.
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
