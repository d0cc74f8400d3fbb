//! Samples of running threads through `perf_event_open(2)`.

mod probes;
mod records;
mod sampler;

pub use records::{Build, Mapping, Record, Sample, Task, UserState};
pub use sampler::{Entry, OpenError, Options, Sampler, Trigger, monotonic_ns, raise_open_files};
