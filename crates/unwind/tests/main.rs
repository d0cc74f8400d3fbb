//! All integration tests of this crate, in one binary: linking takes longer than most of them.

#[path = "../../../fuzz/targets/src/unwind.rs"]
pub mod fuzz;
mod fuzz_walk;
mod hostile;
mod memo;
mod promises;
mod walks;
