//! The description of a trace of 1.8 or 2 as the RFC expresses it. What it cannot express stays,
//! and is refused when it is written.

use super::error::ConvertError;
use super::from_rfc::{length_name, number};
use super::target::{Target, failed, name_of};
use crate::metadata::{self, HeaderType};
use backtrail_trace::description::{
    Array, Description, Encoding, Enumeration, EventClass, FieldClass, Integer, Length, Member, Reference, Scope,
    Storage, StreamClass, Struct,
};
use backtrail_trace::{CreateError, CreateErrorKind, Options, Trace, TraceError};
use backtrail_wire::Endian;
use std::collections::HashMap;

/// The number of the session by which a UUID becomes known again.
pub(super) fn session_of(uuid: Option<[u8; 16]>) -> u32 {
    let first = uuid.and_then(|uuid| uuid.first_chunk().copied());
    first.map_or(0, u32::from_be_bytes)
}

pub(super) struct Described {
    pub(super) description: Description,
    /// What each stream is in it.
    pub(super) targets: Vec<Target>,
    /// Whether there are classes of streams without a stream, which are no sections.
    pub(super) unused: bool,
    /// Whether packets name a CPU that the file's name does not.
    pub(super) unnamed_cpus: bool,
}

/// The description as the RFC expresses it. A section has the name of its files; if their packets
/// name a CPU, it is the number at the name's end (RFC 2).
pub(super) fn described(trace: &Trace) -> Result<Described, CreateError> {
    let source = trace.description();
    let order = source
        .byte_order
        .or_else(|| source.first_byte_order())
        .unwrap_or(Endian::NATIVE);
    let mut description = metadata::description(order, session_of(source.uuid));
    let mut targets: Vec<Target> = Vec::new();
    let mut sections: Vec<(String, usize)> = Vec::new();
    let mut unnamed_cpus = false;
    for (stream, path) in trace.streams().iter().enumerate() {
        let Some(known) = known_stream(trace, stream)? else {
            continue;
        };
        let name = name_of(path);
        let named = name.rsplit_once('_');
        let (name, cpu) = match (known.cpu, named) {
            (Cpu::Always(cpu), Some((section, suffix))) if number(suffix) == Some(cpu) => (section, Some(cpu)),
            (Cpu::None, _) => (name, None),
            _ => {
                unnamed_cpus = true;
                (name, None)
            }
        };
        let section = (name.to_owned(), known.class);
        let place = match sections.iter().position(|(other, _)| *other == section.0) {
            Some(place) if sections[place] != section => {
                return Err(failed(path, ConvertError::SectionName));
            }
            Some(place) => place,
            None => {
                sections.push(section);
                sections.len() - 1
            }
        };
        targets.push(Target {
            stream,
            class: place as u64,
            instance: cpu.map_or(0, u64::from),
            cpu: None,
        });
    }
    let unused = (0..source.streams.len()).any(|class| sections.iter().all(|&(_, used)| used != class));
    for (id, (name, class)) in (0..).zip(sections) {
        description
            .streams
            .push(section(&source.streams[class], id, &name, order));
    }
    // One name may be the beginning of another.
    for target in &targets {
        let path = &trace.streams()[target.stream];
        if description.class_of_file(path) != Some(target.class as usize) {
            return Err(failed(path, ConvertError::SectionName));
        }
    }
    Ok(Described {
        description,
        targets,
        unused,
        unnamed_cpus,
    })
}

/// A stream's class and CPU, by its packets.
struct Known {
    /// Index of its class.
    class: usize,
    cpu: Cpu,
}

/// The CPU that packets name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cpu {
    None,
    Always(u32),
    Several,
}

/// Looks at all packets of a stream; `None` if it has none.
fn known_stream(trace: &Trace, stream: usize) -> Result<Option<Known>, CreateError> {
    let path = &trace.streams()[stream];
    let unread = |error: TraceError| CreateError::new(path, CreateErrorKind::Read(error.kind));
    let mut reader = trace.stream(stream, Options::default()).map_err(unread)?;
    let mut known: Option<Known> = None;
    while reader.next_packet().map_err(unread)? {
        let mut cpu = Cpu::None;
        for (name, value) in reader
            .packet_context()
            .iter()
            .flat_map(|context| context.without_roles())
        {
            match value.as_u64().map(u32::try_from) {
                Some(Ok(number)) if name == "cpu_id" => cpu = Cpu::Always(number),
                _ => return Err(failed(path, ConvertError::PacketContext(name.to_owned()))),
            }
        }
        let class = reader.packet().map_or(0, |packet| packet.stream_class);
        if known.as_ref().is_some_and(|known| known.cpu != cpu) {
            cpu = Cpu::Several;
        }
        known = Some(Known { class, cpu });
    }
    Ok(known)
}

