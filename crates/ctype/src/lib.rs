//! The Compact C Type Format, versions 1, 2 and 3: read, measure, dump, print as C, find, compare;
//! version 3: write, link. BTF is read into the same types ([`btf`]).
//!
//! A section holds one dict of types, or an [`Archive`]: a parent with the types that units share,
//! and a child for each unit that has types of its own. Opening a [`Dict`] makes one pass over its
//! types to check their bounds; everything else is decoded in place, on demand. [`Types`] is a dict
//! together with its parent, and looks up ids. A [`graph::Graph`] is the input for writing
//! (`write`) and linking (`link`):
//!
//! ```
//! # use backtrail_ctype::{Surroundings, link, write};
//! # fn linked(objects: &[Vec<u8>]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//! let open = |bytes| link::Section::open(bytes, Surroundings::default());
//! let opened = objects.iter().map(|bytes| open(bytes)).collect::<Result<Vec<_>, _>>()?;
//! let units = opened.iter().map(|section| section.units(&[])).collect::<Result<Vec<_>, _>>()?.concat();
//! let linked = link::link(&units, &link::Options::default())?;
//! let section = linked.write(&write::Options::new(backtrail_wire::Endian::Little), 8)?;
//! # Ok(section)
//! # }
//! ```
//!
//! The crate reads no object files: the caller passes the string tables and symbols of the file
//! that contains the section. Reading never panics, uses at most a small multiple of the (inflated)
//! input as memory, and inflates no further than deflate can compress. Circular references are
//! errors.
#![forbid(unsafe_code)]

#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
pub mod btf;
pub mod constants;
pub mod diff;
pub mod dump;
mod error;
pub mod find;
pub mod graph;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
mod layout;
pub mod link;
mod measure;
pub mod print;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
mod read;
mod spell;
pub mod threads;
pub mod write;

pub use constants::{Encoding, Flags, Kind, SymbolKind, Version};
pub use error::{Error, ErrorKind, Foreign, Result};
pub use measure::{AlignmentRule, Measures};
pub use read::{
    Archive, Array, Dict, Enumerator, Header, Member, Members, NameIndex, Slice, StructMember, Surroundings, Symbol,
    Type, TypeId, Types, WideValue,
};
