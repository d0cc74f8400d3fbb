//! Common Trace Format: reads and writes metadata, packets and events.
//!
//! The metadata of every dialect ([`tsdl`] for CTF 1.8, [`json2`] for CTF 2) becomes one
//! [`Description`]. It is compiled once into a [`Plan`], which decodes packets ([`Trace`]) and
//! encodes them ([`TraceWriter`]). Everything below the metadata is independent of the dialect. The
//! crate `backtrail-trace-rfc` adds the dialect of 2010 through [`Trace::described`],
//! [`TraceWriter::with_metadata`] and [`content`].
//!
//! ```
//! use backtrail_trace::description::{Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct};
//! use backtrail_trace::{Dialect, Endian, Options, StreamOptions, Trace, TraceWriter};
//!
//! # let folder = tempfile::tempdir()?;
//! # let directory = &folder.path().join("trace");
//! let fields = Struct::new()
//!     .with("bytes", Integer::unsigned(32, Endian::NATIVE))
//!     .with("path", FieldClass::String(Encoding::Utf8));
//! let events = vec![EventClass::new(0, "app:read", fields)];
//! let description = Description::of_events(Clock::nanoseconds("monotonic", 0), events);
//! let trace = TraceWriter::create(directory, description, Dialect::V2)?;
//! let mut stream = trace.stream("main_0", StreamOptions::for_cpu(0, 0))?;
//! let mut event = stream.writer().event(0, 1_000);
//! event.u32(512);
//! event.string("/etc/hostname");
//! event.finish()?;
//! stream.flush(2_000)?;
//!
//! let mut events = Trace::open(directory)?.events(Options::default())?;
//! while let Some(event) = events.next()? {
//!     assert_eq!(event.name(), "app:read");
//!     let bytes = event.field("bytes").and_then(|value| value.as_u64());
//!     assert_eq!(bytes, Some(512));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Input is not trusted: malformed metadata or packets give an error with its place. Nothing
//! panics, loops forever or allocates more than the input's own length justifies.
//!
//! The feature `render` (default) adds [`TextWriter`] and [`JsonWriter`].
#![forbid(unsafe_code)]

pub mod constants;
pub mod content;
pub mod description;
mod dialect;
mod error;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
pub mod json2;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
mod metadata;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
mod plan;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
mod read;
#[doc(hidden)]
pub mod regular;
#[cfg(feature = "render")]
mod render;
mod ring;
mod slot;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
pub mod tsdl;
mod validate;
mod write;

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    /// The number of entries of one of LTTng's index files.
    pub fn index_entries(bytes: &[u8]) -> Option<usize> {
        crate::read::index_entries(bytes).map(|entries| entries.len())
    }
}

pub use backtrail_wire::Endian;
pub use description::{Description, DescriptionError, DescriptionErrorKind, Inexpressible};
pub use dialect::Dialect;
pub use error::{CreateError, CreateErrorKind, DecodeError, DecodeErrorKind, EncodeError, TraceError, TraceErrorKind};
pub use metadata::{SourceLine, parse_metadata};
pub use plan::Plan;
pub use read::{
    Chosen, Condition, ConditionError, Elements, Event, Events, FieldHint, Fields, Flags, Follow, IntegerValue, Labels,
    Options, Packet, Problem, PushReader, Recover, Rendered, Statistics, StreamReader, Trace, Value, WideText,
    find_traces, packets_of_ring, render,
};
#[cfg(feature = "render")]
pub use render::{ClockFormat, JsonWriter, LineStyle, Moment, TextWriter};
pub use ring::{Ring, RingEvent, RingLayout, RingTooSmall};
pub use validate::{Finding, FindingKind, check};
pub use write::{
    EventWriter, PacketFile, StreamOptions, StreamWriter, TraceWriter, convert, convert_part, remove_padding, salvage,
};

/// The code of this page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-traces.md")]
mod page {}
