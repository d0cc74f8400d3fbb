//! Relocations of relocatable files (gABI 4.3, "Relocation"), of the types that occur in tables
//! about code.

use backtrail_wire::{Bytes, Endian};

use crate::constants::*;
use crate::header::Class;
use crate::header::to_usize;
use crate::symbol_table::RawSymbol;
use crate::{Error, ErrorKind, File, Kind, Result, Section, SectionData};

impl<'a> File<'a> {
    /// The contents of a section as a linker would leave them if it placed every section at its
    /// address in this file, which is 0 in a relocatable one. For other files, the same as
    /// `Image::contents`.
    ///
    /// Fails if a relocation has a type that tables about code don't use, or lies outside the
    /// section; if the machine's relocations are not known; and if they are in LLVM's compact form.
    pub fn relocated(&self, section: &Section<'a>) -> Result<Option<SectionData<'a>>> {
        self.relocate(section, false)
    }

    /// The section with this name, relocated as by `Image::relocated`; a section `.debug_*` is
    /// also found by its older compressed name. Relocations of other types, including those of
    /// places in memory, leave their bytes unchanged.
    ///
    /// A relocatable file may have several: each type unit is in a group of its own, of which a
    /// linker keeps one. They are concatenated, as a linker would do.
    pub fn debug_section(&self, name: &str) -> Result<Option<SectionData<'a>>> {
        let of_name = |section: &&Section<'a>| section.name == name.as_bytes();
        let mut sections = match self.kind() {
            Kind::Relocatable => self.sections(),
            _ => &[],
        }
        .iter()
        .filter(of_name)
        .peekable();
        if sections.peek().is_none() {
            return self.section(name);
        }
        let mut all: Option<SectionData<'a>> = None;
        for section in sections {
            let next = self.relocate(section, true)?;
            match (&mut all, next) {
                (Some(all), Some(next)) => all.data.to_mut().extend_from_slice(&next.data),
                (None, Some(next)) => all = Some(next),
                (_, None) => {}
            }
        }
        Ok(all)
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
            if table.kind == SHT_CREL {
                return Err(Error::at(ErrorKind::RelocationSort(table.kind), table.offset));
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
        // Used if there are too many sections for the symbols to number.
        let is_extension = |other: &&Section<'_>| other.kind == SHT_SYMTAB_SHNDX && other.link == table.link;
        let extended = self.sections().iter().find(is_extension);
        let extended = extended.map_or(Ok(None), |extended| self.raw(extended))?;
        let (entries, symbols) = (self.bytes_in_order(entries), self.bytes_in_order(symbols));
        let extended = self.bytes_in_order(extended.unwrap_or_default());
        let form = Form {
            class: self.class(),
            addends: table.kind == SHT_RELA,
        };
        for at in (0..entries.len() / form.bytes()).map(|entry| entry * form.bytes()) {
            let file_offset = table.offset.saturating_add(at as u64);
            let relocation = form.read(entries, at)?;
            let (offset, kind) = (relocation.offset, relocation.kind);
            let field = match Field::of(self.machine(), kind) {
                Ok(Some(field)) => field,
                Ok(None) if lenient => continue,
                Ok(None) => return Err(Error::at(ErrorKind::Relocation(kind), file_offset)),
                Err(kind) => return Err(Error::at(kind, file_offset)),
            };
            let Some(field_data) = to_usize(offset)
                .checked_add(field.bytes)
                .and_then(|end| data.get_mut(to_usize(offset)..end))
            else {
                return Err(Error::at(ErrorKind::RelocationOffset(offset), file_offset));
            };
            let symbol = self.symbol_value(symbols, extended, relocation.symbol);
            let missing = ErrorKind::RelocationSymbol(relocation.symbol.into());
            let symbol = symbol.ok_or(Error::at(missing, file_offset))?;
            let addend = relocation.addend.unwrap_or_else(|| read(field_data, self.endian()));
            let place = if field.relative {
                address.wrapping_add(offset)
            } else {
                0
            };
            let value = symbol.wrapping_add(addend).wrapping_sub(place);
            write(field_data, value, self.endian());
        }
        Ok(())
    }

    /// `st_value` plus the address of its section; 0 if the symbol is not defined here.
    fn symbol_value(&self, symbols: Bytes<'_>, extended: Bytes<'_>, index: u32) -> Option<u64> {
        if index == 0 {
            return Some(0);
        }
        let index = index as usize;
        let symbol = RawSymbol::read(symbols, self.class(), index)?;
        let section = match symbol.section {
            SHN_XINDEX => self.sections().get(extended.u32(index.checked_mul(4)?).ok()? as usize),
            SHN_UNDEF | SHN_LORESERVE.. => None,
            index => self.sections().get(usize::from(index)),
        };
        Some(symbol.value.wrapping_add(section.map_or(0, |section| section.address)))
    }
}

/// The format of a relocation section.
#[derive(Clone, Copy)]
struct Form {
    class: Class,
    /// `SHT_RELA`
    addends: bool,
}

/// A relocation.
struct Relocation {
    offset: u64,
    /// The number of its symbol.
    symbol: u32,
    kind: u32,
    /// If `None`, the addend is in the field.
    addend: Option<u64>,
}

impl Form {
    fn bytes(self) -> usize {
        let words = if self.addends { 3 } else { 2 };
        words * usize::from(self.class.word_bytes())
    }

