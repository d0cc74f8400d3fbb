//! Relocations of relocatable files (gABI 4.3, "Relocation"), as far as tables about code have them.

use backtrail_arch::{Arch, aarch64, s390x, x86_64};
use backtrail_wire::{Bytes, Endian};

use crate::constants::*;
use crate::image::to_usize;
use crate::{Error, ErrorKind, Image, Kind, Result, Section, SectionData};

impl<'a> Image<'a> {
    /// The contents of a section as a linker would leave them if it placed every section at its address in this file,
    /// which is 0 in a relocatable one. In other files the same as [`Image::contents`].
    ///
    /// Fails where a relocation has a type that tables about code don't have, or lies outside the section, and where
    /// relocations come without addends or in LLVM's compact form.
    pub fn relocated(&self, section: &Section<'a>) -> Result<Option<SectionData<'a>>> {
        self.relocate(section, false)
    }

    /// The first section with this name, as [`Image::relocated`] gives it; a section `.debug_*` is also found under its older
    /// compressed name. Relocations of other types, those of places in memory among them, leave their bytes as they are.
    pub fn debug_section(&self, name: &str) -> Result<Option<SectionData<'a>>> {
        match self.section_header(name) {
            Some(section) if self.kind() == Kind::Relocatable => self.relocate(section, true),
            _ => self.section(name),
        }
    }

    fn relocate(&self, section: &Section<'a>, lenient: bool) -> Result<Option<SectionData<'a>>> {
        let Some(mut contents) = self.contents(section)? else {
            return Ok(None);
        };
        if self.kind() != Kind::Relocatable {
            return Ok(Some(contents));
        }
        let sections = self.sections();
        let index = sections.iter().position(|other| std::ptr::eq(other, section));
        let index = index.or_else(|| sections.iter().position(|other| other == section));
        let applies = |table: &&Section<'_>| {
            matches!(table.kind, SHT_RELA | SHT_REL | SHT_CREL) && index == Some(table.info as usize)
        };
        for table in sections.iter().filter(applies) {
            if table.kind != SHT_RELA {
                return Err(Error::new(ErrorKind::RelocationSort(table.kind), table.offset));
            }
            self.apply(table, section.address, lenient, contents.data.to_mut())?;
        }
        Ok(Some(contents))
    }

    fn apply(&self, table: &Section<'a>, address: u64, lenient: bool, data: &mut [u8]) -> Result<()> {
        let Some(entries) = self.raw(table)? else { return Ok(()) };
        let symbols = match self.sections().get(table.link as usize) {
            Some(symbols) => self.raw(symbols)?.unwrap_or_default(),
            None => &[],
        };
        // Where there are too many sections for the symbols to number.
        let is_extension = |other: &&Section<'_>| other.kind == SHT_SYMTAB_SHNDX && other.link == table.link;
        let extended = self.sections().iter().find(is_extension);
        let extended = extended.map_or(Ok(None), |extended| self.raw(extended))?;
        let (entries, symbols) = (self.bytes_in_order(entries), self.bytes_in_order(symbols));
        let extended = self.bytes_in_order(extended.unwrap_or_default());
        for at in (0..entries.len() / RELA_BYTES).map(|entry| entry * RELA_BYTES) {
            let file_offset = table.offset.saturating_add(at as u64);
            let (offset, info) = (entries.u64(at)?, entries.u64(at + 8)?);
            let field = match Field::of(self.arch(), info as u32) {
                Some(field) => field,
                None if lenient => continue,
                None => return Err(Error::new(ErrorKind::Relocation(info as u32), file_offset)),
            };
            let Some(field_data) = to_usize(offset)
                .checked_add(field.bytes)
                .and_then(|end| data.get_mut(to_usize(offset)..end))
            else {
                return Err(Error::new(ErrorKind::RelocationOffset(offset), file_offset));
            };
            let symbol = self.symbol_value(symbols, extended, (info >> 32) as usize);
            let symbol = symbol.ok_or(Error::new(ErrorKind::RelocationSymbol(info >> 32), file_offset))?;
            let place = if field.relative {
                address.wrapping_add(offset)
            } else {
                0
            };
            let value = symbol.wrapping_add(entries.u64(at + 16)?).wrapping_sub(place);
            write(field_data, value, self.endian());
        }
        Ok(())
    }

    /// `st_value` with the address of its section; 0 for what is not defined here.
    fn symbol_value(&self, symbols: Bytes<'_>, extended: Bytes<'_>, index: usize) -> Option<u64> {
        let at = index.checked_mul(SYM_BYTES)?;
        if index == 0 {
            return Some(0);
        }
        let (section, value) = (symbols.u16(at + 6).ok()?, symbols.u64(at + 8).ok()?);
        let section = match section {
            SHN_XINDEX => self.sections().get(extended.u32(index.checked_mul(4)?).ok()? as usize),
            SHN_UNDEF | SHN_LORESERVE.. => None,
            index => self.sections().get(usize::from(index)),
        };
        Some(value.wrapping_add(section.map_or(0, |section| section.address)))
    }
}

/// What a relocation changes: so many bytes, to a distance from their own place or to an address.
#[derive(Clone, Copy)]
struct Field {
    bytes: usize,
    relative: bool,
}

impl Field {
    /// By the numbers of the processor supplements; `None` for a type that only code has.
    fn of(arch: &Arch, kind: u32) -> Option<Field> {
        let [abs32, abs64, relative32, relative64] = match arch.name {
            name if name == x86_64::ARCH.name => X86_64_RELOCATIONS,
            name if name == aarch64::ARCH.name => AARCH64_RELOCATIONS,
            name if name == s390x::ARCH.name => S390X_RELOCATIONS,
            _ => return None,
        };
        let (bytes, relative) = match kind {
            R_NONE => (0, false),
            kind if kind == abs32 => (4, false),
            kind if kind == abs64 => (8, false),
            kind if kind == relative32 => (4, true),
            kind if kind == relative64 => (8, true),
            _ => return None,
        };
        Some(Field { bytes, relative })
    }
}

fn write(field: &mut [u8], value: u64, endian: Endian) {
    let len = field.len();
    match endian {
        Endian::Little => field.copy_from_slice(&value.to_le_bytes()[..len]),
        Endian::Big => field.copy_from_slice(&value.to_be_bytes()[8 - len..]),
    }
}
