//! Writing version 3: dicts, and archives of dicts.

mod archive;
mod dict;
mod pack;
mod sink;
mod strings;

use core::fmt;

use backtrail_wire::Endian;

pub use archive::archive;
pub use dict::dict;
pub use strings::ExternalStrings;

use crate::constants::{Flags, Kind, SymbolKind};
use crate::error::Result;
use crate::graph::Graph;
use crate::read::{Symbol, TypeId, Types};

/// The contents of a dict to write.
#[derive(Clone, Debug, Default)]
pub struct Contents<'a> {
    /// Its types.
    pub types: Graph<'a>,
    /// The name of the parent among the members of the archive; empty if there is no parent.
    pub parent_name: &'a [u8],
    /// The label in the parent up to which it is used; empty for none.
    pub parent_label: &'a [u8],
    /// The name of the unit; empty for none.
    pub cu_name: &'a [u8],
    /// Labels, and the last type of each.
    pub labels: Vec<(&'a [u8], TypeId)>,
    /// The types of data objects.
    pub objects: Table<'a>,
    /// The types of functions.
    pub functions: Table<'a>,
    /// Variables and their types. They are written sorted by name, as look-ups require.
    pub variables: Vec<(&'a [u8], TypeId)>,
}

/// The types of symbols ("Data objects", "Functions", "Symbol indexes"); the id 0 for symbols
/// without a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table<'a> {
    /// For the symbols that have an entry in the tables ([`Symbol::counted`]), in their order;
    /// symbols after the last have no type.
    Numbered(Vec<TypeId>),
    /// By name.
    Named(Vec<(&'a [u8], TypeId)>),
}

impl Default for Table<'_> {
    fn default() -> Self {
        Table::Numbered(Vec::new())
    }
}

impl<'a> Contents<'a> {
    /// Reads the contents of a dict, to write them again. `symbols` are those of its file, as for
    /// [`crate::Dict::symbol_types`]. Names in external strings become the dict's own strings
    /// unless the same strings are passed for writing.
    pub fn read(types: Types<'a>, symbols: &'a [Symbol<'a>]) -> Result<Contents<'a>> {
        let dict = types.dict();
        let table = |kind| -> Result<Table<'a>> {
            let pairs = dict.symbol_types(kind, symbols).collect::<Result<_>>()?;
            Ok(Table::Named(pairs))
        };
        Ok(Contents {
            types: Graph::read(types)?,
            parent_name: dict.parent_name()?.unwrap_or_default(),
            parent_label: dict.parent_label()?.unwrap_or_default(),
            cu_name: dict.cu_name()?.unwrap_or_default(),
            labels: dict.labels().collect::<Result<_>>()?,
            objects: table(SymbolKind::Object)?,
            functions: table(SymbolKind::Function)?,
            variables: dict.variables().collect::<Result<_>>()?,
        })
    }
}

/// Options for writing dicts.
#[derive(Clone, Copy, Debug)]
pub struct Options<'s> {
    /// The byte order of the file's machine.
    pub endian: Endian,
    /// Strings of the file, to which dicts may refer.
    pub strings: Option<&'s ExternalStrings<'s>>,
    /// Whether those strings, and the symbols of numbered tables, are those of `.dynstr` and
    /// `.dynsym` ([`Flags::DYNSTR`]).
    pub dynamic: bool,
    /// Dicts of at least this many bytes are compressed, if that makes them smaller.
    pub compress_from: usize,
    /// The compression level, 0 to 9. Large dicts are compressed at level 6 at most.
    pub level: u32,
}

impl Options<'_> {
    /// Options without external strings, which compress every dict that gets smaller.
    pub fn new(endian: Endian) -> Options<'static> {
        Options {
            endian,
            strings: None,
            dynamic: false,
            compress_from: 0,
            level: 9,
        }
    }

    fn flags(&self) -> u8 {
        Flags::NEWFUNCINFO.0 | if self.dynamic { Flags::DYNSTR.0 } else { 0 }
    }
}

/// Why types can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The type with this id has too many members, values or arguments: this number, with a limit
    /// of 0xffffff.
    TooMany(TypeId, usize),
    /// A reference to a type with this id, which does not exist.
    NoType(TypeId),
    /// The type with this id has a number that the format has no room for.
    Number(TypeId),
    /// The kind does not fit the contents: only integers and floats are numbers, only structs and
    /// unions have members, and so on.
    Kind(TypeId, Kind),
    /// The name contains a zero byte.
    Name(TypeId),
    /// The dict is larger than 2 GiB.
    TooLarge,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WriteError::TooMany(id, count) => {
                write!(f, "type {id} has {count} members, more than the format can count")
            }
            WriteError::NoType(id) => write!(f, "no type has the id {id}, which is referred to"),
            WriteError::Number(id) => write!(f, "a number of type {id} is too large for the format"),
            WriteError::Kind(id, kind) => write!(f, "type {id} can't be a {}", kind.name()),
            WriteError::Name(id) => write!(f, "the name of type {id}, or of a part of it, has a zero byte"),
            WriteError::TooLarge => f.write_str("types of more than 2 GiB"),
        }
    }
}

impl core::error::Error for WriteError {}
