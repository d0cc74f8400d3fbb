//! What a dialect cannot express and events do not need.

use super::from_rfc::uuid_of;
use super::to_rfc::session_of;
use crate::metadata;
use backtrail_trace::description::{Base, FieldClass, Integer, Mapping, Storage, Struct};
use backtrail_trace::{Dialect, Trace};

/// A part of a description that the other dialect cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsaid {
    /// The tracer's environment.
    Environment,
    /// All but the first 32 bits of the trace's UUID.
    Uuid,
    /// The clock's name, frequency and origin: times become nanoseconds from there.
    Clock,
    /// Log levels of events.
    LogLevels,
    /// In which base numbers are printed.
    Bases,
    /// Classes of streams of which there is no stream.
    UnusedStreams,
    /// Classes of events that no event has, and that have fields of other dialects.
    IdleEvents,
    /// CPUs of packets that are not in the names of their files.
    Cpus,
    /// That fields do not cross the ends of C's units.
    Units,
    /// Labels of enumerations that are empty.
    EmptyLabels,
}

impl std::fmt::Display for Unsaid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unsaid::Environment => "the environment",
            Unsaid::Uuid => "the UUID",
            Unsaid::Clock => "the clock",
            Unsaid::LogLevels => "log levels",
            Unsaid::Bases => "the bases of numbers",
            Unsaid::UnusedStreams => "classes without streams",
            Unsaid::IdleEvents => "classes without events",
            Unsaid::Cpus => "CPUs that no file name has",
            Unsaid::Units => "units of bit fields",
            Unsaid::EmptyLabels => "empty labels",
        })
    }
}

/// What is left out of the trace's description in this dialect.
pub(super) fn of(trace: &Trace, dialect: Dialect) -> Vec<Unsaid> {
    let mut description = trace.description().clone();
    let (mut bases, mut units, mut empty_labels) = (false, false, false);
    description.for_each_struct(&mut |class| {
        integers(class, &mut |integer, labels| {
            bases |= integer.base != Base::Decimal;
            units |= matches!(integer.storage, Storage::Unit(_));
            empty_labels |= labels.iter().any(|label| label.name.is_empty());
        });
    });
    let mut events = description.streams.iter().flat_map(|class| &class.events);
    let mut found = match (trace.dialect() == Dialect::Rfc1_1, dialect == Dialect::Rfc1_1) {
        (false, true) => vec![
            (Unsaid::Environment, !description.environment.is_empty()),
            (
                Unsaid::Uuid,
                description
                    .uuid
                    .is_some_and(|uuid| uuid != uuid_of(session_of(Some(uuid)))),
            ),
            (
                Unsaid::Clock,
                description.clocks.iter().any(|clock| *clock != metadata::clock()),
            ),
            (Unsaid::LogLevels, events.any(|event| event.log_level.is_some())),
            (Unsaid::Bases, bases),
        ],
        (true, false) => vec![(Unsaid::Units, units)],
        _ => Vec::new(),
    };
    found.push((Unsaid::EmptyLabels, dialect == Dialect::V2 && empty_labels));
    found.into_iter().filter(|(_, is)| *is).map(|(what, _)| what).collect()
}

/// Calls `see` with each integer and, of an enumeration, its labels.
fn integers(class: &Struct, see: &mut impl FnMut(&Integer, &[Mapping])) {
    class.members.iter().for_each(|member| integers_in(&member.class, see));
}

fn integers_in(class: &FieldClass, see: &mut impl FnMut(&Integer, &[Mapping])) {
    match class {
        FieldClass::Integer(integer) => see(integer, &[]),
        FieldClass::Enumeration(class) => see(&class.integer, &class.mappings),
        FieldClass::Struct(class) => integers(class, see),
        FieldClass::Array(class) => integers_in(&class.element, see),
        _ => {}
    }
}
