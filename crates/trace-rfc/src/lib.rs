//! The Common Trace Format's dialect of 2010, the RFC v1.1: its metadata, and what it does to
//! packets.
//!
//! [`open`] reads a trace of any dialect, [`create`] writes one of this dialect, and [`convert`]
//! converts between all. The traces themselves are [`backtrail_trace`]'s, which reads and writes
//! CTF 1.8 and 2 without the libraries for compression, encryption and digests that this dialect
//! needs.
//!
//! Input is not trusted: malformed metadata or packets give an error with its place. Nothing
//! panics, loops forever or allocates more than the input's own length justifies.
#![forbid(unsafe_code)]

pub mod constants;
mod content;
mod convert;
mod create;
pub mod metadata;
mod read;

pub use content::{Checksum, Compression, Key, KeyError, Packing};
pub use convert::{ConvertError, Unsaid, convert, convert_part};
pub use create::create;
pub use read::{check, open, source_line};

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use crate::read::{decoder, packet_order, parse_any};
}
