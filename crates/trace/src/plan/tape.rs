//! What a struct of a packet is decoded into.

use super::shape::FieldId;

/// One field on the tape. Members and elements follow the field that contains them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) field: FieldId,
    pub(crate) raw: Raw,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw {
    /// Integers, sign-extended if signed; floating point numbers as their bits.
    Bits(u64),
    /// Text: bytes of the packet.
    Bytes { start: usize, end: usize },
    /// Plain elements, not decoded yet.
    Packed { bit: u64, count: u64 },
    /// Members or elements: the nodes up to `end`.
    Group { end: u32, count: u32 },
}
