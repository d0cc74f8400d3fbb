//! Events as text and as JSON. The reader and the plan know neither.

mod bytes;
mod digits;
mod json;
mod line;
mod pieces;
mod text;

pub use line::{ClockFormat, JsonWriter, TextWriter};
