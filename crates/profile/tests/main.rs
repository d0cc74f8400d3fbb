//! All integration tests of this crate, in one binary: linking takes longer than most of them.

#[path = "../../../fuzz/targets/src/profile.rs"]
pub mod fuzz;
mod fuzz_names;
mod numbered;
mod real_files;
