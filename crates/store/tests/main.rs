//! All integration tests of this crate.

mod add;
mod invented;
mod upkeep;
