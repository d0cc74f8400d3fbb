//! Packets, events and whole traces, out.

mod convert;
mod event;
mod header;
mod packet;
mod trace;

pub use convert::convert;
pub use event::EventWriter;
pub use packet::{StreamOptions, StreamWriter};
pub use trace::{PacketFile, TraceWriter};
