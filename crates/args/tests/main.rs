//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod conventions;
#[path = "../../../fuzz/targets/src/args.rs"]
pub mod fuzz;
mod table;
