//! SFrame stack-trace tables, versions 1, 2 and 3: read, look up, validate, write, dump.
//!
//! All versions decode into one [`Row`]. Reading ([`Section`]) allocates nothing, copies nothing and never panics,
//! and its time is bounded by the bytes it is given: it may be called from a signal handler and with untrusted
//! bytes. Writing (`write`) is the default feature of that name and needs an allocator.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "write")]
extern crate alloc;

pub mod constants;
pub mod dump;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod layout;
mod read;
#[cfg(feature = "write")]
mod reason;
mod row;
pub mod validate;
#[cfg(feature = "write")]
pub mod write;

pub use constants::{Abi, Flags, Version};
pub use error::{Error, ErrorKind, Result};
pub use read::{Fde, Found, Functions, Index, Rows, Section};
pub use row::{Base, Function, Location, Row, Rule};
