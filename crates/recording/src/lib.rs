//! The shape of a recording: its events and its tree of stacks, written and read.
//!
//! Sampling and reporting meet only in the trace on disk. This crate is that meeting place: which
//! events there are, what their fields are called, and how stacks are kept.
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
mod places;
mod reader;
mod tree;
mod writer;

pub use backtrail_trace::{CreateError, Dialect};
pub use item::{Frame, FrameKind, Item, Module, Sample, Stop, ThreadName, is_jit_dump, is_kernel_address};
pub use options::{Environment, WriterOptions};
pub use reader::{ReadError, Reader};
pub use tree::{FIRST_NODE, StackNodes, StackTree, ending, root};
pub use writer::{WriteError, Writer, is_occupied};
