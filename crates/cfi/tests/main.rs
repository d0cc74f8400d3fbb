//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod against_binutils;
mod against_readelf;
mod cache;
mod callframe;
mod check_real_files;
mod common;
#[path = "../../../fuzz/targets/src/cfi.rs"]
pub mod fuzz;
mod fuzz_build;
mod fuzz_cfi;
#[path = "../../../fuzz/targets/src/elf.rs"]
pub mod fuzz_elf;
mod fuzz_objects;
mod go_names;
mod roots;
mod rules;
mod small_tables;
mod tables;
mod v8;