fn section(class: &StreamClass, id: u64, name: &str, order: Endian) -> StreamClass {
    let ids = class.events.iter().map(|event| event.id);
    let mut section = metadata::section(id, name, order, HeaderType::for_ids(ids), false);
    let mut uses = HashMap::new();
    let payloads = class.events.iter().flat_map(|event| [&event.context, &event.payload]);
    for root in [&class.event_context].into_iter().chain(payloads).flatten() {
        count_uses(root, &mut uses);
    }
    section.event_context = class
        .event_context
        .as_ref()
        .filter(|context| !context.members.is_empty())
        .map(|context| root(context, Scope::StreamEventContext, &uses));
    section.events = class
        .events
        .iter()
        .map(|event| {
            let mut uses = HashMap::new();
            event.payload.iter().for_each(|payload| count_uses(payload, &mut uses));
            EventClass {
                id: event.id,
                name: event.name.clone(),
                log_level: None,
                context: event.context.clone().filter(|context| !context.members.is_empty()),
                payload: event
                    .payload
                    .as_ref()
                    .map(|payload| root(payload, Scope::EventPayload, &uses)),
            }
        })
        .collect();
    section
}

type Uses = HashMap<Reference, usize>;

/// How often each number is a length or a tag.
fn count_uses(class: &Struct, uses: &mut Uses) {
    class
        .members
        .iter()
        .for_each(|member| count_uses_in(&member.class, uses));
}

fn count_uses_in(class: &FieldClass, uses: &mut Uses) {
    match class {
        FieldClass::Struct(class) => count_uses(class, uses),
        FieldClass::Array(class) => {
            if let Length::Field(length) = &class.length {
                *uses.entry(length.clone()).or_default() += 1;
            }
            count_uses_in(&class.element, uses);
        }
        FieldClass::Variant(class) => {
            *uses.entry(class.tag.clone()).or_default() += 1;
            class
                .options
                .iter()
                .for_each(|option| count_uses_in(&option.class, uses));
        }
        FieldClass::Optional(class) => {
            *uses.entry(class.tag.clone()).or_default() += 1;
            count_uses_in(&class.class, uses);
        }
        _ => {}
    }
}

fn root(class: &Struct, scope: Scope, uses: &Uses) -> Struct {
    let mut path = Reference::new(scope, &[]);
    structure(class, &mut path, uses)
}

/// A number that is only the length of the sequence after it becomes part of the sequence.
fn structure(class: &Struct, path: &mut Reference, uses: &Uses) -> Struct {
    let mut members: Vec<Member> = Vec::new();
    for (index, member) in class.members.iter().enumerate() {
        path.path.push(member.name.clone());
        let mut converted = class_of(&member.class, path, uses);
        path.path.pop();
        if let FieldClass::Array(array) = &mut converted
            && let Length::Field(reference) = &array.length
            && uses.get(reference) == Some(&1)
            && let Some(before) = index.checked_sub(1).and_then(|before| class.members.get(before))
            && let FieldClass::Integer(_) = &before.class
            && is_member(reference, path, &before.name)
            && let Some(FieldClass::Integer(length)) = members.last().map(|member| member.class.clone())
        {
            members.pop();
            let name = (before.name != length_name(&member.name)).then(|| before.name.clone());
            array.length = Length::Prefixed { length, name };
        }
        members.push(Member {
            name: member.name.clone(),
            class: converted,
        });
    }
    Struct { members, min_align: 0 }
}

fn is_member(reference: &Reference, path: &Reference, name: &str) -> bool {
    let (scope, names) = (reference.scope, reference.path.split_last());
    scope == path.scope && names.is_some_and(|(last, rest)| last == name && *rest == *path.path)
}

fn class_of(class: &FieldClass, path: &mut Reference, uses: &Uses) -> FieldClass {
    match class {
        FieldClass::Integer(integer) => plain(*integer).into(),
        FieldClass::Enumeration(class) => Enumeration {
            integer: plain(class.integer),
            mappings: class.mappings.clone(),
        }
        .into(),
        FieldClass::String(Encoding::Ascii) => FieldClass::String(Encoding::Ascii),
        FieldClass::String(_) => FieldClass::String(Encoding::Utf8),
        FieldClass::Struct(class) => structure(class, path, uses).into(),
        FieldClass::Array(class) => match &*class.element {
            // Text says itself where it ends.
            FieldClass::Integer(element) if element.is_character() && !class.blob => FieldClass::String(Encoding::Utf8),
            element => Array {
                element: Box::new(class_of(element, path, uses)),
                min_align: 0,
                ..class.clone()
            }
            .into(),
        },
        other => other.clone(),
    }
}

/// The same number, stored as the RFC can say.
fn plain(integer: Integer) -> Integer {
    let size = match integer.storage {
        Storage::Leb128 => 64,
        _ => integer.size,
    };
    Integer {
        size,
        storage: Storage::Bits,
        encoding: Encoding::None,
        role: None,
        clock: None,
        ..integer
    }
}
