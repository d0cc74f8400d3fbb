//! Symbol tables as stored in the file: every entry, in order.

use backtrail_wire::Bytes;

use crate::File;
use crate::Section;
use crate::constants::*;
use crate::header::Class;
use crate::header::to_usize;

/// `SHN_ABS`
const SHN_ABS: u16 = 0xfff1;
/// `STT_NOTYPE`
const STT_NOTYPE: u8 = 0;
/// `STT_OBJECT`
const STT_OBJECT: u8 = 1;
/// `STT_FILE`
const STT_FILE: u8 = 4;
/// `STB_LOCAL`
const STB_LOCAL: u8 = 0;

/// Which of a file's symbol tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `.symtab`
    Full,
    /// `.dynsym`
    Dynamic,
}

/// An entry of a symbol table (gABI 4.3, "Symbol Table").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolEntry<'a> {
    /// Its name; empty if it has none or it cannot be read.
    pub name: &'a [u8],
    /// `st_value`
    pub value: u64,
    /// `STT_OBJECT`
    pub is_object: bool,
    /// `STT_FUNC`
    pub is_function: bool,
    /// `STT_NOTYPE`: as linkers make for the ends of sections.
    pub has_no_type: bool,
    /// `STT_FILE`: the name is the source file of the local symbols that follow.
    pub is_file: bool,
    /// `STB_LOCAL`: other objects cannot refer to it.
    pub is_local: bool,
    /// `SHN_UNDEF`: it is defined elsewhere.
    pub is_undefined: bool,
    /// `SHN_ABS`: its value is not an address.
    pub is_absolute: bool,
}

/// Longer string tables of `.symtab` are not searched for an object: reading one takes too long for
/// what it may lead to.
const LONGEST_SEARCHED: u64 = 64 << 20;

/// Limits of the objects that are listed, and of the bytes of their names: many symbols may share
/// one long name.
const MOST_OBJECTS: usize = 1 << 12;
const LONGEST_NAME: usize = 1 << 8;

impl<'a> File<'a> {
    /// The address (svma) of an object that the file exports.
    pub fn exported_object(&self, name: &str) -> Option<u64> {
        self.object_in(Table::Dynamic, name)
    }

    /// The names and addresses (svma) of the objects that the file exports under names that begin
    /// with `prefix`: the first thousands of them, without those whose names are very long.
    pub fn exported_objects(&self, prefix: &str) -> Vec<(String, u64)> {
        let Some((symbols, strings)) = self.symbol_table(Table::Dynamic) else {
            return Vec::new();
        };
        if memchr::memmem::find(strings, prefix.as_bytes()).is_none() {
            return Vec::new();
        }
        let is_named = |name: &[u8]| name.starts_with(prefix.as_bytes()) && name.len() <= LONGEST_NAME;
        let objects = symbols.filter(|symbol| symbol.is_object && is_named(symbol.name));
        let defined = objects.filter(|symbol| !symbol.is_undefined && !symbol.is_absolute);
        let named = defined.map(|symbol| (String::from_utf8_lossy(symbol.name).into_owned(), symbol.value));
        named.take(MOST_OBJECTS).collect()
    }

    /// The address (svma) of an object, whether or not it is exported.
    pub fn object(&self, name: &str) -> Option<u64> {
        let is_short = |section: &Section<'_>| {
            let strings = self.sections().get(to_usize(section.link.into()));
            section.kind == SHT_SYMTAB && strings.is_some_and(|strings| strings.size <= LONGEST_SEARCHED)
        };
        let full = || match self.sections().iter().any(is_short) {
            true => self.object_in(Table::Full, name),
            false => None,
        };
        self.exported_object(name).or_else(full)
    }

    fn object_in(&self, table: Table, name: &str) -> Option<u64> {
        let (mut symbols, strings) = self.symbol_table(table)?;
        // Most files do not have it, which their strings show faster than their symbols.
        memchr::memmem::find(strings, name.as_bytes())?;
        let found = symbols.find(|symbol| symbol.is_object && symbol.name == name.as_bytes())?;
        (!found.is_undefined && !found.is_absolute).then_some(found.value)
    }

    /// The entries of a symbol table, and the string table of their names. `None` if the file has
    /// no such table or none of its bytes.
    pub fn symbol_table(&self, table: Table) -> Option<(impl Iterator<Item = SymbolEntry<'a>> + use<'a>, &'a [u8])> {
        let kind = match table {
            Table::Full => SHT_SYMTAB,
            Table::Dynamic => SHT_DYNSYM,
        };
        let section = self.sections().iter().find(|section| section.kind == kind)?;
        self.budget()
            .allows_symbols(section.size / self.class().symbol_bytes() as u64)
            .ok()?;
        let entries = Bytes::new(self.raw(section).ok()??, self.endian());
        let strings = self.raw(self.sections().get(to_usize(section.link.into()))?).ok()??;
        let class = self.class();
        let symbols = (0..entries.len() / class.symbol_bytes()).map_while(move |index| {
            let raw = RawSymbol::read(entries, class, index)?;
            Some(raw.entry(Bytes::new(strings, entries.endian())))
        });
        Some((symbols, strings))
    }
}

/// An entry as stored in the file.
pub(crate) struct RawSymbol {
    name: u32,
    info: u8,
    /// `st_shndx`
    pub(crate) section: u16,
    /// `st_value`
    pub(crate) value: u64,
}

impl Class {
    fn symbol_bytes(self) -> usize {
        match self {
            Class::Elf32 => SYM32_BYTES,
            Class::Elf64 => SYM_BYTES,
        }
    }
}

impl RawSymbol {
    /// The symbol with this number; `None` past the end.
    pub(crate) fn read(entries: Bytes<'_>, class: Class, index: usize) -> Option<RawSymbol> {
        let at = index.checked_mul(class.symbol_bytes())?;
        let name = entries.u32(at).ok()?;
        let (info, section, value) = match class {
            Class::Elf32 => (at + 12, at + 14, entries.u32(at + 4).ok()?.into()),
            Class::Elf64 => (at + 4, at + 6, entries.u64(at + 8).ok()?),
        };
        Some(RawSymbol {
            name,
            info: entries.u8(info).ok()?,
            section: entries.u16(section).ok()?,
            value,
        })
    }

    fn entry<'a>(&self, strings: Bytes<'a>) -> SymbolEntry<'a> {
        let (binding, kind) = (self.info >> 4, self.info & 0xf);
        SymbolEntry {
            name: strings.cursor(to_usize(self.name.into())).c_str().unwrap_or_default(),
            value: self.value,
            is_object: kind == STT_OBJECT,
            is_function: kind == STT_FUNC,
            has_no_type: kind == STT_NOTYPE,
            is_file: kind == STT_FILE,
            is_local: binding == STB_LOCAL,
            is_undefined: self.section == SHN_UNDEF,
            is_absolute: self.section == SHN_ABS,
        }
    }
}
