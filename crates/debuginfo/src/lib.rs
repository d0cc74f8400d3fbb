//! Debug information: all of DWARF except call frame information.
//!
//! - [`lines`] finds functions, inlined calls and source lines.
//! - [`types`] builds compact C types.
//! - [`arguments`] builds the table that locates arguments at calls.
//! - [`split`] finds the parts of units that are in other files.

pub mod arguments;
pub mod containers;
mod error;
pub mod lines;
mod reader;
mod sections;
pub mod split;
pub mod types;
