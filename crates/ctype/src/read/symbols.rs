//! The types of symbols ("Data objects", "Functions", "Symbol indexes").

use std::ops::Range;

use super::{Dict, TypeId};
use crate::constants::{Flags, SKIPPED_SYMBOLS, SymbolKind};
use crate::error::Result;

/// A symbol of the file around the section that has an entry in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'s> {
    /// Its name.
    pub name: &'s [u8],
    /// The table that it is in.
    pub kind: SymbolKind,
}

impl<'s> Symbol<'s> {
    /// The symbol, if it has an entry in the tables: undefined symbols, symbols without a name or
    /// with one that linkers define, and absolute objects with the value 0 have none.
    pub fn counted(
        name: &'s [u8],
        kind: SymbolKind,
        undefined: bool,
        absolute: bool,
        value: u64,
    ) -> Option<Symbol<'s>> {
        let made_by_linker = SKIPPED_SYMBOLS.contains(&name);
        let nothing = kind == SymbolKind::Object && absolute && value == 0;
        let counted = !(undefined || name.is_empty() || made_by_linker || nothing);
        counted.then_some(Symbol { name, kind })
    }
}

impl Dict<'_> {
    /// Whether the symbols of a kind are stored by name. If not, reading them requires the file's
    /// symbol table.
    pub fn is_indexed(&self, kind: SymbolKind) -> bool {
        !self.index(kind).is_empty()
    }

    /// The symbols of a kind that have a type, in the table's order. `symbols` are those of the
    /// file, in the order of the symbol table that [`Flags::DYNSTR`] selects; they are ignored if
    /// the dict has an index.
    pub fn symbol_types<'s>(
        &'s self,
        kind: SymbolKind,
        symbols: &'s [Symbol<'s>],
    ) -> impl Iterator<Item = Result<(&'s [u8], TypeId)>> {
        let indexed = self.is_indexed(kind);
        let mut named = self.index(kind).step_by(4);
        let mut counted = symbols.iter().filter(move |symbol| symbol.kind == kind);
        self.table(kind).step_by(self.layout().word).filter_map(move |at| {
            let name = match indexed {
                true => named.next().map(|at| self.string(self.body().u32(at as usize)?)),
                false => counted.next().map(|symbol| Ok(symbol.name)),
            };
            let name = name?;
            let raw = match self.layout().wide() {
                true => self.body().u32(at as usize),
                false => self.body().u16(at as usize).map(u32::from),
            };
            match raw {
                // Padding: the symbol has no type.
                Ok(0) => None,
                Ok(raw) => Some(name.map(|name| (name, TypeId::from_raw(raw, self.layout())))),
                Err(error) => Some(Err(self.located(error.into()))),
            }
        })
    }

    fn table(&self, kind: SymbolKind) -> Range<u32> {
        let header = self.header();
        match kind {
            SymbolKind::Object => header.objects.clone(),
            // Without the flag, the section has an older layout, which nothing reads.
            SymbolKind::Function if !header.flags.contains(Flags::NEWFUNCINFO) => 0..0,
            SymbolKind::Function => header.functions.clone(),
        }
    }

    fn index(&self, kind: SymbolKind) -> Range<u32> {
        match kind {
            SymbolKind::Object => self.header().object_index.clone(),
            SymbolKind::Function => self.header().function_index.clone(),
        }
    }
}
