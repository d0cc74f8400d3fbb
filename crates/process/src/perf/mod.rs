//! Samples of running threads through `perf_event_open(2)`.

mod error;
#[doc(hidden)]
pub mod fuzz;
mod probes;
mod records;
mod sampler;

pub use error::{Entry, OpenError};
pub use records::{Build, Mapping, Record, Sample, Task, UserState};
pub use sampler::{Options, Sampler, Trigger, monotonic_ns, raise_open_files};
