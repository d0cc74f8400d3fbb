//! Functions for signal handlers: they do not allocate, lock or panic, and call nothing in the C
//! library, since a lazily bound function would be looked up on whatever stack is current.
//!
//! They need only `core`: `tests/promises.rs` compiles this folder alone and inspects its object
//! code.

pub(crate) mod capture;
pub mod crash;
pub mod entry;
mod given;
pub(crate) mod late;
pub mod line;
pub(crate) mod message;
pub(crate) mod names;
pub(crate) mod notes;
pub(crate) mod output;
pub(crate) mod stack;
mod system;
mod threads;
