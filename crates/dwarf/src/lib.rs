//! Everything that needs to know DWARF.
//!
//! [`cfi`] turns call frame information (`.eh_frame`) into SFrame rows and reports what rows cannot say, [`build`] makes
//! them a table, and [`check`] holds any table against call frame information; [`tables`] gives each module the one
//! table that sampling uses; [`registers`] gives a caller all registers that can be known; [`lines`] tells functions, inlined calls and source lines; [`types`] makes compact C types;
//! [`proof`] says how code that no row describes is left;
//! [`go_names`] has what Go's programs keep of these when they are stripped; [`starts`] tells where functions without symbols begin; [`split`] finds the rest of units that is in other files;
//! [`cache`] keeps what took long.
//!
//! ```
//! use backtrail_dwarf::cfi::EhFrame;
//! use backtrail_dwarf::{build, check, tables};
//! use backtrail_elf::{Image, MappedFile};
//! use backtrail_sframe::write::Options;
//! use backtrail_sframe::{Section, Version};
//!
//! let file = MappedFile::open(&std::env::current_exe()?)?;
//! let image = Image::parse(file.bytes())?;
//! let built = build::of_image(&image, &Options::new(Version::V3, tables::abi(&image), 0))?;
//! println!("{} functions in {} bytes", built.functions, built.bytes.len());
//!
//! let section = image.eh_frame()?.expect("a table was made of it");
//! let frames = EhFrame::of_image(&image, &section.data, section.address);
//! let report = check::check(&frames, &Section::parse(&built.bytes, 0)?, &built.skipped);
//! assert_eq!(report.mismatches, []);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod arguments;
mod asked;
pub mod build;
mod by_hand;
pub mod cache;
pub mod called;
pub mod cfi;
pub mod check;
mod code;
mod compiled;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod go_frames;
pub mod go_names;
mod gopclntab;
mod hotspot;
pub mod instructions;
mod kept;
pub mod lines;
pub mod objects;
mod plt;
mod prologue;
pub mod proof;
mod pushed;
mod reader;
pub mod registers;
mod roots;
mod sections;
pub mod sizes;
pub mod split;
pub mod starts;
pub mod tables;
pub mod types;
mod undescribed;
pub mod whole;
