//! Writing functions and their rows into a section.
//!
//! The writer makes sections small: it uses the narrowest widths for starts and words, writes no
//! consecutive rows with the same rule, and lets functions share equal rows ([`Options::share`]).

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
