//! Packets, events and whole traces, out.

mod event;
mod header;
mod packet;
mod trace;

pub use event::EventWriter;
pub use packet::{StreamOptions, StreamWriter};
pub use trace::{PacketFile, TraceWriter};
