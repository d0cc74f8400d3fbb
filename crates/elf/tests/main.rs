//! All integration tests of this crate, in one binary: linking takes longer than most of them.

#[path = "../../../fuzz/targets/src/elf.rs"]
pub mod fuzz;
mod fuzz_edit;
mod fuzz_image;
mod hung_mount;
mod many_headers;
mod real_files;
mod relocations;
