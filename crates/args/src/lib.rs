//! The arguments of functions: where calls pass them, and where they are later.
//!
//! [`abi`] has the calling conventions, [`shape`] what they need to know of types, [`table`] the section that says where
//! arguments are while their functions call others.
#![forbid(unsafe_code)]

pub mod abi;
mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod shape;
pub mod table;

pub use error::{Error, ErrorKind, Result};
