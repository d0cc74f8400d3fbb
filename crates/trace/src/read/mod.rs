//! Reads whole traces, packets and events.

mod event;
mod find;
mod merge;
mod options;
mod parallel;
mod ring;
mod split;
mod state;
mod stream;
mod trace;
mod value;

pub use event::Event;
pub use find::find_traces;
pub use merge::Events;
pub use options::{Options, Recover};
pub use parallel::{Rendered, render};
pub use ring::packets_of_ring;
pub use state::Packet;
pub use stream::{Problem, Statistics, StreamReader};
pub use trace::Trace;
pub use value::{Chosen, Elements, Fields, Flags, IntegerValue, Labels, Value, WideText};
#[cfg(feature = "render")]
pub(crate) use value::{PlainClass, View, float};
