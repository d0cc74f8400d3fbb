//! All integration tests of this crate, in one binary: linking takes longer than most of them.

mod common;
mod crash;
mod formats;
mod glibc;
mod guard_crash;
mod interface;
mod library;
mod preload;
mod promises;
mod stepped;
mod types;
mod unwind;
