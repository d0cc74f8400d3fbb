//! The metadata of CTF 2: a sequence of JSON fragments (CTF2-SPEC-2.0, section 5; RFC 7464).

mod classes;
mod error;
mod read;
mod write;

pub use error::{Error, ErrorKind};
pub use read::parse;
pub use write::{WriteError, write};
