//! Writes a description as CTF 2 metadata, with every property that has a default written out.

use crate::constants::{NAMESPACE, RECORD_SEPARATOR};
use crate::description::{
    Array, Clock, Description, Enumeration, EnvironmentValue, EventClass, FieldClass, Integer, Length, Mapping, Range,
    Reference, Role, StreamClass, Struct, Variant,
};
use backtrail_wire::Endian;
use serde_json::{Map, Value, json};

/// The metadata: fragments, each between a record separator and a newline.
pub fn write(description: &Description) -> String {
    let mut text = String::new();
    let mut preamble = object("preamble");
    preamble.insert("version".into(), 2.into());
    if let Some(uuid) = &description.uuid {
        preamble.insert("uuid".into(), json!(uuid));
    }
    fragment(&mut text, preamble);
    fragment(&mut text, trace_class(description));
    for clock in &description.clocks {
        fragment(&mut text, clock_class(clock));
    }
    for (index, class) in description.streams.iter().enumerate() {
        fragment(
            &mut text,
            stream_class(
                class,
                &Context {
                    description,
                    stream: index,
                    event: 0,
                },
            ),
        );
        for (number, event) in class.events.iter().enumerate() {
            let context = Context {
                description,
                stream: index,
                event: number,
            };
            fragment(&mut text, event_class(event, class, &context));
        }
    }
    text
}

/// Which stream and event class a reference is within.
struct Context<'d> {
    description: &'d Description,
    stream: usize,
    event: usize,
}

fn object(kind: &str) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), kind.into())])
}

fn fragment(text: &mut String, fragment: Map<String, Value>) {
    text.push(char::from(RECORD_SEPARATOR));
    text.push_str(&Value::Object(fragment).to_string());
    text.push('\n');
}

fn insert_some(object: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object.insert(name.to_owned(), value.into());
    }
}

fn insert_root(object: &mut Map<String, Value>, name: &str, root: Option<&Struct>, context: &Context<'_>) {
    insert_some(object, name, root.map(|class| structure(class, context)));
}

fn trace_class(description: &Description) -> Map<String, Value> {
    let mut class = object("trace-class");
    let identity = &description.identity;
    insert_some(&mut class, "namespace", identity.namespace.as_deref());
    insert_some(&mut class, "name", identity.name.as_deref());
    insert_some(&mut class, "uid", identity.uid.as_deref());
    if !description.environment.is_empty() {
        let entries = description.environment.iter().map(|(name, value)| {
            let value = match value {
                EnvironmentValue::Integer(value) => Value::from(*value),
                EnvironmentValue::String(value) => Value::from(value.as_str()),
            };
            (name.clone(), value)
        });
        class.insert("environment".into(), Value::Object(entries.collect()));
    }
    let context = Context {
        description,
        stream: 0,
        event: 0,
    };
    let header = description
        .packet_header
        .as_ref()
        .map(|class| structure(class, &context));
    insert_some(&mut class, "packet-header-field-class", header);
    class
}

fn clock_class(clock: &Clock) -> Map<String, Value> {
    let mut class = object("clock-class");
    class.insert("id".into(), clock.name.as_str().into());
    class.insert("name".into(), clock.name.as_str().into());
    insert_some(
        &mut class,
        "uid",
        clock.uuid.as_ref().map(crate::description::format_uuid),
    );
    insert_some(&mut class, "description", clock.description.as_deref());
    class.insert("frequency".into(), clock.frequency.into());
    insert_some(&mut class, "precision", clock.precision);
    if clock.unix_epoch {
        class.insert("origin".into(), "unix-epoch".into());
    }
    // The property must be less than one second, 1.8's need not be.
    let frequency = clock.frequency.max(1);
    let seconds = clock
        .offset_seconds
        .saturating_add((clock.offset_cycles / frequency) as i64);
    let cycles = clock.offset_cycles % frequency;
    class.insert(
        "offset-from-origin".into(),
        json!({ "seconds": seconds, "cycles": cycles }),
    );
    class
}

fn stream_class(stream: &StreamClass, context: &Context<'_>) -> Map<String, Value> {
    let mut class = object("data-stream-class");
    class.insert("id".into(), stream.id.into());
    let clock = stream.clock.and_then(|index| context.description.clocks.get(index));
    insert_some(
        &mut class,
        "default-clock-class-id",
        clock.map(|clock| clock.name.as_str()),
    );
    insert_root(
        &mut class,
        "packet-context-field-class",
        stream.packet_context.as_ref(),
        context,
    );
    insert_root(
        &mut class,
        "event-record-header-field-class",
        stream.event_header.as_ref(),
        context,
    );
    insert_root(
        &mut class,
        "event-record-common-context-field-class",
        stream.event_context.as_ref(),
        context,
    );
    class
}

fn event_class(event: &EventClass, stream: &StreamClass, context: &Context<'_>) -> Map<String, Value> {
    let mut class = object("event-record-class");
    class.insert("id".into(), event.id.into());
    class.insert("data-stream-class-id".into(), stream.id.into());
    class.insert("name".into(), event.name.as_str().into());
    if let Some(level) = event.log_level {
        class.insert("attributes".into(), json!({ NAMESPACE: { "log-level": level } }));
    }
    insert_root(
        &mut class,
        "specific-context-field-class",
        event.context.as_ref(),
        context,
    );
    insert_root(&mut class, "payload-field-class", event.payload.as_ref(), context);
    class
}

