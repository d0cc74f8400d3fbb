//! Everything that needs to know DWARF.
//!
//! [`cfi`] turns call frame information (`.eh_frame`) into SFrame rows and reports what rows cannot say, [`build`] makes
//! them a table, and [`check`] holds any table against call frame information; [`tables`] gives each module the one
//! table that sampling uses; [`registers`] gives a caller all registers that can be known; [`lines`] tells functions, inlined calls and source lines; [`types`] makes compact C types;
//! [`split`] finds the rest of units that is in other files;
//! [`cache`] keeps what took long.

pub mod arguments;
mod asked;
pub mod build;
pub mod cache;
pub mod cfi;
pub mod check;
#[doc(hidden)]
pub mod fuzz;
mod gopclntab;
pub mod lines;
pub mod objects;
mod plt;
pub mod registers;
mod sections;
pub mod sizes;
pub mod split;
pub mod tables;
pub mod types;
pub mod whole;
