//! The RFC's description as CTF 1.8 and 2 express it.

use super::target::{Target, name_of};
use crate::metadata;
use backtrail_trace::Trace;
use backtrail_trace::description::{
    Array, Description, EventClass, FieldClass, Integer, Length, Member, Reference, Scope, Storage, StreamClass,
    Struct, compact_event_header, large_event_header, packet_context, packet_header,
};
use backtrail_wire::Endian;

/// A UUID that holds the session's number.
pub(super) fn uuid_of(session: u32) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..4].copy_from_slice(&session.to_be_bytes());
    // Version 8: nobody's but ours (RFC 9562).
    (uuid[6], uuid[8]) = (0x80, 0x80);
    uuid
}

/// The description, and what each stream is in it. Sections become classes of streams; if files
/// have numbers of CPUs, the packets name them.
pub(super) fn described(trace: &Trace) -> (Description, Vec<Target>) {
    let source = trace.description();
    let order = source.byte_order.unwrap_or(Endian::NATIVE);
    let mut description = Description {
        uuid: source.session.map(uuid_of),
        session: None,
        clocks: vec![metadata::clock()],
        packet_header: Some(packet_header(order)),
        streams: Vec::new(),
        ..source.clone()
    };
    let mut targets: Vec<Target> = Vec::new();
    // Sections, with and without CPUs, in the order of the new classes.
    let mut classes: Vec<(usize, bool)> = Vec::new();
    for (stream, path) in trace.streams().iter().enumerate() {
        let Some(section) = trace.class_of(stream) else {
            continue;
        };
        let name = source.streams[section].name.as_deref().unwrap_or_default();
        let rest = name_of(path).strip_prefix(name).and_then(|rest| rest.strip_prefix('_'));
        let cpu = rest.and_then(number);
        let class = (section, cpu.is_some());
        let place = classes.iter().position(|&other| other == class);
        let place = place.unwrap_or_else(|| {
            classes.push(class);
            classes.len() - 1
        });
        let before = targets.iter().filter(|target| target.class == place as u64).count();
        targets.push(Target {
            stream,
            class: place as u64,
            instance: before as u64,
            cpu,
        });
    }
    let unused = (0..source.streams.len()).filter(|&section| classes.iter().all(|&(used, _)| used != section));
    let unused: Vec<(usize, bool)> = unused.map(|section| (section, false)).collect();
    let all = classes.into_iter().chain(unused).enumerate();
    description.streams = all
        .map(|(id, (section, cpu))| stream_class(&source.streams[section], id as u64, order, cpu))
        .collect();
    if description.streams.is_empty() {
        // CTF 2 wants one.
        description
            .streams
            .push(stream_class(&StreamClass::default(), 0, order, false));
    }
    (description, targets)
}

/// The number of a CPU, if a file's name ends with it and would with no other text.
pub(super) fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn stream_class(section: &StreamClass, id: u64, order: Endian, cpu: bool) -> StreamClass {
    let mut context = packet_context(order, 0);
    if !cpu {
        context.members.retain(|member| member.name != "cpu_id");
    }
    let compact = section.events.iter().all(|event| event.id < 31);
    StreamClass {
        id,
        name: None,
        clock: Some(0),
        packet_context: Some(context),
        event_header: Some(match compact {
            true => compact_event_header(order, 0),
            false => large_event_header(order, 0),
        }),
        event_context: section
            .event_context
            .as_ref()
            .map(|context| root(context, Scope::StreamEventContext)),
        events: section
            .events
            .iter()
            .map(|event| EventClass {
                payload: event.payload.as_ref().map(|payload| root(payload, Scope::EventPayload)),
                ..event.clone()
            })
            .collect(),
    }
}

fn root(class: &Struct, scope: Scope) -> Struct {
    let mut path = Reference::new(scope, &[]);
    structure(class, &mut path)
}

/// Sequences have their length in a field before them, named as by LTTng unless the trace has
/// another name.
fn structure(class: &Struct, path: &mut Reference) -> Struct {
    let mut members: Vec<Member> = Vec::new();
    for member in &class.members {
        let mut length = None;
        if let FieldClass::Array(Array {
            length: Length::Prefixed { length: integer, name },
            ..
        }) = &member.class
        {
            let is_free = |name: &String| class.members.iter().all(|other| other.name != *name);
            let mut name = name.clone().unwrap_or_else(|| length_name(&member.name));
            while !is_free(&name) {
                name.insert(0, '_');
            }
            path.path.push(name.clone());
            length = Some(path.clone());
            path.path.pop();
            members.push(Member {
                name,
                class: plain(*integer).into(),
            });
        }
        path.path.push(member.name.clone());
        let mut converted = class_of(&member.class, path);
        path.path.pop();
        if let (FieldClass::Array(array), Some(length)) = (&mut converted, length) {
            array.length = Length::Field(length);
        }
        members.push(Member {
            name: member.name.clone(),
            class: converted,
        });
    }
    Struct {
        members,
        min_align: class.min_align,
    }
}

/// What LTTng calls the field with a sequence's length.
pub(super) fn length_name(sequence: &str) -> String {
    format!("_{sequence}_length")
}

fn class_of(class: &FieldClass, path: &mut Reference) -> FieldClass {
    match class {
        FieldClass::Integer(integer) => plain(*integer).into(),
        FieldClass::Enumeration(class) => {
            let mut class = class.clone();
            class.integer = plain(class.integer);
            class.into()
        }
        FieldClass::Struct(class) => structure(class, path).into(),
        FieldClass::Array(class) => Array {
            element: Box::new(class_of(&class.element, path)),
            ..class.clone()
        }
        .into(),
        other => other.clone(),
    }
}

/// The others know no units of C's bit fields.
fn plain(integer: Integer) -> Integer {
    Integer {
        storage: Storage::Bits,
        ..integer
    }
}
