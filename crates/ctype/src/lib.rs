//! The Compact C Type Format, versions 1, 2 and 3: read, measure, dump, print as C, find, compare;
//! version 3: write, link. BTF is read into the same ([`btf`]).
//!
//! A section holds one dict of types or an [`Archive`] of them: a parent with what units share, and
//! a child for each unit with types of its own. A [`Dict`] is opened once, with a pass over its
//! types that checks where each lies; all else is decoded when it is asked for, in place. [`Types`]
//! is a dict together with its parent: it looks ids up. [`graph::Graph`] is what is written
//! ([`write`]) and linked ([`link`]):
//!
//! ```
//! # use backtrail_ctype::{Lent, link, write};
//! # fn linked(objects: &[Vec<u8>]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//! let open = |bytes| link::Section::open(bytes, Lent::default());
//! let opened = objects.iter().map(|bytes| open(bytes)).collect::<Result<Vec<_>, _>>()?;
//! let units = opened.iter().map(|section| section.units(&[])).collect::<Result<Vec<_>, _>>()?.concat();
//! let linked = link::link(&units, &link::Options::default())?;
//! let section = linked.write(&write::Options::new(backtrail_wire::Endian::Little), 8)?;
//! # Ok(section)
//! # }
//! ```
//!
//! The crate knows no other format: string tables and symbols of the file around a section are lent
//! by the caller. Reading never panics, takes no more memory than a small multiple of the
//! (inflated) input, and inflates no further than deflate can have packed. References that go in
//! circles are errors.
#![forbid(unsafe_code)]

pub mod btf;
pub mod constants;
pub mod diff;
pub mod dump;
mod error;
pub mod find;
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
mod layout;
pub mod link;
mod measure;
pub mod print;
mod read;
mod spell;
pub mod threads;
pub mod write;

pub use constants::{Encoding, Flags, Kind, SymbolKind, Version};
pub use error::{Error, ErrorKind, Foreign, Result};
pub use measure::{AlignmentRule, Measures};
pub use read::{
    Archive, Array, Dict, Enumerator, Header, Lent, Member, Members, NameIndex, Slice, StructMember, Symbol, Type,
    TypeId, Types,
};
