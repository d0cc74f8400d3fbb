//! Where registers and memory come from: perf samples and the memory of live processes.
//!
//! Every system call that Rust's standard library and `rustix` do not offer safely is in [`sys`]; nothing else here
//! is unsafe.

pub mod perf;
pub mod proc;
pub mod stack;
pub mod sys;

pub use stack::SampledStack;
