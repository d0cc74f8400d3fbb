//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod binutils;
mod common;
mod convert;
mod corpus;
#[path = "../../../fuzz/targets/src/sframe.rs"]
pub mod fuzz;
mod fuzz_read_sframe;
mod known_bytes;
mod lookup;
mod merge;
mod promises;
mod readers;
mod validate;
mod write_read;
