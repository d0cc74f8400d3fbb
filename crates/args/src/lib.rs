//! The arguments of functions: where calls pass them, and where they are later.
//!
//! [`abi`] describes the calling conventions, [`shape`] what they need to know about types, and
//! [`table`] the section that records where arguments are while their functions call others.
//!
//! A function with two arguments has the first one in `rbx` while it calls another function, and
//! the second one nowhere:
//!
//! ```
//! use backtrail_args::abi::Abi;
//! use backtrail_args::shape::{Scalar, Shape};
//! use backtrail_args::table::write::{self, Call, Function, Parameter, Places, Signature, Site, Location};
//! use backtrail_args::table::{Table, Value};
//! use backtrail_wire::Endian;
//!
//! let abi = Abi::SysvX86_64;
//! let pointer = abi.classify(&Shape::scalar(Scalar::Integer(8)), true);
//! let parameter = |name: &str| Parameter { name: name.into(), type_id: 1, storage: Some(pointer.clone()) };
//! let signature = Signature { parameters: vec![parameter("path"), parameter("mode")], ..Signature::default() };
//! let call = Call {
//!     return_address: 0x1040,
//!     site: Site::Call,
//!     places: vec![Location::One(Value::Register(3, 0)), Location::LOST],
//!     entries: vec![],
//! };
//! let function = Function { start: 0x1000, end: 0x1080, signature, prefix: 4, calls: vec![call], everywhere: false };
//! let bytes = write::table(&[function], abi, 0, Endian::Little, Places::AtCalls);
//!
//! let table = Table::parse(&bytes, Endian::Little)?;
//! let function = table.function(0x1040)?.expect("it has the address");
//! let places = function.call_site(0x1040)?.places.expect("it has the call");
//! let places = places.collect::<Result<Vec<Value>, _>>()?;
//! assert_eq!(places, [Value::Register(3, 0), Value::Lost]);
//! # Ok::<(), backtrail_args::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod abi;
mod error;
pub mod shape;
pub mod table;

pub use error::{Error, ErrorKind, Result};

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use crate::table::TYPES_AT;
}
