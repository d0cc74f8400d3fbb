//! Sources of registers and memory: perf samples, live processes, cores.
//!
//! Every system call that Rust's standard library and `rustix` do not offer safely is in [`sys`];
//! nothing else here is unsafe.

pub mod core;
pub mod isolated;
pub mod live;
mod machine;
pub mod perf;
pub mod proc;
pub mod snapshot;
pub mod stack;
pub mod sys;
pub mod watchpoint;

pub use machine::this_machine;
pub use snapshot::Snapshot;
pub use stack::SampledStack;
