//! All integration tests of this crate.

mod add;
mod crashes;
mod encodings;
mod invented;
mod symbols;
mod upkeep;
