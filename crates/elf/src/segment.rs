//! Program headers, of either class.

use std::ops::Range;

use backtrail_wire::{Bytes, Cursor};

use crate::constants::*;
use crate::header::{Class, Header, Kind, to_usize};
use crate::section::section_0;
use crate::source::Source;
use crate::{Error, ErrorKind, Result};

/// A program header (gABI 4.3, "Program header").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// `p_offset`: offset of its bytes in the file.
    pub offset: u64,
    /// `p_vaddr`.
    pub vaddr: u64,
    /// `p_filesz`: bytes in the file.
    pub filesz: u64,
    /// `p_memsz`: bytes in memory.
    pub memsz: u64,
    /// `p_align`.
    pub align: u64,
}

impl Segment {
    /// Whether it is loaded into memory (`PT_LOAD`).
    pub fn is_load(&self) -> bool {
        self.kind == PT_LOAD
    }

    /// Whether its memory can be executed (`PF_X`).
    pub fn is_executable(&self) -> bool {
        self.flags & PF_X != 0
    }

    /// Whether its memory can be written to (`PF_W`).
    pub fn is_writable(&self) -> bool {
        self.flags & PF_W != 0
    }

    pub(crate) fn memory(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.memsz)
    }
}

/// The most program headers that Linux loads a program with: 64 KiB of them. Many look-ups try one
/// after the other.
const MOST_LOADED: u64 = 65536 / 56;

pub(crate) fn segments(source: Source<'_>, header: &Header) -> Result<Vec<Segment>> {
    let count = match header.phnum {
        PN_XNUM => section_0(source, header).map_or(u64::from(PN_XNUM), |section| section.info.into()),
        count => u64::from(count),
    };
    if count == 0 {
        return Ok(Vec::new());
    }
    // A core has one for each mapping.
    if header.kind != Kind::Core && count > MOST_LOADED {
        return Err(Error::at(ErrorKind::TooManyHeaders(count), header.phoff));
    }
    let size = header.class.program_header_bytes();
    if usize::from(header.phentsize) != size {
        // e_phentsize is there.
        let at = header.class.header_bytes() as u64 - 10;
        return Err(Error::at(ErrorKind::ProgramHeaderSize(header.phentsize), at));
    }
    let table = source.slice(to_usize(header.phoff), to_usize(count.saturating_mul(size as u64)))?;
    let table = Bytes::new(table, header.endian);
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
