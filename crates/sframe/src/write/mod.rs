//! Writing functions and their rows into a section.
//!
//! The writer makes sections small: it uses the narrowest widths for starts and words, writes no
//! consecutive rows with the same rule, and lets functions share equal rows ([`Options::share`]).

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "indexes of its own lists; sizes of less than 4 GiB, which the encoder checked"
)]
mod assemble;
mod convert;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "starts were checked to be within 2 GiB of the section where they are stored in 32 bits"
)]
mod encode;
mod function;
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "indexes of its own lists; rows are in the order that the encoder checked, a run has less than 4 GiB"
)]
mod merge;
mod options;
mod output;
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "places in the section that was just written"
)]
mod relocatable;
#[expect(clippy::arithmetic_side_effects, reason = "counts of rows that are in memory")]
mod restrict;
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "indexes of its own lists; blocks that were just written"
)]
mod share;

pub use crate::reason::Reason;
pub use assemble::{section, section_around};
pub use convert::{ConvertError, convert};
pub use function::FunctionRows;
pub use options::Options;
pub use output::{Output, Skipped, WriteError};
pub use relocatable::{StartField, relocatable};
