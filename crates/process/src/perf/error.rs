//! Why sampling could not start.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The highest `kernel.perf_event_paranoid` that Linux knows. Above it, the kernels of Debian and
/// Ubuntu refuse every event to whoever has no CAP_SYS_ADMIN, even with CAP_PERFMON.
const MAINLINE: i32 = 2;

/// The start of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file that contains it.
    pub file: PathBuf,
    /// The offset of its first instruction in the file, in bytes.
    pub offset: u64,
}

/// Why sampling could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel does not permit it; with the value of `kernel.perf_event_paranoid`, if known.
    NotPermitted {
        /// `kernel.perf_event_paranoid`.
        paranoid: Option<i32>,
    },
    /// The kernel does not permit sampling all processes; with the value of
    /// `kernel.perf_event_paranoid`, if known.
    MachineNotPermitted {
        /// `kernel.perf_event_paranoid`.
        paranoid: Option<i32>,
    },
    /// The machine has no such event.
    NoEvent(String),
    /// There is no event with this name.
    UnknownEvent(String),
    /// The kernel does not permit counting what only it does.
    EventNotPermitted(String),
    /// The kernel does not take the directory for a control group whose processes it can sample.
    NoGroup,
    /// The kernel does not permit stopping at functions.
    EntriesNotPermitted,
    /// The kernel cannot stop at functions.
    NoEntries,
    /// The kernel cannot stop at this place of a file.
    Entry(Entry, io::Error),
    /// The kernel has no performance events at all.
    NoPerfEvents,
    /// The rate is above `kernel.perf_event_max_sample_rate`.
    FrequencyTooHigh {
        /// The highest rate.
        limit: u64,
    },
    /// The rings may not be locked into memory.
    RingNotPermitted,
    /// There is no such process.
    NoProcess(i32),
    /// Something else.
    Io(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotPermitted { paranoid: Some(level) } if *level > MAINLINE => write!(
                f,
                "sampling is not permitted: kernel.perf_event_paranoid is {level}, and CAP_SYS_ADMIN is missing"
            ),
            OpenError::NotPermitted { .. } => {
                write!(
                    f,
                    "sampling is not permitted: perf_event_open is refused to this user or container"
                )
            }
            OpenError::MachineNotPermitted { paranoid } => {
                let missing = match paranoid {
                    Some(level) if *level > MAINLINE => "CAP_SYS_ADMIN",
                    _ => "CAP_PERFMON",
                };
                write!(
                    f,
                    "sampling processes of other users is not permitted: {missing} is missing"
                )?;
                match paranoid {
                    Some(level) if *level > 0 => write!(f, ", and kernel.perf_event_paranoid is {level}"),
                    _ => Ok(()),
                }
            }
            OpenError::NoEvent(name) => write!(f, "this machine can't count {name}"),
            OpenError::UnknownEvent(name) => write!(f, "no event {name}"),
            OpenError::EventNotPermitted(name) => write!(f, "counting {name} is not permitted to this user"),
            OpenError::NoGroup => write!(
                f,
                "the directory is not a cgroup that performance events can be restricted to"
            ),
            OpenError::EntriesNotPermitted => write!(
                f,
                "sampling calls of functions is not permitted: it takes tracefs, which is root's"
            ),
            OpenError::NoEntries => write!(f, "this kernel can't sample calls of functions (CONFIG_UPROBE_EVENTS)"),
            OpenError::Entry(Entry { file, offset }, error) => {
                let file = file.display();
                write!(f, "calls can't be sampled at offset {offset:#x} of {file}: {error}")
            }
            OpenError::NoPerfEvents => write!(f, "this kernel has no performance events (CONFIG_PERF_EVENTS)"),
            OpenError::FrequencyTooHigh { limit } => {
                write!(
                    f,
                    "the kernel allows at most {limit} samples a second (kernel.perf_event_max_sample_rate)"
                )
            }
            OpenError::RingNotPermitted => write!(
                f,
                "the sample buffers may not be locked into memory (kernel.perf_event_mlock_kb, ulimit -l)"
            ),
            OpenError::NoProcess(pid) => write!(f, "no process {pid}"),
            OpenError::Io(error) => write!(f, "sampling failed to start: {error}"),
        }
    }
}

impl OpenError {
    /// What the user can do.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            OpenError::NotPermitted { paranoid: Some(level) } if *level > MAINLINE => Some(
                "run `sysctl kernel.perf_event_paranoid=2` as root, or run this command as root or with CAP_SYS_ADMIN (start a \
                 container with that capability)",
            ),
            OpenError::NotPermitted { .. } => Some(
                "the process must be yours, or CAP_PERFMON (kernels before 5.8: CAP_SYS_ADMIN) is needed; in a \
                 container, its seccomp profile must allow perf_event_open too, as --security-opt seccomp=unconfined does",
            ),
            OpenError::MachineNotPermitted { paranoid: Some(level) } if *level > MAINLINE => Some(
                "run this command as root, or run `sysctl kernel.perf_event_paranoid=0` as root; level 2 lets you record your \
                 own processes with -p",
            ),
            OpenError::MachineNotPermitted { .. } => Some(
                "run this command as root or with CAP_PERFMON, or run `sysctl kernel.perf_event_paranoid=0` as root; you can \
                 record your own processes with -p",
            ),
            OpenError::NoEvent(_) => Some(
                "most virtual machines have no hardware counters; page-faults, context-switches and tracepoints work \
                 everywhere",
            ),
            OpenError::UnknownEvent(_) => Some(
                "name a counter (page-faults, cycles), or a tracepoint as SUBSYSTEM:NAME; root finds them in \
                 /sys/kernel/tracing/events",
            ),
            OpenError::EventNotPermitted(_) => Some(
                "run this command as root or with CAP_PERFMON, or run `sysctl kernel.perf_event_paranoid=1` as root",
            ),
            OpenError::NoGroup => {
                Some("name a directory below /sys/fs/cgroup: of version 2, or of version 1's controller perf_event")
            }
            OpenError::EntriesNotPermitted => Some("run it as root"),
            OpenError::FrequencyTooHigh { .. } => Some("choose a lower rate with -F, or raise the setting"),
            OpenError::Io(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                Some("raise ulimit -n: each thread takes an open file on each CPU")
            }
            OpenError::RingNotPermitted => Some("raise ulimit -l, or sysctl kernel.perf_event_mlock_kb=2048"),
            _ => None,
        }
    }
}

impl std::error::Error for OpenError {}
