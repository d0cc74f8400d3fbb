//! What a recording says of itself.

use backtrail_trace::Dialect;

/// What the metadata says of the machine and the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// A new one for each recording.
    pub trace_uuid: [u8; 16],
    /// The boot's; it identifies the monotonic clock.
    pub boot_uuid: Option<[u8; 16]>,
    /// Name of the machine.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's name, as `uname -m` prints it.
    pub machine: String,
    /// Nanoseconds from the Unix epoch to the zero of the monotonic clock.
    pub clock_offset_ns: u64,
}

/// How a recording is written.
#[derive(Clone, Debug)]
pub struct WriterOptions<'a> {
    /// The dialect of its metadata.
    pub dialect: Dialect,
    /// The CPUs, one stream each; streams are named by their index here.
    pub cpus: &'a [u32],
    /// What is recorded, for people.
    pub command: &'a str,
    /// Samples a second of CPU time, where a clock makes them.
    pub frequency: Option<u64>,
    /// The machine.
    pub environment: Environment,
}
