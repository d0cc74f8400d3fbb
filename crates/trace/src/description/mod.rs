//! The structure of a trace, independent of dialects.

mod adapt;
mod class;
mod error;
mod reserved;
mod standard;
mod trace;
mod uuid;

pub use class::{
    Array, Base, BitMap, Encoding, Enumeration, FieldClass, Float, Integer, Length, Mapping, Member, Optional, Range,
    Reference, Role, Scope, Storage, Struct, Variant, VariantOption,
};
pub use error::{DescriptionError, DescriptionErrorKind, Inexpressible};
pub use standard::{compact_event_header, large_event_header, packet_context, packet_header};
pub use trace::{Clock, Description, EnvironmentValue, EventClass, Identity, StreamClass};
pub use uuid::{format_uuid, parse_uuid};
