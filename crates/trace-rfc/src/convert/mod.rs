//! A trace in another dialect.

mod between;
mod error;
mod from_rfc;
mod idle;
mod repack;
mod target;
mod to_rfc;
mod unsaid;

pub use between::{convert, convert_part};
pub use error::ConvertError;
pub use unsaid::Unsaid;
