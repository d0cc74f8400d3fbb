//! Debug information: everything of DWARF but call frame information.
//!
//! - [`lines`] finds functions, inlined calls and source lines.
//! - [`types`] makes compact C types.
//! - [`arguments`] makes the table of where arguments are at calls.
//! - [`split`] finds the rest of units that is in other files.

pub mod arguments;
#[doc(hidden)]
pub mod fuzz;
pub mod lines;
mod reader;
mod sections;
pub mod split;
pub mod types;
