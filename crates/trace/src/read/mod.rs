//! Reads whole traces, packets and events.

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "what the user has typed is short, and all places are in it"
)]
mod condition;
mod event;
mod find;
mod follow;
mod merge;
mod options;
mod parallel;
mod push;
mod range;
mod ring;
mod split;
mod state;
mod stream;
mod trace;
mod value;

pub use condition::{Condition, ConditionError};
pub use event::{Event, FieldHint};
pub use find::find_traces;
pub use follow::Follow;
pub use merge::Events;
pub use options::{Options, Recover};
pub use parallel::{Rendered, render};
pub use push::PushReader;
pub(crate) use range::index_entries;
pub use ring::packets_of_ring;
pub use state::Packet;
pub use stream::{Problem, Statistics, StreamReader};
pub use trace::Trace;
pub use value::{Chosen, Elements, Fields, Flags, IntegerValue, Labels, Value, WideText};
#[cfg(feature = "render")]
pub(crate) use value::{PlainClass, View, float};
