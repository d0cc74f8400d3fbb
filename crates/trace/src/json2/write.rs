//! Writes a description as CTF 2 metadata, with every property that has a default written out.

use crate::constants::{NAMESPACE, RECORD_SEPARATOR};
use crate::description::{
    Array, BitMap, Clock, Description, Encoding, Enumeration, EnvironmentValue, EventClass, FieldClass, Integer,
    Length, Mapping, Optional, Range, Reference, Role, Storage, StreamClass, Struct, Variant,
};
use backtrail_wire::Endian;
use serde_json::{Map, Value, json};

/// The description contains something that only the RFC can express: packet sizes in bytes,
/// sequences with their own lengths, units of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteError;

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CTF 2 cannot express fields of the RFC")
    }
}

impl std::error::Error for WriteError {}

/// Writes the metadata: fragments, each between a record separator and a newline.
///
/// # Errors
///
/// CTF 2 cannot express the description.
pub fn write(description: &Description) -> Result<String, WriteError> {
    check(description)?;
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
    Ok(text)
}

fn check(description: &Description) -> Result<(), WriteError> {
    let mut roots: Vec<&Struct> = description.packet_header.iter().collect();
    for stream in &description.streams {
        roots.extend(
            [&stream.packet_context, &stream.event_header, &stream.event_context]
                .into_iter()
                .flatten(),
        );
        for event in &stream.events {
            roots.extend([&event.context, &event.payload].into_iter().flatten());
        }
    }
    let members = |class: &Struct| class.members.iter().all(|member| is_expressible(&member.class));
    match roots.into_iter().all(members) {
        true => Ok(()),
        false => Err(WriteError),
    }
}

fn is_expressible(class: &FieldClass) -> bool {
    match class {
        FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => {
            !matches!(integer.storage, Storage::Unit(_)) && integer.role.is_none_or(|role| role_name(role).is_some())
        }
        FieldClass::Struct(class) => class.members.iter().all(|member| is_expressible(&member.class)),
        FieldClass::Array(class) => !matches!(class.length, Length::Prefixed { .. }) && is_expressible(&class.element),
        FieldClass::Variant(class) => class.options.iter().all(|option| is_expressible(&option.class)),
        FieldClass::Optional(class) => is_expressible(&class.class),
        FieldClass::Float(_) | FieldClass::String(_) | FieldClass::BitMap(_) | FieldClass::Boolean(_) => true,
    }
}

/// The stream and event class that contain a reference.
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

#[expect(clippy::arithmetic_side_effects, reason = "the frequency is at least 1")]
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
    // CTF 2 requires less than one second here, unlike 1.8.
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
    insert_some(&mut class, "name", stream.name.as_deref());
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
        FieldClass::Float(class) => {
            let bits = Integer {
                storage: if class.reversed {
                    Storage::Reversed
                } else {
                    Storage::Bits
                },
                ..Integer::unsigned(class.size, class.byte_order).align(class.align)
            };
            Value::Object(fixed_bits("fixed-length-floating-point-number", &bits))
        }
        FieldClass::String(encoding) => {
            json!({ "type": "null-terminated-string", "encoding": encoding_name(*encoding) })
        }
        FieldClass::Struct(class) => structure(class, context),
        FieldClass::Array(class) => array(class, context),
        FieldClass::Variant(class) => variant(class, context),
        FieldClass::Optional(class) => optional(class, context),
        FieldClass::BitMap(class) => bit_map(class),
        FieldClass::Boolean(class) => Value::Object(fixed_bits("fixed-length-boolean", class)),
    }
}

fn integer(class: &Integer) -> Map<String, Value> {
    let mut object = match (class.storage, class.signed) {
        (Storage::Leb128, true) => object("variable-length-signed-integer"),
        (Storage::Leb128, false) => object("variable-length-unsigned-integer"),
        (_, true) => fixed_bits("fixed-length-signed-integer", class),
        (_, false) => fixed_bits("fixed-length-unsigned-integer", class),
    };
    object.insert("preferred-display-base".into(), class.base.number().into());
    if let Some(role) = class.role.and_then(role_name) {
        object.insert("roles".into(), json!([role]));
    }
    object
}

