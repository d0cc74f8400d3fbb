//! Packets, events and whole traces, out.

mod convert;
mod event;
mod header;
mod packet;
mod recode;
mod ring;
mod trace;

pub use convert::{ConvertOptions, Unsaid, convert};
pub use event::EventWriter;
pub use packet::{StreamOptions, StreamWriter};
pub use ring::salvage;
pub use trace::{PacketFile, TraceWriter};
