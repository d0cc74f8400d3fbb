//! Everything that needs to know DWARF.
//!
//! [`cfi`] turns call frame information (`.eh_frame`) into SFrame rows and reports what rows cannot say.

pub mod cfi;
#[doc(hidden)]
pub mod fuzz;
