//! Common Trace Format: metadata, packets and events, in and out.
//!
//! The metadata of every dialect ([`tsdl`] for CTF 1.8, [`json2`] for CTF 2) becomes one [`Description`]. It is compiled once into
//! a [`Plan`], by which packets are decoded ([`Trace`]) and encoded ([`TraceWriter`]). Nothing below the metadata
//! knows which dialect it was.
//!
//! How far input is trusted: not at all. Malformed metadata or packets give an error with its place; nothing panics, loops
//! without end or allocates more than the input's own length justifies.
#![forbid(unsafe_code)]

pub mod constants;
pub mod description;
mod error;
pub mod json2;
mod metadata;
mod plan;
mod read;
mod text;
pub mod tsdl;
mod write;

#[doc(hidden)]
pub mod fuzz;

pub use description::Description;
pub use error::{CreateError, CreateErrorKind, DecodeError, DecodeErrorKind, EncodeError, TraceError, TraceErrorKind};
pub use metadata::Dialect;
pub use plan::{DescriptionError, DescriptionErrorKind, Plan};
pub use read::{
    Chosen, Elements, Event, Events, Fields, IntegerValue, Labels, Options, Packet, Statistics, StreamReader, Trace,
    Value,
};
pub use text::TextWriter;
pub use write::{EventWriter, PacketFile, StreamOptions, StreamWriter, TraceWriter};
