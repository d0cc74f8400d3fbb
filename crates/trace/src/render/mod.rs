//! Renders events as text and as JSON. The reader and the plan do not depend on it.

mod bytes;
mod digits;
mod json;
mod level;
mod line;
mod moment;
mod pieces;
mod style;
mod text;

pub use line::{ClockFormat, JsonWriter, TextWriter};
pub use moment::Moment;
pub use style::LineStyle;
