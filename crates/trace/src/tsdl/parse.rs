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
    let most_fields = MAX_FIELDS_PER_BYTE * text.len() as u64;
    // One statement at a time: there may be a description of many megabytes.
    let mut blocks = blocks::Collector::new(most_fields);
    for tokens in lexer::statements(text) {
        for statement in syntax::parse(&tokens?)? {
            blocks.add(&statement)?;
        }
    }
    link::link(blocks.finish()?, most_fields)
}

/// Types that use others can describe exponentially many fields. Real metadata has less than one
/// per ten bytes.
const MAX_FIELDS_PER_BYTE: u64 = 4;
