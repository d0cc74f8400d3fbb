//! Reads a trace, names its addresses, and makes reports of it. It never samples.
//!
//! [`Profile`] takes a recording's items in time order; [`Profile::finish`] returns the [`Report`],
//! which can be written as a table, as folded stacks, as a flame graph or as JSON. [`Symbolizer`]
//! is the part that names addresses, for callers with stacks of their own.
//!
//! ```
//! use backtrail_profile::{Options, Profile, TableOptions};
//! use backtrail_recording::{Frame, FrameKind, Item, Sample, Stop};
//!
//! let mut profile = Profile::new(Options::default());
//! let frames = [Frame { kind: FrameKind::Pc, address: 0x1234 }];
//! profile.add(&Item::Sample(Sample {
//!     time: 0,
//!     cpu: 0,
//!     pid: 1,
//!     tid: 1,
//!     frames: &frames,
//!     stop: Some(Stop::EndOfStack),
//!     live: false,
//!     in_kernel: false,
//!     wait: None,
//!     passed: &[],
//!     detail: backtrail_recording::Detail::Nothing,
//! }));
//! let report = profile.finish(0);
//! assert_eq!(report.functions()[0].name, "[unknown]+0x1234");
//! report.write_table(&mut std::io::stdout(), &TableOptions::default())?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod ada;
mod calls;
mod clean;
mod demangle;
mod dlang;
mod durations;
mod edges;
mod entries;
mod exits;
mod filter;
mod fold;
mod fortran;
mod function_name;
mod functions;
mod live;
mod modules;
mod pack;
mod processes;
mod profile;
mod ranges;
mod report;
mod stacks;
mod symbolize;
mod threads;
mod weights;

pub use backtrail_recording::is_kernel_address;
pub use calls::{CallArgument, CallCount, Recorded};
pub use clean::is_active;
pub use demangle::{MAX_NAME_LENGTH, demangle};
pub use durations::CallDurations;
pub use entries::{EntryError, FunctionExits, entries, function_exits};
pub use exits::{Leaves, NoExits};
pub use filter::Filter;
pub use fold::{LEFT_OUT, Label, LabelId, LabelKind, Tree};
pub use function_name::matches_function;
pub use live::{Live, LiveBy, Span};
pub use modules::File;
pub use pack::{PackError, Packed, pack};
pub use processes::Processes;
pub use profile::{MAX_FRAMES, NO_STACK, OMITTED, Options, Profile, READ_LATE, STACK_LOST};
pub use report::{
    Annotation, AnnotationRow, Change, EventCount, FunctionCount, GroupBy, Listing, ListingRow, Measure, Report, Row,
    Rows, SourceLine, Summary, TableOptions,
};
pub use stacks::{StackFrame, StackId, Stacks, Step};
pub use symbolize::{
    Call, Code, CodeAddress, CodeFiles, FetchDebugFile, Instruction, IsolatedNames, Kallsyms, KernelFunction, Location,
    LocationId, NoCode, Origin, PerfMap, Symbolizer, SystemFiles,
};
pub use threads::{StackSample, Thread, ThreadId};

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use crate::symbolize::{JitCode, JitDump};
}
