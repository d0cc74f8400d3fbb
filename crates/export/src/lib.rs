//! Writes recordings in the formats of other tools, and as a page for a browser.
//!
//! [`Collector`] takes a recording's items and returns its [`Samples`]; [`write()`] writes them in
//! a [`Format`], and [`page::write`] as one file of HTML.
//!
//! ```no_run
//! use backtrail_export::{Collector, Format};
//! use backtrail_profile::{Symbolizer, SystemFiles};
//! use backtrail_recording::Reader;
//!
//! let mut reader = Reader::open("recording".as_ref())?;
//! let symbolizer = Symbolizer::of_recording(&mut reader, SystemFiles::default());
//! let mut collector = Collector::new(reader.origin().clone(), reader.clock_offset(), symbolizer);
//! while let Some(item) = reader.next()? {
//!     collector.add(&item);
//! }
//! let samples = collector.finish(reader.stream_bytes());
//! backtrail_export::write(&samples, Format::Pprof, "my recording", &mut std::io::stdout())?;
//! for sentence in Format::Pprof.left_out(&samples) {
//!     eprintln!("{sentence}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod call_tree;
mod collect;
mod firefox;
mod folded;
mod format;
mod otlp;
pub mod page;
mod perf_script;
mod pprof;
mod protobuf;
mod samples;
mod speedscope;
mod strings;

#[cfg(test)]
mod tests;

pub use collect::Collector;
pub use format::{Format, write};
pub use samples::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};
