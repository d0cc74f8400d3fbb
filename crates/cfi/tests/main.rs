//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod against_binutils;
mod against_readelf;
mod cache;
mod callframe;
mod check_real_files;
mod common;
mod fuzz_build;
mod fuzz_cfi;
mod fuzz_objects;
mod go_names;
mod roots;
mod rules;
mod small_tables;
mod tables;
