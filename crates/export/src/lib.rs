//! Writes recordings in the formats of other tools, and as a page for a browser.
//!
//! [`Samples::read`] reads a recording; [`write()`] writes its samples in a [`Format`], and
//! [`page::write`] as one file of HTML.
//!
//! ```no_run
//! use backtrail_export::{Format, Samples};
//! use backtrail_profile::Options;
//! use backtrail_recording::Reader;
//!
//! let mut reader = Reader::open("recording".as_ref())?;
//! let samples = Samples::read(&mut reader, Options::default())?;
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
mod locations;
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

pub use format::{Format, write};
pub use samples::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};
