//! Everything that needs to know DWARF.
//!
//! [`cfi`] turns call frame information (`.eh_frame`) into SFrame rows and reports what rows cannot say; [`tables`]
//! gives each module the one table that sampling uses; [`lines`] tells functions, inlined calls and source lines.

pub mod cfi;
#[doc(hidden)]
pub mod fuzz;
pub mod lines;
pub mod sizes;
pub mod tables;
