//! Programs that trace themselves, and what readers see of them.

mod common;
mod fields;
mod modes;
mod survives;
