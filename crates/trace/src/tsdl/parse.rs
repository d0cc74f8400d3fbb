//! Parses text into a description.

use super::error::Result;
use super::{blocks, lexer, link, syntax};
use crate::description::Description;

/// Parses the text of a trace's metadata.
///
/// # Errors
///
/// The first error in the text, and its place.
#[expect(clippy::arithmetic_side_effects, reason = "64 times the length of a text in memory")]
pub fn parse(text: &str) -> Result<Description> {
    // Each stage's memory ends with it: there may be a description of many megabytes.
    let document = syntax::parse(&lexer::tokens(text)?)?;
    let most_fields = MAX_FIELDS_PER_BYTE * text.len() as u64;
    let blocks = blocks::collect(&document, most_fields)?;
    drop(document);
    link::link(blocks, most_fields)
}

/// Types that use others can describe exponentially many fields. Real metadata has less than one
/// per ten bytes.
const MAX_FIELDS_PER_BYTE: u64 = 4;
