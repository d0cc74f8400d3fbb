//! Writing: functions and their rows into a section.
//!
//! What the format allows to be small is small: the narrowest start and word widths, no consecutive
//! rows with the same rule, and functions with the same rows share them ([`Options::share`]).

mod assemble;
mod convert;
mod encode;
mod function;
mod merge;
mod options;
mod output;
mod relocatable;
mod share;

pub use crate::reason::Reason;
pub use assemble::{section, section_around};
pub use convert::{ConvertError, convert};
pub use function::FunctionRows;
pub use options::Options;
pub use output::{Output, Skipped, WriteError};
pub use relocatable::{StartField, relocatable};
