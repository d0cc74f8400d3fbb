//! A description, compiled once for decoding and encoding: flat fields with resolved references.

mod compile;
mod compiled;
mod decode;
mod field;
mod flat;
mod labels;
mod shape;
mod tape;
mod usual;
mod whole;

pub use compiled::Plan;
pub(crate) use decode::{Decoder, Roles, select};
pub(crate) use field::Field;
pub(crate) use labels::{Found, LabelIndex};
pub(crate) use shape::{Count, FieldId, Shape};
pub(crate) use tape::{Node, Raw};
