//! Common Trace Format: metadata, packets and events, in and out.
//!
//! The metadata of every dialect ([`rfc`] for the RFC of 2010, [`tsdl`] for CTF 1.8, [`json2`] for CTF 2) becomes one [`Description`]. It is compiled once into
//! a [`Plan`], by which packets are decoded ([`Trace`]) and encoded ([`TraceWriter`]). Nothing below the metadata
//! knows which dialect it was.
//!
//! How far input is trusted: not at all. Malformed metadata or packets give an error with its place; nothing panics, loops
//! without end or allocates more than the input's own length justifies.
#![forbid(unsafe_code)]

mod bytes;
pub mod constants;
mod content;
pub mod description;
mod digits;
mod error;
mod json;
pub mod json2;
mod lent;
mod metadata;
mod plan;
mod read;
pub mod rfc;
mod text;
pub mod tsdl;
mod validate;
mod write;

#[doc(hidden)]
pub mod fuzz;

pub use backtrail_wire::Endian;
pub use content::{Checksum, Compression, Key, KeyError, Packing};
pub use description::Description;
pub use error::{
    CreateError, CreateErrorKind, DecodeError, DecodeErrorKind, EncodeError, Inexpressible, TraceError, TraceErrorKind,
};
pub use json::JsonWriter;
pub use lent::{Ring, RingEvent, RingLayout, RingTooSmall};
pub use metadata::{Dialect, SourceLine};
pub use plan::{DescriptionError, DescriptionErrorKind, Plan};
pub use read::{
    Chosen, Elements, Event, Events, Fields, Flags, IntegerValue, Labels, Options, Packet, Problem, Recover, Rendered,
    Statistics, StreamReader, Trace, Value, WideText, find_traces, packets_of_ring, render,
};
pub use text::{ClockFormat, TextWriter};
pub use validate::{Finding, FindingKind, check};
pub use write::{
    ConvertOptions, EventWriter, PacketFile, StreamOptions, StreamWriter, TraceWriter, Unsaid, convert, salvage,
};
