//! How a recording describes itself, and how it is written.

use backtrail_trace::Dialect;

/// The metadata about the machine and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// A new UUID for each recording.
    pub trace_uuid: [u8; 16],
    /// The boot's UUID, which identifies the monotonic clock.
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

/// What the samples of a recording measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measured {
    /// Time on the CPU, or calls.
    #[default]
    Cpu,
    /// Time off the CPU.
    OffCpu,
    /// Both.
    Wall,
}

impl Measured {
    /// The name in traces.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Measured::Cpu => "cpu",
            Measured::OffCpu => "off-cpu",
            Measured::Wall => "wall",
        }
    }
}

/// How a recording is written.
#[derive(Clone, Debug)]
pub struct WriterOptions<'a> {
    /// The dialect of its metadata.
    pub dialect: Dialect,
    /// The CPUs, one stream each; streams are named by their index here.
    pub cpus: &'a [u32],
    /// The recorded command, for people.
    pub command: &'a str,
    /// Samples per second of CPU time, if a clock triggers them.
    pub frequency: Option<u64>,
    /// What samples measure.
    pub measured: Measured,
    /// The events that samples are taken at, and how often each happens for one, 0 for a clock;
    /// none if it is only a clock.
    pub events: &'a [(&'a str, u64)],
    /// If samples are calls that have taken at least this long, in nanoseconds.
    pub min_duration: Option<u64>,
    /// The machine.
    pub environment: Environment,
}