fn field_class(class: &FieldClass, context: &Context<'_>) -> Value {
    match class {
        FieldClass::Integer(class) => Value::Object(integer(class)),
        FieldClass::Enumeration(class) => enumeration(class),
        FieldClass::Float(class) => json!({
            "type": "fixed-length-floating-point-number",
            "length": class.size,
            "alignment": class.align,
            "byte-order": order_name(class.byte_order),
        }),
        FieldClass::String(_) => json!({ "type": "null-terminated-string", "encoding": "utf-8" }),
        FieldClass::Struct(class) => structure(class, context),
        FieldClass::Array(class) => array(class, context),
        FieldClass::Variant(class) => variant(class, context),
    }
}

fn integer(class: &Integer) -> Map<String, Value> {
    let mut object = object(match class.signed {
        true => "fixed-length-signed-integer",
        false => "fixed-length-unsigned-integer",
    });
    object.insert("length".into(), class.size.into());
    object.insert("alignment".into(), class.align.into());
    object.insert("byte-order".into(), order_name(class.byte_order).into());
    object.insert("preferred-display-base".into(), class.base.number().into());
    if let Some(role) = class.role {
        object.insert("roles".into(), json!([role_name(role)]));
    }
    object
}

pub(super) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Magic => "packet-magic-number",
        Role::StreamClassId => "data-stream-class-id",
        Role::StreamInstanceId => "data-stream-id",
        Role::Timestamp => "default-clock-timestamp",
        Role::TimestampEnd => "packet-end-default-clock-timestamp",
        Role::ContentSize => "packet-content-length",
        Role::PacketSize => "packet-total-length",
        Role::SequenceNumber => "packet-sequence-number",
        Role::EventsDiscarded => "discarded-event-record-counter-snapshot",
        Role::EventClassId => "event-record-class-id",
    }
}

const fn order_name(order: Endian) -> &'static str {
    match order {
        Endian::Little => "little-endian",
        Endian::Big => "big-endian",
    }
}

fn enumeration(class: &Enumeration) -> Value {
    let mut object = integer(&class.integer);
    let mappings = class
        .mappings
        .iter()
        .map(|Mapping { name, ranges: list }| (name.clone(), ranges(list)));
    object.insert("mappings".into(), Value::Object(mappings.collect()));
    Value::Object(object)
}

fn ranges(ranges: &[Range]) -> Value {
    let number = |value: i128| match u64::try_from(value) {
        Ok(value) => Value::from(value),
        Err(_) => Value::from(i64::try_from(value).unwrap_or(i64::MIN)),
    };
    ranges
        .iter()
        .map(|range| json!([number(range.first), number(range.last)]))
        .collect()
}

fn structure(class: &Struct, context: &Context<'_>) -> Value {
    let members: Vec<Value> = class
        .members
        .iter()
        .map(|member| json!({ "name": member.name, "field-class": field_class(&member.class, context) }))
        .collect();
    let mut object = object("structure");
    object.insert("member-classes".into(), members.into());
    if class.min_align > 1 {
        object.insert("minimum-alignment".into(), class.min_align.into());
    }
    Value::Object(object)
}

fn array(class: &Array, context: &Context<'_>) -> Value {
    let text = matches!(&*class.element, FieldClass::Integer(integer) if integer.is_character());
    let (fixed, dynamic) = match (text, class.trace_uuid) {
        (_, true) => ("static-length-blob", "dynamic-length-blob"),
        (true, false) => ("static-length-string", "dynamic-length-string"),
        (false, false) => ("static-length-array", "dynamic-length-array"),
    };
    let mut object = match &class.length {
        Length::Fixed(length) => {
            let mut object = object(fixed);
            object.insert("length".into(), (*length).into());
            object
        }
        Length::Field(reference) => {
            let mut object = object(dynamic);
            object.insert("length-field-location".into(), location(reference, context));
            object
        }
    };
    if class.trace_uuid {
        object.insert("roles".into(), json!(["metadata-stream-uuid"]));
    } else if text {
        object.insert("encoding".into(), "utf-8".into());
    } else {
        object.insert("element-field-class".into(), field_class(&class.element, context));
        if class.min_align > 1 {
            object.insert("minimum-alignment".into(), class.min_align.into());
        }
    }
    Value::Object(object)
}

fn variant(class: &Variant, context: &Context<'_>) -> Value {
    let options: Vec<Value> = class
        .options
        .iter()
        .map(|option| {
            json!({
                "name": option.name,
                "selector-field-ranges": ranges(&option.ranges),
                "field-class": field_class(&option.class, context),
            })
        })
        .collect();
    json!({ "type": "variant", "selector-field-location": location(&class.tag, context), "options": options })
}

/// The path without the names of options: there the option that is read is meant.
fn location(reference: &Reference, context: &Context<'_>) -> Value {
    let mut path = Vec::with_capacity(reference.path.len());
    let root = context.description.root(reference.scope, context.stream, context.event);
    let mut names = reference.path.iter();
    let mut class = root.zip(names.next()).and_then(|(root, name)| {
        path.push(name.as_str());
        root.get(name)
    });
    for name in names {
        while let Some(FieldClass::Array(array)) = class {
            class = Some(&array.element);
        }
        class = match class {
            Some(FieldClass::Variant(variant)) => variant
                .options
                .iter()
                .find(|option| option.name == *name)
                .map(|option| &option.class),
            Some(FieldClass::Struct(class)) => {
                path.push(name);
                class.get(name)
            }
            _ => None,
        };
    }
    json!({ "origin": reference.scope.json_name(), "path": path })
}
