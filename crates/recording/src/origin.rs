//! What a recording says about where it comes from.

use backtrail_trace::description::EnvironmentValue;

use crate::options::Measured;

/// The command and the machine of a recording; empty if it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The recorded command.
    pub command: String,
    /// Name of the machine.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's name, as `uname -m` prints it.
    pub machine: String,
    /// The program that wrote the recording, with its version.
    pub producer: String,
    /// Samples per second of CPU time, if a clock triggered them.
    pub frequency: Option<u64>,
    /// What samples measure.
    pub measured: Measured,
    /// The event that samples were taken at, if not a clock's, and how often it happened for one.
    pub event: Option<(String, u64)>,
    /// The events, if there are several, and how often each happened for one sample; 0 for a clock.
    pub events: Vec<(String, u64)>,
    /// If samples are calls that took at least this long, in nanoseconds.
    pub min_duration: Option<u64>,
}

/// Names of several events, followed by the number of each, and how often each happens for one
/// sample.
pub(crate) const SEVERAL_NAME: &str = "sample_event_";
pub(crate) const SEVERAL_PERIOD: &str = "sample_period_";

impl Origin {
    /// The name of the clock among several events, if there is one.
    pub fn clock_event(&self) -> Option<&str> {
        let clock = self.events.iter().find(|(_, count)| *count == 0);
        clock.map(|(name, _)| name.as_str())
    }

    pub(crate) fn of(environment: &[(String, EnvironmentValue)]) -> Origin {
        let mut origin = Origin::default();
        let (mut event, mut count) = (None, 1);
        for (name, value) in environment {
            match (name.as_str(), value) {
                ("trace_name", EnvironmentValue::String(text)) => origin.command.clone_from(text),
                ("hostname", EnvironmentValue::String(text)) => origin.hostname.clone_from(text),
                ("kernel_release", EnvironmentValue::String(text)) => origin.kernel.clone_from(text),
                ("machine", EnvironmentValue::String(text)) => origin.machine.clone_from(text),
                ("producer", EnvironmentValue::String(text)) => origin.producer.clone_from(text),
                ("measured", EnvironmentValue::String(text)) => {
                    let all = [Measured::Cpu, Measured::OffCpu, Measured::Wall];
                    let named = all.into_iter().find(|measured| measured.name() == text);
                    origin.measured = named.unwrap_or_default();
                }
                ("sample_event", EnvironmentValue::String(text)) => event = Some(text.clone()),
                ("sample_period", EnvironmentValue::Integer(value)) => {
                    count = u64::try_from(*value).unwrap_or(1).max(1)
                }
                (name, EnvironmentValue::String(text)) if name.starts_with(SEVERAL_NAME) => {
                    origin.events.push((text.clone(), 0));
                }
                (name, EnvironmentValue::Integer(value)) if name.starts_with(SEVERAL_PERIOD) => {
                    if let Some((_, count)) = origin.events.last_mut() {
                        *count = u64::try_from(*value).unwrap_or(0);
                    }
                }
                ("min_duration", EnvironmentValue::Integer(value)) => {
                    origin.min_duration = u64::try_from(*value).ok();
                }
                ("sample_frequency", EnvironmentValue::Integer(value)) => {
                    origin.frequency = u64::try_from(*value).ok().filter(|&frequency| frequency > 0);
                }
                _ => {}
            }
        }
        origin.event = event.map(|event| (event, count));
        origin
    }
}
