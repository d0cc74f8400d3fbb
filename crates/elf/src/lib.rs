//! Everything that needs to know ELF.
//!
//! [`File`] is the view of one file: its segments, sections and symbols, its build id. [`Image`] is
//! that of one whose code is for a CPU that is known, or of such a module as it lies in memory:
//! where its unwind tables are. [`Symbols`] names functions; [`debugfile`] finds what was split off
//! into separate debug files; [`edit`] puts tables into files, [`archive`] into archives. Reading
//! never panics, whatever the bytes are, and allocates no more than a small multiple of the input's
//! length.
//!
//! ```
//! use backtrail_elf::{Image, MappedFile, Symbols};
//!
//! let file = MappedFile::open(&std::env::current_exe()?)?;
//! let image = Image::parse(file.bytes())?;
//! assert!(image.section(".text")?.is_some());
//! let symbols = Symbols::new(&image);
//! let first = symbols.lookup(image.entry()).map(|symbol| symbol.name);
//! assert_eq!(first.as_deref(), Some("_start"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod archive;
mod compression;
mod constants;
pub mod core;
pub mod debugfile;
mod dynamic;
pub mod edit;
mod eh_frame_search;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod header;
mod image;
pub mod machines;
pub mod map;
mod notes;
mod relocate;
mod section;
mod segment;
mod symbol_table;
mod symbols;
mod unwind_data;

pub use compression::Packed;
pub use error::{Error, ErrorKind, Result};
pub use header::Kind;
pub use image::{AltLink, CodeSegments, DebugLink, File, Image, SectionData};
pub use map::MappedFile;
pub use notes::build_id_of_notes;
pub use section::Section;
pub use segment::Segment;
pub use symbol_table::{SymbolEntry, Table};
pub use symbols::{Named, Symbol, Symbols};
