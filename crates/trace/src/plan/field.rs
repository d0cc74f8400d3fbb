//! A compiled field.

use super::shape::Shape;
use super::whole::Whole;
use crate::description::{Integer, Role};

#[derive(Debug)]
pub(crate) struct Field {
    /// The name of a member of a struct; otherwise empty.
    pub(crate) name: Box<str>,
    /// Bits, a power of two.
    pub(crate) align: u64,
    /// The alignment that it requires of the structs around it: more than its own if a part of it
    /// has a greater one.
    pub(crate) outer_align: u64,
    /// The register for its value.
    pub(crate) slot: Option<u32>,
    /// The fast way to decode it, if there is one.
    pub(super) whole: Option<Whole>,
    pub(crate) shape: Shape,
}

impl Field {
    /// The number's storage, if it is one.
    pub(crate) fn integer(&self) -> Option<&Integer> {
        match &self.shape {
            Shape::Integer(integer)
            | Shape::Enumeration(integer, _)
            | Shape::BitMap(integer, _)
            | Shape::Boolean(integer) => Some(integer),
            _ => None,
        }
    }

    pub(crate) fn role(&self) -> Option<Role> {
        self.integer().and_then(|integer| integer.role)
    }
}
