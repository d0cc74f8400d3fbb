//! Traces over a network, by the live protocol of LTTng's relay daemon.
//!
//! [`Server`] shows the traces below a directory to viewers such as babeltrace2's
//! `source.ctf.lttng-live`, also while they are written. [`Receiver`] is a viewer: it writes the
//! traces that a relay daemon has into a directory.
#![forbid(unsafe_code)]

mod feed;
mod metadata;
mod protocol;
mod receive;
mod serve;

#[doc(hidden)]
pub mod internals;

pub use receive::{Received, Receiver};
pub use serve::{ServeOptions, Server};

/// The port of a relay daemon for viewers.
pub const PORT: u16 = protocol::PORT;
