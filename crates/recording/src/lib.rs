//! The format of a recording: its events and its tree of stacks, written and read.
//!
//! Sampling and reporting share nothing but the trace on disk. This crate defines it: the events,
//! the names of their fields, and how stacks are stored.
//!
//! ```no_run
//! use backtrail_recording::{Item, Reader};
//!
//! let mut reader = Reader::open("recording".as_ref())?;
//! let mut frames = 0;
//! while let Some(item) = reader.next()? {
//!     if let Item::Sample(sample) = item {
//!         frames += sample.frames.len();
//!     }
//! }
//! println!("{frames} frames");
//! # Ok::<(), backtrail_recording::ReadError>(())
//! ```

mod events;
mod item;
mod options;
mod origin;
mod places;
mod reader;
mod symbols;
mod tree;
mod writer;

pub use backtrail_trace::{CreateError, Dialect};
pub use item::{
    Detail, FinishedCall, Frame, FrameKind, Item, Module, ProcessLabels, Sample, Stop, ThreadName, Wait, WaitKind,
    Waker, is_jit_dump, is_kernel_address,
};
pub use options::{Environment, Measured, WriterOptions};
pub use origin::Origin;
pub use reader::{Entry, NumberedSample, NumberedStacks, NumberedWait, NumberedWaker, ReadError, Reader};
pub use symbols::{
    AddError, Call, SpaceOwner, SymbolEntry, SymbolSpace, Symbols, SymbolsError, add_symbols, decode as decode_symbols,
    encode as encode_symbols,
};
pub use tree::{FIRST_NODE, IN_KERNEL, StackNodes, StackTree, ending, root, walked_in_kernel};
pub use writer::{Observer, WriteError, Writer, is_occupied};
