//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod fuzz_walk;
mod hostile;
mod memo;
mod promises;
mod walks;
