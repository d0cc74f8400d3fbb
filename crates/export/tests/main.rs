//! All integration tests of this crate.

mod invented;
mod page;
mod texts;
