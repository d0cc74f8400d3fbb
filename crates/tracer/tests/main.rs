//! Programs that trace themselves, and what readers see of them.

mod common;
mod damaged;
mod documented;
mod fields;
#[cfg(all(feature = "log", feature = "tracing"))]
mod layers;
mod modes;
mod survives;
