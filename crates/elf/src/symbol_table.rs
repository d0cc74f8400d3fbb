//! Symbol tables as they are in the file: every entry, in its place.

use backtrail_wire::Bytes;

use crate::Image;
use crate::constants::*;
use crate::image::to_usize;

/// `SHN_ABS`
const SHN_ABS: u16 = 0xfff1;
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
    /// Its name; empty where it has none that can be read.
    pub name: &'a [u8],
    /// `st_value`
    pub value: u64,
    /// `STT_OBJECT`
    pub is_object: bool,
    /// `STT_FUNC`
    pub is_function: bool,
    /// `STT_FILE`: the name is that of the source of the local symbols that follow.
    pub is_file: bool,
    /// `STB_LOCAL`: no other object can mean it.
    pub is_local: bool,
    /// `SHN_UNDEF`: it is defined elsewhere.
    pub is_undefined: bool,
    /// `SHN_ABS`: its value is no address.
    pub is_absolute: bool,
}

impl<'a> Image<'a> {
    /// The entries of a symbol table, and the string table of their names. `None` where the file has no such table or
    /// holds no bytes of it.
    pub fn symbol_table(&self, table: Table) -> Option<(impl Iterator<Item = SymbolEntry<'a>> + use<'a>, &'a [u8])> {
        let kind = match table {
            Table::Full => SHT_SYMTAB,
            Table::Dynamic => SHT_DYNSYM,
        };
        let section = self.sections().iter().find(|section| section.kind == kind)?;
        let entries = Bytes::new(self.raw(section).ok()??, self.endian());
        let strings = self.raw(self.sections().get(to_usize(section.link.into()))?).ok()??;
        let symbols = (0..entries.len() / SYM_BYTES).map_while(move |index| entry(entries, index * SYM_BYTES, strings));
        Some((symbols, strings))
    }
}

fn entry<'a>(entries: Bytes<'a>, at: usize, strings: &'a [u8]) -> Option<SymbolEntry<'a>> {
    let name = Bytes::new(strings, entries.endian()).cursor(to_usize(entries.u32(at).ok()?.into()));
    let info = entries.u8(at + 4).ok()?;
    let (binding, kind) = (info >> 4, info & 0xf);
    let section = entries.u16(at + 6).ok()?;
    Some(SymbolEntry {
        name: { name }.c_str().unwrap_or_default(),
        value: entries.u64(at + 8).ok()?,
        is_object: kind == STT_OBJECT,
        is_function: kind == STT_FUNC,
        is_file: kind == STT_FILE,
        is_local: binding == STB_LOCAL,
        is_undefined: section == SHN_UNDEF,
        is_absolute: section == SHN_ABS,
    })
}
