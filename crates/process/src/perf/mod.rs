//! Samples of running threads through `perf_event_open(2)`.

mod calls;
mod constants;
mod counted;
mod deep;
mod error;
mod file;
mod other_stacks;
mod part;
mod parts;
mod probes;
mod program;
mod programs;
mod records;
mod sampler;
mod task_stacks;
mod threads;
mod walked;
mod walker;

pub use calls::{CallProbe, CallProbes, Exit, ExitKind, Role, TracedFunction};
pub use counted::{CountedEvent, SampledEvent};
pub use deep::{BYTES_OF_LEFT, DeepStacks, Edges, LeftStack, MOST_EDGES, MOST_LEFT};
pub use error::{Entry, OpenError};
pub use file::{About, Event, FileError, PerfFile, Timed};
pub use other_stacks::{OtherStack, OtherStacks};
pub use records::{Build, Cause, Mapping, Record, Sample, Task, UserState};
pub use sampler::{Options, Sampler, Trigger, monotonic_ns, raise_open_files};
pub use task_stacks::{TaskStacks, TaskThread};
pub use walker::{KernelTable, KernelTables, WalkCode, WalkLoader, WalkMap, WalkProgram};

/// Not part of the interface: for the fuzz targets.
#[doc(hidden)]
pub mod internals {
    pub use super::records::{decode, time};
    pub use super::walked::{Walked, walked_part};
}
