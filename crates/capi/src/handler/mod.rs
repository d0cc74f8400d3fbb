//! What handlers may call: it allocates nothing, takes no lock, does not panic, and calls nothing of the C library, since a function that is bound at
//! its first call is looked up on whatever stack there is. It needs no more than `core`: `tests/promises.rs` compiles this folder
//! alone, and looks at what is in the object code.

pub(crate) mod capture;
pub(crate) mod crash;
pub(crate) mod entry;
mod line;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod symbols;
mod system;
