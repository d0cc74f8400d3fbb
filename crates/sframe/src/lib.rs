//! SFrame stack-trace tables, versions 1, 2 and 3: read, look up, validate, write, dump.
//!
//! All versions decode into one [`Row`]. Reading ([`Section`]) never allocates, copies or panics,
//! and its time is bounded by the bytes it is given: it is safe in a signal handler and with
//! untrusted bytes. Writing (module `write`) needs an allocator; the `write` feature, enabled by
//! default, adds it.
//!
//! ```
//! # #[cfg(feature = "write")] {
//! use backtrail_sframe::write::{FunctionRows, Options, section};
//! use backtrail_sframe::{Abi, Location, Row, Rule, Section, Version};
//!
//! // `push %rbp` (1 byte) moves the stack pointer (register 7); the return address stays 8 bytes below the CFA.
//! let row = |start, offset| Row {
//!     start,
//!     rule: Some(Rule::new(Location::register(7, offset), Location::saved(-8))),
//! };
//! let function = FunctionRows::new(0x1000, 0x20, vec![row(0, 8), row(1, 16)]);
//! let bytes = section(&[function], &Options::new(Version::V3, Abi::Amd64Little, 0))?.bytes;
//!
//! let table = Section::parse(&bytes, 0)?;
//! let found = table.lookup(0x1008)?.expect("a function is there");
//! assert_eq!(found.function.start, 0x1000);
//! assert_eq!(found.row, row(1, 16));
//! assert_eq!(table.lookup(0x2000)?, None);
//! # }
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

#[cfg(feature = "write")]
extern crate alloc;

pub mod constants;
pub mod dump;
mod error;
mod layout;
mod read;
pub mod readers;
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
