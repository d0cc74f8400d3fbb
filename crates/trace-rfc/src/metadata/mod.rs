//! The RFC's metadata language (RFC 4 and 7) and its packets (RFC 5 and 6.1).
//!
//! `syntax` makes a tree of the text, `types` makes field classes of types and what they inherit,
//! `blocks` the description; `headers` has what the RFC fixes: the headers of packets and events.
//! Where the RFC is silent or contradicts itself, a comment at the place explains the reading.

mod blocks;
mod headers;
mod parse;
mod section;
mod syntax;
mod types;
mod write;

pub(crate) use headers::packet_header;
pub use parse::parse;
pub(crate) use section::clock;
pub use section::{HeaderType, description, section};
pub use write::{WriteError, WriteErrorKind, write};
