//! A trace as a whole.

use super::class::{Scope, Struct};
use backtrail_wire::Endian;
use std::path::Path;

/// A trace's metadata (CTF 1.8.3, section 7; CTF 2, section 5).
///
/// A plain value: construct it directly, or parse it with [`crate::tsdl::parse`] or
/// [`crate::json2::parse`]. It is checked when it is compiled into a [`crate::Plan`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// The trace's UUID, in the order in which it is printed.
    pub uuid: Option<[u8; 16]>,
    /// Byte order of integers without an explicit one (1.8 only; CTF 2 has none).
    pub byte_order: Option<Endian>,
    /// Namespace, name and unique id (CTF 2 only).
    pub identity: Identity,
    /// The tracer's environment, in the metadata's order.
    pub environment: Vec<(String, EnvironmentValue)>,
    /// Clocks; integers refer to them by index.
    pub clocks: Vec<Clock>,
    /// The struct at the start of every packet.
    pub packet_header: Option<Struct>,
    /// Session number, contained in all packets (RFC 5).
    pub session: Option<u32>,
    /// Classes of data streams.
    pub streams: Vec<StreamClass>,
}

/// The identity of a trace in CTF 2 (section 5.5): each part may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The namespace of the name.
    pub namespace: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// The unique id within namespace and name.
    pub uid: Option<String>,
}

/// The value of an environment entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvironmentValue {
    /// A number.
    Integer(i64),
    /// A text.
    String(String),
}

/// A clock (CTF 1.8.3, section 8; CTF 2, section 5.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Name; the id in CTF 2.
    pub name: String,
    /// Identity of the clock: times of traces with the same one can be compared.
    pub uuid: Option<[u8; 16]>,
    /// For people.
    pub description: Option<String>,
    /// Cycles per second, never 0.
    pub frequency: u64,
    /// Uncertainty in cycles.
    pub precision: Option<u64>,
    /// Seconds from the origin to cycle 0, plus [`Clock::offset_cycles`].
    pub offset_seconds: i64,
    /// Cycles to add to [`Clock::offset_seconds`]. In CTF 2 they are less than the frequency.
    pub offset_cycles: u64,
    /// Whether the origin is known to be 1970-01-01T00:00:00Z.
    pub unix_epoch: bool,
}

impl Clock {
    /// A clock that counts nanoseconds from the Unix epoch minus `offset_ns`.
    pub fn nanoseconds(name: &str, offset_ns: u64) -> Clock {
        Clock {
            name: name.to_owned(),
            uuid: None,
            description: None,
            frequency: 1_000_000_000,
            precision: None,
            offset_seconds: (offset_ns / 1_000_000_000) as i64,
            offset_cycles: offset_ns % 1_000_000_000,
            unix_epoch: true,
        }
    }

    /// Nanoseconds from the origin at this many cycles; `None` if they exceed signed 64 bits.
    pub fn nanoseconds_at(&self, cycles: u64) -> Option<i64> {
        const PER_SECOND: i128 = 1_000_000_000;
        let cycles = i128::from(self.offset_cycles) + i128::from(cycles);
        let since_offset = if self.frequency == 1_000_000_000 {
            cycles
        } else {
            cycles * PER_SECOND / i128::from(self.frequency.max(1))
        };
        i64::try_from(i128::from(self.offset_seconds) * PER_SECOND + since_offset).ok()
    }
}

/// A class of data streams (CTF 1.8.3, section 7.4; CTF 2, section 5.7).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamClass {
    /// Number in the packet header.
    pub id: u64,
    /// Name; sections of the RFC have one, which is also their files' name.
    pub name: Option<String>,
    /// Index of the clock that timestamps use.
    pub clock: Option<usize>,
    /// The struct after the packet header.
    pub packet_context: Option<Struct>,
    /// The struct at the start of every event.
    pub event_header: Option<Struct>,
    /// The struct after the event header, for events of all classes.
    pub event_context: Option<Struct>,
    /// Classes of events.
    pub events: Vec<EventClass>,
}

/// A class of events (CTF 1.8.3, section 7.5; CTF 2, section 5.8).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventClass {
    /// Number in the event header.
    pub id: u64,
    /// Name, by custom `provider:event`.
    pub name: String,
    /// Log level, as LTTng numbers it.
    pub log_level: Option<i64>,
    /// The struct after the stream's event context.
    pub context: Option<Struct>,
    /// The event's own fields.
    pub payload: Option<Struct>,
}

impl Description {
    /// The text of an environment entry.
    pub fn environment_string(&self, name: &str) -> Option<&str> {
        self.environment.iter().find_map(|(key, value)| match value {
            EnvironmentValue::String(value) if key == name => Some(value.as_str()),
            _ => None,
        })
    }

    /// The number of an environment entry.
    pub fn environment_integer(&self, name: &str) -> Option<i64> {
        self.environment.iter().find_map(|(key, value)| match value {
            EnvironmentValue::Integer(value) if key == name => Some(*value),
            _ => None,
        })
    }

    /// The stream class with this id.
    pub fn stream(&self, id: u64) -> Option<&StreamClass> {
        self.streams.iter().find(|class| class.id == id)
    }

    /// Index of the stream class that a file's name identifies (RFC 2): the class's name, or that,
    /// `_` and a CPU's number.
    pub fn class_of_file(&self, path: &Path) -> Option<usize> {
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_of = |name: &str| match file.strip_prefix(name) {
            Some("") => true,
            Some(rest) => rest
                .strip_prefix('_')
                .is_some_and(|cpu| !cpu.is_empty() && cpu.bytes().all(|byte| byte.is_ascii_digit())),
            None => false,
        };
        let names = self.streams.iter().enumerate();
        names
            .filter_map(|(index, class)| Some((class.name.as_deref()?, index)))
            .filter(|(name, _)| is_of(name))
            .max_by_key(|(name, _)| name.len())
            .map(|(_, index)| index)
    }

    pub(crate) fn root(&self, scope: Scope, stream: usize, event: usize) -> Option<&Struct> {
        let class = || self.streams.get(stream);
        match scope {
            Scope::PacketHeader => self.packet_header.as_ref(),
            Scope::PacketContext => class()?.packet_context.as_ref(),
            Scope::EventHeader => class()?.event_header.as_ref(),
            Scope::StreamEventContext => class()?.event_context.as_ref(),
            Scope::EventContext => class()?.events.get(event)?.context.as_ref(),
            Scope::EventPayload => class()?.events.get(event)?.payload.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_to_nanoseconds() {
        let mut clock = Clock::nanoseconds("monotonic", 1_795_185_990_900_000_741);
        assert_eq!(clock.nanoseconds_at(59), Some(1_795_185_990_900_000_800));
        assert_eq!(clock.nanoseconds_at(u64::MAX), None);
        clock.frequency = 3;
        clock.offset_seconds = -1;
        clock.offset_cycles = 1;
        assert_eq!(clock.nanoseconds_at(3), Some(333_333_333));
    }
}
