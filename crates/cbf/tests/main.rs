//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod cif;
mod fuzz_cbf;
mod promises;
mod round_trip;
mod vectors;
