//! Event classes that the RFC cannot express and that no event has, such as those of a tracer that
//! declares all that it could record.

use super::to_rfc::Described;
use crate::metadata;
use backtrail_trace::description::{Description, StreamClass};
use backtrail_trace::{CreateError, CreateErrorKind, Options, Trace, TraceError};
use std::collections::HashSet;

/// Leaves them out; returns whether there were any.
pub(super) fn leave_out(trace: &Trace, described: &mut Described) -> Result<bool, CreateError> {
    if metadata::write(&described.description).is_ok() {
        return Ok(false);
    }
    let mut idle = inexpressible(&mut described.description);
    for target in &described.targets {
        let path = &trace.streams()[target.stream];
        let unread = |error: TraceError| CreateError::new(path, CreateErrorKind::Read(error.kind));
        let mut reader = trace.stream(target.stream, Options::default()).map_err(unread)?;
        while !idle.is_empty()
            && let Some(event) = reader.next().map_err(unread)?
        {
            idle.remove(&(target.class, event.class().id));
        }
    }
    for section in &mut described.description.streams {
        section.events.retain(|event| !idle.contains(&(section.id, event.id)));
    }
    Ok(!idle.is_empty())
}

/// The classes of events, by section, that cannot be written even alone.
fn inexpressible(description: &mut Description) -> HashSet<(u64, u64)> {
    let sections = std::mem::take(&mut description.streams);
    let mut found = HashSet::new();
    for section in &sections {
        let empty = StreamClass {
            events: Vec::new(),
            ..section.clone()
        };
        for event in &section.events {
            let mut alone = Description {
                streams: vec![empty.clone()],
                ..description.clone()
            };
            alone.streams[0].events.push(event.clone());
            if metadata::write(&alone).is_err() {
                found.insert((section.id, event.id));
            }
        }
    }
    description.streams = sections;
    found
}
