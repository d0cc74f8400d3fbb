//! The kinds of compiled fields.

use super::labels::LabelIndex;
use crate::description::{Encoding, Float, Integer, Mapping, Range};

/// Index into a plan's fields.
pub(crate) type FieldId = u32;

#[derive(Debug)]
pub(crate) enum Shape {
    Integer(Integer),
    Enumeration(Integer, LabelIndex),
    Float(Float),
    String(Encoding),
    Struct(Box<[FieldId]>),
    Array(ArrayPlan),
    Variant {
        slot: u32,
        /// Whether the tag is signed.
        signed: bool,
        options: Box<[OptionPlan]>,
    },
    Optional {
        slot: u32,
        /// Whether the tag is signed.
        signed: bool,
        ranges: Box<[Range]>,
        field: FieldId,
    },
    BitMap(Integer, Box<[Mapping]>),
    Boolean(Integer),
}

#[derive(Debug)]
pub(crate) struct ArrayPlan {
    pub(crate) count: Count,
    pub(crate) element: FieldId,
    /// Bits from one element to the next if elements are plain integers or floats, which need not
    /// be decoded individually.
    pub(crate) stride: Option<u64>,
    /// Whether elements are characters.
    pub(crate) text: bool,
    pub(crate) trace_uuid: bool,
    pub(crate) blob: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Fixed(u64),
    Slot(u32),
    /// The length is stored before the elements.
    Prefix {
        integer: Integer,
        field: FieldId,
    },
}

#[derive(Debug)]
pub(crate) struct OptionPlan {
    pub(crate) ranges: Box<[Range]>,
    pub(crate) field: FieldId,
}
