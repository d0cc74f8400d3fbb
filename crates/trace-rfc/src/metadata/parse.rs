//! Text to a description.

use super::{blocks, syntax};
use backtrail_trace::description::Description;
use backtrail_trace::tsdl::{Result, tokens};
use backtrail_wire::Endian;

/// Types that use others can describe exponentially many fields. Real metadata has less than one
/// for ten bytes, and each counts for as many as it has attributes.
const MAX_WORK_PER_BYTE: u64 = 4;

/// Parses the text in the packets of the metadata, for data packets of this byte order: theirs is
/// the native one (RFC 4.1.3).
///
/// The zero bytes between the entries must have become spaces or newlines.
///
/// # Errors
///
/// The first fault of the text, and its place.
pub fn parse(text: &str, order: Endian) -> Result<Description> {
    let tokens = tokens(text)?;
    let entries = syntax::parse(&tokens)?;
    blocks::describe(&entries, order, MAX_WORK_PER_BYTE * text.len() as u64 + 64)
}