fn fixed_bits(kind: &str, class: &Integer) -> Map<String, Value> {
    let mut object = object(kind);
    object.insert("length".into(), class.size.into());
    object.insert("alignment".into(), class.align.into());
    object.insert("byte-order".into(), order_name(class.byte_order).into());
    if class.storage == Storage::Reversed {
        let bits = match class.byte_order {
            Endian::Little => "last-to-first",
            Endian::Big => "first-to-last",
        };
        object.insert("bit-order".into(), bits.into());
    }
    object
}

/// `None` for the roles that only the RFC has.
pub(super) const fn role_name(role: Role) -> Option<&'static str> {
    Some(match role {
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
        _ => return None,
    })
}

/// Names of encodings (section 5.3.11); ASCII is UTF-8 too.
pub(super) const ENCODINGS: [(Encoding, &str); 5] = [
    (Encoding::Utf8, "utf-8"),
    (Encoding::Utf16Le, "utf-16le"),
    (Encoding::Utf16Be, "utf-16be"),
    (Encoding::Utf32Le, "utf-32le"),
    (Encoding::Utf32Be, "utf-32be"),
];

fn encoding_name(encoding: Encoding) -> &'static str {
    let found = ENCODINGS.iter().find(|(other, _)| *other == encoding);
    found.map_or("utf-8", |(_, name)| name)
}

const fn order_name(order: Endian) -> &'static str {
    match order {
        Endian::Little => "little-endian",
        Endian::Big => "big-endian",
    }
}

fn enumeration(class: &Enumeration) -> Value {
    let mut object = integer(&class.integer);
    object.insert("mappings".into(), named_ranges(&class.mappings));
    Value::Object(object)
}

fn bit_map(class: &BitMap) -> Value {
    if class.flags.is_empty() {
        return Value::Object(fixed_bits("fixed-length-bit-array", &class.integer));
    }
    let mut object = fixed_bits("fixed-length-bit-map", &class.integer);
    object.insert("flags".into(), named_ranges(&class.flags));
    Value::Object(object)
}

/// Names must not be empty: those that are, which only formats before this one have, are left out.
fn named_ranges(mappings: &[Mapping]) -> Value {
    let mappings = mappings
        .iter()
        .filter(|mapping| !mapping.name.is_empty())
        .map(|Mapping { name, ranges: list }| (name.clone(), ranges(list)));
    Value::Object(mappings.collect())
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
    let text = match &*class.element {
        FieldClass::Integer(integer) if integer.is_character() => Some(integer.encoding),
        _ => None,
    };
    let blob = class.blob || class.trace_uuid;
    let (fixed, dynamic) = match (text.is_some(), blob) {
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
        // Rejected earlier by [`check`].
        Length::Prefixed { .. } => Map::new(),
    };
    if class.trace_uuid && context.description.uuid.is_some() {
        object.insert("roles".into(), json!(["metadata-stream-uuid"]));
    } else if let Some(encoding) = text {
        object.insert("encoding".into(), encoding_name(encoding).into());
    } else if !blob {
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

fn optional(class: &Optional, context: &Context<'_>) -> Value {
    let mut object = object("optional");
    object.insert("selector-field-location".into(), location(&class.tag, context));
    // Booleans are the only selectors without ranges.
    if class.ranges != Range::TRUE {
        object.insert("selector-field-ranges".into(), ranges(&class.ranges));
    }
    object.insert("field-class".into(), field_class(&class.class, context));
    Value::Object(object)
}

/// The path without the names of options: it means the option that is being read.
fn location(reference: &Reference, context: &Context<'_>) -> Value {
    if reference.any_option {
        return json!({ "origin": reference.scope.json_name(), "path": reference.path });
    }
    let mut path = Vec::with_capacity(reference.path.len());
    let root = context.description.root(reference.scope, context.stream, context.event);
    let mut names = reference.path.iter();
    let mut class = root.zip(names.next()).and_then(|(root, name)| {
        path.push(name.as_str());
        root.get(name)
    });
    for name in names {
        class = through(class);
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

/// The class inside classes without names: elements of arrays, and optional fields.
fn through(class: Option<&FieldClass>) -> Option<&FieldClass> {
    let mut class = class?;
    loop {
        class = match class {
            FieldClass::Array(array) => &array.element,
            FieldClass::Optional(optional) => &optional.class,
            other => return Some(other),
        };
    }
}
