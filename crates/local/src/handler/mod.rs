//! Functions for signal handlers: they allocate nothing, take no lock, do not panic, and call
//! nothing of the C library, since a lazily bound function would be looked up on whatever stack
//! there is.
//!
//! They need no more than `core`: `tests/promises.rs` compiles this folder alone and looks at its
//! object code.

pub(crate) mod capture;
pub mod crash;
pub mod entry;
pub mod line;
pub(crate) mod names;
mod system;
