//! The dialect of the RFC v1.1 of 2010: its metadata language (RFC 4 and 7) and its packets (RFC 5 and 6.1).
//!
//! `syntax` makes a tree of what was written, `types` field classes of types and what they inherit, `blocks` the description;
//! `headers` has what the RFC fixes: the headers of packets and events. Where the RFC is silent or contradicts itself, the
//! reading is told at its place.

mod blocks;
mod headers;
mod syntax;
mod types;

pub use crate::tsdl::{Error, ErrorKind, Position};
pub(crate) use headers::packet_header;

use crate::description::Description;
use crate::tsdl::{Result, lexer};
use backtrail_wire::Endian;

/// Types that use others can describe exponentially many fields. Real metadata has less than one for ten bytes, and each
/// counts for as many as it has attributes.
const MAX_WORK_PER_BYTE: u64 = 4;

/// Parses the text in the packets of the metadata, for data packets of this byte order: theirs is the native one (RFC 4.1.3).
///
/// The zero bytes between the entries must have become spaces or newlines.
pub fn parse(text: &str, order: Endian) -> Result<Description> {
    let tokens = lexer::tokens(text)?;
    let entries = syntax::parse(&tokens)?;
    blocks::describe(&entries, order, MAX_WORK_PER_BYTE * text.len() as u64 + 64)
}
