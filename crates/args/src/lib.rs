//! The arguments of functions: where calls pass them, and where they are later.
//!
//! [`abi`] has the calling conventions, [`shape`] what they need to know of types.
#![forbid(unsafe_code)]

pub mod abi;
pub mod shape;
