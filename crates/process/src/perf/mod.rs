//! Samples of running threads through `perf_event_open(2)`.

mod deep;
mod error;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod probes;
mod programs;
mod records;
mod sampler;
mod walked;
mod walker;

pub use deep::{DeepStacks, Edges, MOST_EDGES};
pub use error::{Entry, OpenError};
#[doc(hidden)]
pub use file::fuzz as fuzz_file;
pub use file::{About, FileError, PerfFile, Timed};
pub use records::{Build, Mapping, Record, Sample, Task, UserState};
pub use sampler::{Options, Sampler, Trigger, monotonic_ns, raise_open_files};
pub use walker::{KernelTables, WalkCode, WalkMap, WalkProgram};
