//! The linked file that a section is made for: its symbols, and the names that it has anyway.

use std::path::Path;

use backtrail_ctype::link::{LinkedSymbol, Symbols};
use backtrail_ctype::write::{self, ExternalStrings};
use backtrail_debuginfo::types::counted;
use backtrail_elf::{File, Table};
use backtrail_wire::Endian;

use crate::error::Failure;

/// What the linker of types borrows from the file.
pub(super) struct Around<'a> {
    table: Table,
    symbols: Vec<LinkedSymbol<'a>>,
    strings: ExternalStrings<'a>,
}

impl<'a> Around<'a> {
    /// Reads a linked file: its dynamic symbols, or all of them if `symtab` is set. `path` is for
    /// messages.
    pub(super) fn read(path: &Path, file: &File<'a>, symtab: bool) -> Result<Around<'a>, Failure> {
        let table = if symtab { Table::Full } else { Table::Dynamic };
        let mut around = Around {
            table,
            symbols: Vec::new(),
            strings: ExternalStrings::default(),
        };
        let Some((entries, strings)) = file.symbol_table(table) else {
            return match symtab {
                true => Err(Failure::of(path, "no symbol table").help("without --symtab, dynamic symbols are taken")),
                // A statically linked program.
                false => Ok(around),
            };
        };
        around.strings = ExternalStrings::new(strings);
        let mut source = &b""[..];
        for entry in entries {
            if entry.is_file {
                source = entry.name;
            }
            around.symbols.extend(counted(&entry).map(|symbol| LinkedSymbol {
                name: symbol.name,
                kind: symbol.kind,
                file: entry.is_local.then_some(source),
                address: (!entry.is_undefined && !entry.is_absolute).then_some(entry.value),
            }));
        }
        Ok(around)
    }

    /// How the section refers to the symbols.
    pub(super) fn symbols(&self) -> Symbols<'_> {
        match self.table {
            Table::Full => Symbols::Listed(&self.symbols),
            Table::Dynamic => Symbols::Numbered(&self.symbols),
        }
    }

    /// The same for a section that is read without the file.
    pub(super) fn symbols_by_name(&self) -> Symbols<'_> {
        Symbols::Listed(&self.symbols)
    }

    /// How the section is written.
    pub(super) fn options(&self, endian: Endian) -> write::Options<'_> {
        write::Options {
            strings: Some(&self.strings),
            dynamic: self.table == Table::Dynamic,
            ..write::Options::new(endian)
        }
    }
}
