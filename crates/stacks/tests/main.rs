//! All integration tests of this crate, in one binary: linking takes longer than most of them.

#[path = "../../../fuzz/targets/src/stacks.rs"]
pub mod fuzz;
mod fuzz_core;
mod memory;
mod registers;
mod signed_core;
