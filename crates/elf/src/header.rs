//! The ELF header, of either class.

use backtrail_arch::{Arch, aarch64, s390x, x86_64};
use backtrail_wire::{Bytes, Cursor, Endian};

use crate::constants::*;
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

    pub(crate) fn word(self, cursor: &mut Cursor<'_>) -> Result<u64> {
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

/// The type of an ELF file (`e_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `ET_REL`: an object file, without segments or section addresses.
    Relocatable,
    /// `ET_EXEC`: loaded where its headers say.
    Executable,
    /// `ET_DYN`: a shared library or a position-independent executable.
    Shared,
    /// `ET_CORE`: the memory of a process.
    Core,
}

/// The ELF header's fields that are used here.
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
    /// Parses the header of a file for any machine.
    pub(crate) fn parse(raw: &[u8]) -> Result<Header> {
        let (class, endian) = identification(raw)?;
        let bytes = Bytes::new(raw, endian);
        bytes.slice(0, class.header_bytes())?;
        let kind = match bytes.u16(16)? {
            ET_REL => Kind::Relocatable,
            ET_EXEC => Kind::Executable,
            ET_DYN => Kind::Shared,
            ET_CORE => Kind::Core,
            other => return Err(Error::at(ErrorKind::Type(other), 16)),
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

    /// Parses the header of a file for a supported CPU, all of which are 64-bit, and returns that
    /// CPU.
    pub(crate) fn with_arch(raw: &[u8]) -> Result<(Header, &'static Arch)> {
        let (class, endian) = identification(raw)?;
        if class != Class::Elf64 {
            return Err(Error::at(ErrorKind::Class(ELFCLASS32), 4));
        }
        let bytes = Bytes::new(raw, endian);
        bytes.slice(0, class.header_bytes())?;
        let machine = bytes.u16(18)?;
        let arch = match (machine, endian) {
            (EM_X86_64, Endian::Little) => &x86_64::ARCH,
            (EM_AARCH64, _) => &aarch64::ARCH,
            (EM_S390, Endian::Big) => &s390x::ARCH,
            (EM_X86_64 | EM_S390, _) => return Err(Error::at(ErrorKind::MachineByteOrder(machine), 18)),
            _ => return Err(Error::at(ErrorKind::Machine(machine), 18)),
        };
        Ok((Header::parse(raw)?, arch))
    }
}

/// `e_ident`
fn identification(raw: &[u8]) -> Result<(Class, Endian)> {
    if !raw.starts_with(b"\x7fELF") {
        return Err(Error::at(ErrorKind::NotElf, 0));
    }
    let ident = Bytes::new(raw, Endian::Little);
    let class = match ident.u8(4)? {
        ELFCLASS32 => Class::Elf32,
        ELFCLASS64 => Class::Elf64,
        other => return Err(Error::at(ErrorKind::Class(other), 4)),
    };
    let endian = match ident.u8(5)? {
        ELFDATA2LSB => Endian::Little,
        ELFDATA2MSB => Endian::Big,
        other => return Err(Error::at(ErrorKind::ByteOrder(other), 5)),
    };
    Ok((class, endian))
}

/// An offset or a size. A value that does not fit is past the end of every input anyway.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
