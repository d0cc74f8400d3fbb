//! Reads and edits ELF files.
//!
//! [`File`] is the view of a file: its segments, sections, symbols and build id. [`Image`] is the
//! view of a file whose CPU is supported, or of such a module in memory, and locates its unwind
//! tables. [`Symbols`] names functions; [`debugfile`] finds separate debug files; [`edit`] adds
//! tables to files, [`archive`] to archives. [`door`] opens files of others, whose cost a
//! [`budget`] limits. Reading never panics, whatever the bytes are, and allocates at most a small
//! multiple of the input's length.
//!
//! ```
//! use backtrail_elf::{FileBytes, Image, Symbols};
//!
//! let file = FileBytes::open(&std::env::current_exe()?)?;
//! let image = Image::of(&file)?;
//! assert!(image.section(".text")?.is_some());
//! let symbols = Symbols::new(&image);
//! let first = symbols.lookup(image.entry()).map(|symbol| symbol.name);
//! assert_eq!(first.as_deref(), Some("_start"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod archive;
pub mod budget;
mod compression;
mod constants;
pub mod core;
pub mod debugfile;
pub mod door;
mod dynamic;
pub mod edit;
mod eh_frame_search;
mod error;
mod exports;
mod header;
mod held;
mod image;
pub mod isolation;
pub mod machines;
pub mod map;
mod nearest;
mod notes;
mod relocate;
mod section;
mod segment;
mod source;
mod symbol_table;
mod symbols;
mod unwind_data;
mod uploads;

pub use compression::Packed;
pub use error::{Error, ErrorKind, Result};
pub use exports::Export;
pub use header::Kind;
pub use held::HeldFile;
pub use image::{AltLink, CodeSegments, DebugLink, File, Image, SectionData};
pub use map::FileBytes;
pub use nearest::{NearestSymbol, nearest_symbol};
pub use notes::build_id_of_notes;
pub use section::Section;
pub use segment::Segment;
pub use source::Stored;
pub use symbol_table::{SymbolEntry, Table};
pub use symbols::{Named, Symbol, Symbols};
pub use uploads::{Upload, Uploads};
