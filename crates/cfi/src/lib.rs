//! Call frame information: the parts of DWARF that a stack sampler needs.
//!
//! - [`eh_frame`] turns `.eh_frame` into SFrame rows and reports what rows cannot express;
//!   [`build`] writes them as a table; [`check`] compares any table with call frame information.
//! - [`tables`] gives each module the one table that sampling uses; [`cache`] stores it in a file.
//! - [`registers`] restores all registers of a caller that can be known.
//! - [`proof`] unwinds code that no row describes, and verifies the return addresses it finds.
//! - [`announced`] reads tables and names of code that a program made at run time.
//! - [`starts`] finds the starts of functions without symbols; [`go_names`] reads the names in
//!   `.gopclntab`.
//!
//! ```
//! use backtrail_cfi::{build, check, tables};
//! use backtrail_elf::{Image, FileBytes};
//! use backtrail_sframe::write::Options;
//! use backtrail_sframe::{Section, Version};
//!
//! let file = FileBytes::open(&std::env::current_exe()?)?;
//! let image = Image::of(&file)?;
//! let built = build::of_image(&image, &Options::new(Version::V3, tables::abi(&image), 0))?;
//! println!("{} functions in {} bytes", built.functions, built.bytes.len());
//!
//! let report = check::check_image(&image, &Section::parse(&built.bytes, 0)?, &built.skipped)?;
//! assert_eq!(report.mismatches, []);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod a64;
pub mod announced;
mod around;
mod asked;
pub mod build;
mod by_hand;
pub mod cache;
pub mod called;
pub mod check;
mod code;
mod combined;
mod compiled;
pub mod eh_frame;
pub mod erlang;
mod error;
mod fixed;
mod go_frames;
pub mod go_names;
mod gopclntab;
mod greenlets;
mod haskell;
mod hosts;
mod hotspot;
pub mod instructions;
mod kept;
mod landings;
mod libraries;
mod linked;
mod lisp;
pub mod objects;
#[cfg(test)]
mod odd;
mod patience;
mod plt;
mod process_code;
mod prologue;
pub mod proof;
mod pushed;
mod reader;
mod records;
pub mod registers;
mod resumed;
mod returns;
mod roots;
mod signal;
pub mod sizes;
mod source;
pub mod starts;
pub mod switches;
pub mod tables;
mod tail_calls;
mod undescribed;
mod v8;
pub mod whole;

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use crate::gopclntab::of_section as go_table;
}
