//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod btf;
mod common;
#[path = "../../../fuzz/targets/src/ctype.rs"]
pub mod fuzz;
mod fuzz_ctype;
mod link;
mod objdump;
mod read;
mod write;
