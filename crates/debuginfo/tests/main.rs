//! All integration tests of this crate, in one binary: linking takes longer than most of them.

#[path = "../../../fuzz/targets/src/debuginfo.rs"]
pub mod fuzz;
mod fuzz_types;
mod lines;
mod types;
