//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod cif;
#[path = "../../../fuzz/targets/src/cbf/mod.rs"]
pub mod fuzz;
mod fuzz_cbf;
mod promises;
mod round_trip;
mod vectors;
