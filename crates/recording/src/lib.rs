//! The shape of a recording: its events and its tree of stacks, written and read.
//!
//! Sampling and reporting meet only in the trace on disk. This crate is that meeting place: which events there are,
//! what their fields are called, and how stacks are kept.

mod item;

pub use item::{Frame, FrameKind, Item, Module, Sample, Stop, ThreadName};
