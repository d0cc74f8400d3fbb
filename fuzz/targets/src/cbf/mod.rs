//! Backtraces and lists of modules.

mod cif;
mod decode;
mod encode;
pub mod properties;

pub use cif::cif;
pub use decode::cbf_decode;
pub use encode::cbf_encode;
