//! Traces over a network, by the live protocol of LTTng's relay daemon.
//!
//! [`Server`] shows the traces below a directory to viewers such as babeltrace2's
//! `source.ctf.lttng-live`, also while they are written. [`Receiver`] is a viewer: it writes the
//! traces that a relay daemon has into a directory.
//!
//! [`Sender`] sends traces over TCP or UDP, encrypted if wanted, and [`Collector`] receives them.
#![forbid(unsafe_code)]

mod feed;
mod metadata;
mod parcel;
mod protocol;
mod receive;
mod serve;

#[doc(hidden)]
pub mod internals;

pub use parcel::{Collector, CollectorOptions, Gap, Report, Secret, Sender, Sent, Transport, parse_address};
pub use receive::{Received, Receiver};
pub use serve::{ServeOptions, Server};

/// The port of a relay daemon for viewers.
pub const PORT: u16 = protocol::PORT;
