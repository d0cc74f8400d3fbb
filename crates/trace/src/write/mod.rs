//! Writes packets, events and whole traces.

mod convert;
mod cut;
mod event;
mod header;
mod packet;
mod recode;
mod renew;
mod ring;
mod trace;
mod walk;

pub use convert::convert;
pub use cut::{convert_part, remove_padding};
pub use event::EventWriter;
pub use packet::{StreamOptions, StreamWriter};
pub use ring::salvage;
pub use trace::{PacketFile, TraceWriter};
