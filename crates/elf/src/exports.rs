//! What a file exports: the symbols that other files can refer to, and their versions (Linux
//! Standard Base, "Symbol Versioning").

use std::collections::BTreeMap;

use backtrail_wire::Bytes;

use crate::File;
use crate::constants::*;
use crate::header::to_usize;
use crate::symbol_table::{SymbolEntry, Table};

/// `VER_FLG_BASE`: the file's own name, not a version.
const VER_FLG_BASE: u16 = 1;
/// Programs without a version get another symbol of this name.
const HIDDEN: u16 = 0x8000;
/// Functions of the compiler's start files, which older linkers exported.
const STARTUP: [&[u8]; 2] = [b"_init", b"_fini"];
/// Bytes of a definition.
const VERDEF_BYTES: usize = 20;

/// A symbol that other files can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The version that programs ask for if they were linked with it. A symbol can have several,
    /// each at an address of its own.
    pub version: Option<&'a [u8]>,
}

impl<'a> File<'a> {
    /// All functions and objects that the file exports. `None` without a dynamic symbol table.
    pub fn exports(&self) -> Option<Vec<Export<'a>>> {
        let (symbols, _) = self.symbol_table(Table::Dynamic)?;
        let names = self.version_names();
        let numbers = self.versions_of_symbols();
        let export = |(index, symbol): (usize, SymbolEntry<'a>)| {
            // Versions have absolute symbols of their names.
            let is_none = symbol.is_local || symbol.is_undefined || symbol.is_absolute || symbol.has_no_type;
            let is_exported = !is_none && !STARTUP.contains(&symbol.name);
            let number = || numbers?.u16(index.checked_mul(2)?).ok();
            is_exported.then(|| Export {
                name: symbol.name,
                version: number().and_then(|number| names.get(&(number & !HIDDEN)).copied()),
            })
        };
        Some(symbols.enumerate().filter_map(export).collect())
    }

    /// A number for each dynamic symbol.
    fn versions_of_symbols(&self) -> Option<Bytes<'a>> {
        let section = self.sections().iter().find(|section| section.kind == SHT_GNU_VERSYM)?;
        Some(Bytes::new(self.raw(section).ok()??, self.endian()))
    }

    /// The versions that the file defines, by their numbers; those read until one is damaged.
    fn version_names(&self) -> BTreeMap<u16, &'a [u8]> {
        let mut names = BTreeMap::new();
        let section = self.sections().iter().find(|section| section.kind == SHT_GNU_VERDEF);
        let strings = section.and_then(|section| self.sections().get(to_usize(section.link.into())));
        let raw = |section| {
            self.raw(section)
                .ok()
                .flatten()
                .map(|raw| Bytes::new(raw, self.endian()))
        };
        let (Some(definitions), Some(strings)) = (section.and_then(raw), strings.and_then(raw)) else {
            return names;
        };
        let mut at = 0;
        for _ in 0..definitions.len() / VERDEF_BYTES {
            let Some((number, flags, name, next)) = definition(definitions, at) else {
                break;
            };
            if flags & VER_FLG_BASE == 0
                && let Ok(name) = strings.cursor(to_usize(name.into())).c_str()
            {
                names.insert(number, name);
            }
            let Some(following) = at.checked_add(next).filter(|_| next > 0) else {
                break;
            };
            at = following;
        }
        names
    }
}

/// A definition's number, flags, name, and distance to the next one.
fn definition(definitions: Bytes<'_>, at: usize) -> Option<(u16, u16, u32, usize)> {
    let field = |offset: usize| at.checked_add(offset);
    let word = |offset| definitions.u32(field(offset)?).ok();
    let half = |offset| definitions.u16(field(offset)?).ok();
    let name = definitions.u32(field(to_usize(word(12)?.into()))?).ok()?;
    Some((half(4)?, half(2)?, name, to_usize(word(16)?.into())))
}
