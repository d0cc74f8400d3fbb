//! Events that samples are taken at, by the names that perf gives them.

use super::error::OpenError;
use super::probes;
use crate::sys::{Clock, Event};

/// `PERF_TYPE_*`.
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
const CACHE: u32 = 3;

/// Names, kinds, numbers (`PERF_COUNT_HW_*`, `PERF_COUNT_SW_*`), and whether the kernel itself
/// causes them, for which it takes a right to count them.
const EVENTS: [(&str, u32, u64, bool); 17] = [
    ("cycles", HARDWARE, 0, false),
    ("instructions", HARDWARE, 1, false),
    ("cache-references", HARDWARE, 2, false),
    ("cache-misses", HARDWARE, 3, false),
    ("branches", HARDWARE, 4, false),
    ("branch-misses", HARDWARE, 5, false),
    ("bus-cycles", HARDWARE, 6, false),
    ("stalled-cycles-frontend", HARDWARE, 7, false),
    ("stalled-cycles-backend", HARDWARE, 8, false),
    ("ref-cycles", HARDWARE, 9, false),
    ("page-faults", SOFTWARE, 2, false),
    ("context-switches", SOFTWARE, 3, true),
    ("cpu-migrations", SOFTWARE, 4, true),
    ("minor-faults", SOFTWARE, 5, false),
    ("major-faults", SOFTWARE, 6, false),
    ("alignment-faults", SOFTWARE, 7, false),
    ("emulation-faults", SOFTWARE, 8, false),
];
/// `PERF_COUNT_HW_CACHE_*`: the cache, then reads and their misses.
const CACHES: [(&str, u64); 4] = [
    ("L1-dcache-load-misses", 1 << 16),
    ("LLC-load-misses", 2 | 1 << 16),
    ("dTLB-load-misses", 3 | 1 << 16),
    ("iTLB-load-misses", 4 | 1 << 16),
];
/// Other names for some.
const ALIASES: [(&str, &str); 5] = [
    ("faults", "page-faults"),
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
    ("cpu-cycles", "cycles"),
    ("branch-instructions", "branches"),
];

/// An event that samples are taken at, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampledEvent {
    /// A clock, at this rate per second of CPU time.
    Clock(u64),
    /// An event of the kernel or the CPU, each time that it has happened this often.
    Counted(CountedEvent, u64),
}

impl SampledEvent {
    /// The name of the clock.
    pub const CLOCK: &'static str = "cpu-clock";

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            SampledEvent::Clock(_) => Self::CLOCK,
            SampledEvent::Counted(event, _) => event.name(),
        }
    }

    /// What is opened for it.
    pub(super) fn attribute(&self) -> Result<Event, OpenError> {
        match self {
            &SampledEvent::Clock(frequency) => Ok(Event::Clock {
                clock: Clock::Cpu,
                frequency,
            }),
            SampledEvent::Counted(event, count) => event.attribute(*count),
        }
    }

    /// What a refusal means for it.
    pub(super) fn explain(&self, error: OpenError) -> OpenError {
        match self {
            SampledEvent::Clock(_) => error,
            SampledEvent::Counted(event, _) => event.explain(error),
        }
    }

    /// Whether it can happen in what may be sampled.
    pub(super) fn check(&self, kernel: bool) -> Result<(), OpenError> {
        match self {
            SampledEvent::Clock(_) => Ok(()),
            SampledEvent::Counted(event, _) => event.check(kernel),
        }
    }
}

/// An event by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedEvent {
    name: String,
    kind: u32,
    /// Of tracepoints, this is asked for when they are opened.
    config: u64,
    is_of_kernel: bool,
}

impl CountedEvent {
    /// The event with this name: a counter, or a tracepoint as `SUBSYSTEM:NAME`. Whether the
    /// machine has it is not known before sampling starts.
    ///
    /// # Errors
    /// If there is no event with this name.
    pub fn named(name: &str) -> Result<CountedEvent, OpenError> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = alias.map_or(name, |(_, name)| name);
        let made = |kind, config, is_of_kernel| CountedEvent {
            name: name.to_owned(),
            kind,
            config,
            is_of_kernel,
        };
        if let Some(&(_, kind, config, is_of_kernel)) = EVENTS.iter().find(|event| event.0 == name) {
            return Ok(made(kind, config, is_of_kernel));
        }
        if let Some(&(_, config)) = CACHES.iter().find(|cache| cache.0 == name) {
            return Ok(made(CACHE, config, false));
        }
        let is_plain = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            !part.is_empty() && part.bytes().all(allowed)
        };
        match name.split_once(':') {
            Some((subsystem, event)) if is_plain(subsystem) && is_plain(event) => Ok(made(TRACEPOINT, 0, true)),
            _ => Err(OpenError::UnknownEvent(name.to_owned())),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How often it happens for one sample, unless the user says so: so that there are not many
    /// more than a thousand samples a second.
    pub fn usual_count(&self) -> u64 {
        match (self.kind, self.name.as_str()) {
            (HARDWARE, "cycles" | "instructions" | "ref-cycles" | "bus-cycles") => 2_000_003,
            (HARDWARE, "branches" | "stalled-cycles-frontend" | "stalled-cycles-backend") => 500_009,
            (HARDWARE | CACHE, _) => 10_007,
            (SOFTWARE, "page-faults" | "minor-faults") => 10,
            _ => 1,
        }
    }

    /// What is opened for it.
    pub(super) fn attribute(&self, count: u64) -> Result<Event, OpenError> {
        let config = match (self.kind, self.name.split_once(':')) {
            (TRACEPOINT, Some((subsystem, event))) => match probes::number_of(subsystem, event) {
                Ok(number) => number,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Err(OpenError::EventNotPermitted(self.name.clone()));
                }
                Err(_) => return Err(OpenError::UnknownEvent(self.name.clone())),
            },
            _ => self.config,
        };
        Ok(Event::Counter {
            kind: self.kind,
            config,
            count,
        })
    }

    /// What a refusal means for this event.
    pub(super) fn explain(&self, error: OpenError) -> OpenError {
        match error {
            OpenError::Io(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
                ) =>
            {
                OpenError::NoEvent(self.name.clone())
            }
            OpenError::NotPermitted { .. } if self.is_of_kernel => OpenError::EventNotPermitted(self.name.clone()),
            error => error,
        }
    }

    /// Whether it can happen in what may be sampled.
    pub(super) fn check(&self, kernel: bool) -> Result<(), OpenError> {
        match self.is_of_kernel && !kernel {
            true => Err(OpenError::EventNotPermitted(self.name.clone())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_perfs() {
        assert_eq!(CountedEvent::named("faults").unwrap().name(), "page-faults");
        assert_eq!(CountedEvent::named("cycles").unwrap().usual_count(), 2_000_003);
        assert!(CountedEvent::named("sched:sched_switch").unwrap().is_of_kernel);
        for unknown in ["", "cycle", ":", "a:", ":b", "../x:y", "a:b:c", "a:../../id"] {
            assert!(
                matches!(CountedEvent::named(unknown), Err(OpenError::UnknownEvent(_))),
                "{unknown}"
            );
        }
    }
}