    fn read(self, entries: Bytes<'_>, at: usize) -> Result<Relocation> {
        Ok(match self.class {
            Class::Elf32 => {
                let info = entries.u32(at + 4)?;
                let addend = self.addends.then(|| entries.u32(at + 8)).transpose()?;
                Relocation {
                    offset: entries.u32(at)?.into(),
                    symbol: info >> 8,
                    kind: info & 0xff,
                    // Signed; fields are no wider.
                    addend: addend.map(u64::from),
                }
            }
            Class::Elf64 => {
                let info = entries.u64(at + 8)?;
                Relocation {
                    offset: entries.u64(at)?,
                    symbol: (info >> 32) as u32,
                    kind: info as u32,
                    addend: self.addends.then(|| entries.u64(at + 16)).transpose()?,
                }
            }
        })
    }
}

/// The field that a relocation changes: its width, and whether it holds a distance from its own
/// place or an address.
#[derive(Clone, Copy)]
struct Field {
    bytes: usize,
    relative: bool,
}

impl Field {
    /// From the numbers of the processor supplements; `None` for a type that only code uses.
    fn of(machine: u16, kind: u32) -> Result<Option<Field>, ErrorKind> {
        if kind == R_NONE {
            return Ok(Some(Field {
                bytes: 0,
                relative: false,
            }));
        }
        let [abs32, abs64, relative32, relative64] = match machine {
            EM_X86_64 => X86_64_RELOCATIONS,
            EM_AARCH64 => AARCH64_RELOCATIONS,
            EM_S390 => S390X_RELOCATIONS,
            EM_386 => I386_RELOCATIONS,
            EM_ARM => ARM_RELOCATIONS,
            EM_PPC => PPC_RELOCATIONS,
            EM_PPC64 => PPC64_RELOCATIONS,
            other => return Err(ErrorKind::RelocationMachine(other)),
        };
        let (bytes, relative) = match kind {
            kind if kind == abs32 => (4, false),
            kind if kind == abs64 => (8, false),
            kind if kind == relative32 => (4, true),
            kind if kind == relative64 => (8, true),
            _ => return Ok(None),
        };
        Ok(Some(Field { bytes, relative }))
    }
}

fn read(field: &[u8], endian: Endian) -> u64 {
    let byte = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    match endian {
        Endian::Little => field.iter().rev().fold(0, byte),
        Endian::Big => field.iter().fold(0, byte),
    }
}

fn write(field: &mut [u8], value: u64, endian: Endian) {
    let len = field.len();
    match endian {
        Endian::Little => field.copy_from_slice(&value.to_le_bytes()[..len]),
        Endian::Big => field.copy_from_slice(&value.to_be_bytes()[8 - len..]),
    }
}
