//! Reads CTF 2 metadata.

use super::write::role_name;
use super::{Error, ErrorKind, Result};
use crate::constants::{MAX_NESTING, NAMESPACE, RECORD_SEPARATOR};
use crate::description::{
    Array, Base, Clock, Description, Encoding, Enumeration, EnvironmentValue, EventClass, FieldClass, Float, Identity,
    Integer, Length, Mapping, Member, Range, Reference, Role, Scope, StreamClass, Struct, Variant, VariantOption,
    parse_uuid,
};
use backtrail_wire::Endian;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Aliases that use others can describe exponentially many fields. Real metadata has less than one for fifty bytes.
const MAX_FIELDS_PER_BYTE: u64 = 2;

/// Parses the text of a trace's metadata.
pub fn parse(text: &str) -> std::result::Result<Description, Error> {
    let mut reader = Reader {
        description: Description::default(),
        aliases: HashMap::new(),
        seen_trace_class: false,
        roots: HashMap::new(),
        way: Way::default(),
        fields_left: MAX_FIELDS_PER_BYTE * text.len() as u64 + 64,
    };
    let mut line = 1u32;
    let mut fragments = 0u32;
    let mut pieces = text.split(char::from(RECORD_SEPARATOR));
    let before = pieces.next().unwrap_or_default();
    if !before.is_empty() {
        return Err(at(ErrorKind::NoSeparator, 1, line, 1));
    }
    for piece in pieces {
        let lines = piece.bytes().filter(|&byte| byte == b'\n').count() as u32;
        // RFC 7464, section 2.1: nothing between two separators is no element.
        if !piece.trim().is_empty() {
            fragments += 1;
            let value: Value = serde_json::from_str(piece).map_err(|error| {
                let error_line = line.saturating_add(error.line() as u32).saturating_sub(1);
                at(ErrorKind::Syntax, fragments, error_line, error.column() as u32)
            })?;
            reader
                .fragment(&value, fragments == 1)
                .map_err(|kind| at(kind, fragments, line, 1))?;
        }
        line = line.saturating_add(lines);
    }
    let missing = match fragments {
        0 => Some(ErrorKind::Preamble),
        _ if reader.description.streams.is_empty() => Some(ErrorKind::NoStream),
        _ => None,
    };
    match missing {
        Some(kind) => Err(at(kind, fragments, line, 1)),
        None => Ok(reader.description),
    }
}

fn at(kind: ErrorKind, fragment: u32, line: u32, column: u32) -> Error {
    Error {
        kind,
        fragment,
        line,
        column,
    }
}

/// An object whose properties are taken one after the other; what is left at the end is unknown.
struct Object<'v> {
    map: &'v Map<String, Value>,
    taken: usize,
}

impl<'v> Object<'v> {
    fn of(value: &'v Value) -> Result<Object<'v>> {
        let map = value.as_object().ok_or(ErrorKind::NotAnObject)?;
        let mut object = Object { map, taken: 0 };
        if object
            .take("extensions")
            .is_some_and(|extensions| extensions.as_object().is_none_or(|map| !map.is_empty()))
        {
            return Err(ErrorKind::Extension);
        }
        if object
            .take("attributes")
            .is_some_and(|attributes| !attributes.is_object())
        {
            return Err(ErrorKind::Value("attributes"));
        }
        Ok(object)
    }

    fn take(&mut self, name: &str) -> Option<&'v Value> {
        let value = self.map.get(name);
        self.taken += usize::from(value.is_some());
        value
    }

    fn required(&mut self, name: &'static str) -> Result<&'v Value> {
        self.take(name).ok_or(ErrorKind::Missing(name))
    }

    fn u64(&mut self, name: &'static str) -> Result<Option<u64>> {
        self.take(name)
            .map(|value| value.as_u64().ok_or(ErrorKind::Value(name)))
            .transpose()
    }

    fn text(&mut self, name: &'static str) -> Result<Option<&'v str>> {
        self.take(name)
            .map(|value| value.as_str().ok_or(ErrorKind::Value(name)))
            .transpose()
    }

    fn owned(&mut self, name: &'static str) -> Result<Option<String>> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    fn list(&mut self, name: &'static str) -> Result<&'v [Value]> {
        match self.take(name) {
            None => Ok(&[]),
            Some(value) => Ok(value.as_array().ok_or(ErrorKind::Value(name))?),
        }
    }

    fn alignment(&mut self, name: &'static str) -> Result<Option<u32>> {
        match self.u64(name)? {
            None => Ok(None),
            Some(align) => match u32::try_from(align) {
                Ok(align) if align.is_power_of_two() => Ok(Some(align)),
                _ => Err(ErrorKind::Value(name)),
            },
        }
    }

    fn finish(self, kind: &'static str) -> Result<()> {
        match self.taken == self.map.len() {
            true => Ok(()),
            false => Err(ErrorKind::UnknownProperty(kind)),
        }
    }
}

struct Reader {
    description: Description,
    aliases: HashMap<String, Rc<Value>>,
    seen_trace_class: bool,
    /// The scopes before the one that is read.
    roots: HashMap<Scope, Struct>,
    way: Way,
    fields_left: u64,
}

/// Where the reader is in a root.
#[derive(Default)]
struct Way {
    scope: Option<Scope>,
    clock: Option<usize>,
    /// Structs around the field, the innermost last.
    frames: Vec<Frame>,
    /// Names of members and options from the root.
    path: Vec<String>,
}

struct Frame {
    /// Members before the one that is read.
    members: Vec<Member>,
    current: String,
    /// Names in [`Way::path`] that lead to the struct.
    path: usize,
}

impl Reader {
    fn fragment(&mut self, value: &Value, first: bool) -> Result<()> {
        let mut object = Object::of(value)?;
        let kind = object.required("type")?.as_str().ok_or(ErrorKind::Value("type"))?;
        if first != (kind == "preamble") {
            return Err(ErrorKind::Preamble);
        }
        match kind {
            "preamble" => self.preamble(object),
            "field-class-alias" => self.alias(object),
            "trace-class" => self.trace_class(object),
            "clock-class" => self.clock_class(object),
            "data-stream-class" => self.stream_class(object),
            "event-record-class" => self.event_class(object),
            _ => Err(ErrorKind::UnknownType),
        }
    }

    fn preamble(&mut self, mut object: Object<'_>) -> Result<()> {
        if object.required("version")?.as_u64() != Some(2) {
            return Err(ErrorKind::Value("version"));
        }
        if let Some(uuid) = object.take("uuid") {
            let bytes = uuid
                .as_array()
                .filter(|bytes| bytes.len() == 16)
                .ok_or(ErrorKind::Value("uuid"))?;
            let mut parsed = [0u8; 16];
            for (byte, value) in parsed.iter_mut().zip(bytes) {
                let value = value.as_u64().and_then(|value| u8::try_from(value).ok());
                *byte = value.ok_or(ErrorKind::Value("uuid"))?;
            }
            self.description.uuid = Some(parsed);
        }
        object.finish("preamble")
    }

    fn alias(&mut self, mut object: Object<'_>) -> Result<()> {
        let name = object.required("name")?.as_str().ok_or(ErrorKind::Value("name"))?;
        let class = object.required("field-class")?;
        if self.aliases.insert(name.to_owned(), Rc::new(class.clone())).is_some() {
            return Err(ErrorKind::Duplicate("alias"));
        }
        object.finish("alias")
    }

    fn trace_class(&mut self, mut object: Object<'_>) -> Result<()> {
        if std::mem::replace(&mut self.seen_trace_class, true) || !self.description.streams.is_empty() {
            return Err(ErrorKind::Duplicate("trace class"));
        }
        self.description.identity = Identity {
            namespace: object.owned("namespace")?,
            name: object.owned("name")?,
            uid: object.owned("uid")?,
        };
        if let Some(entries) = object.take("environment") {
            for (name, value) in entries.as_object().ok_or(ErrorKind::Value("environment"))? {
                let value = match value {
                    Value::String(text) => EnvironmentValue::String(text.clone()),
                    other => EnvironmentValue::Integer(other.as_i64().ok_or(ErrorKind::Value("environment"))?),
                };
                self.description.environment.push((name.clone(), value));
            }
        }
        self.way.clock = None;
        self.description.packet_header = self.root(&mut object, "packet-header-field-class", Scope::PacketHeader)?;
        object.finish("trace class")
    }

    fn clock_class(&mut self, mut object: Object<'_>) -> Result<()> {
        let id = object
            .required("id")?
            .as_str()
            .ok_or(ErrorKind::Value("id"))?
            .to_owned();
        if self.description.clocks.iter().any(|clock| clock.name == id) {
            return Err(ErrorKind::Duplicate("clock class"));
        }
        object.text("namespace")?;
        object.text("name")?;
        object.u64("accuracy")?;
        let uuid = object.text("uid")?.and_then(parse_uuid);
        let description = object.owned("description")?;
        let frequency = object
            .required("frequency")?
            .as_u64()
            .filter(|&frequency| frequency > 0);
        let frequency = frequency.ok_or(ErrorKind::Value("frequency"))?;
        let precision = object.u64("precision")?;
        let unix_epoch = match object.take("origin") {
            None => false,
            Some(Value::String(origin)) if origin == "unix-epoch" => true,
            Some(Value::Object(_)) => false,
            Some(_) => return Err(ErrorKind::Value("origin")),
        };
        let (mut offset_seconds, mut offset_cycles) = (0, 0);
        if let Some(offset) = object.take("offset-from-origin") {
            let mut offset = Object::of(offset)?;
            if let Some(seconds) = offset.take("seconds") {
                offset_seconds = seconds.as_i64().ok_or(ErrorKind::Value("seconds"))?;
            }
            offset_cycles = offset.u64("cycles")?.unwrap_or(0);
            if offset_cycles >= frequency {
                return Err(ErrorKind::Value("cycles"));
            }
            offset.finish("offset")?;
        }
        self.description.clocks.push(Clock {
            name: id,
            uuid,
            description,
            frequency,
            precision,
            offset_seconds,
            offset_cycles,
            unix_epoch,
        });
        object.finish("clock class")
    }

    fn stream_class(&mut self, mut object: Object<'_>) -> Result<()> {
        let id = object.u64("id")?.unwrap_or(0);
        if self.description.stream(id).is_some() {
            return Err(ErrorKind::Duplicate("data stream class"));
        }
        for name in ["namespace", "name", "uid"] {
            object.text(name)?;
        }
        let clock = match object.text("default-clock-class-id")? {
            None => None,
            Some(id) => {
                let index = self.description.clocks.iter().position(|clock| clock.name == id);
                Some(index.ok_or(ErrorKind::UnknownClock)?)
            }
        };
        self.way.clock = clock;
        self.roots.retain(|&scope, _| scope == Scope::PacketHeader);
        if let Some(header) = &self.description.packet_header {
            self.roots.insert(Scope::PacketHeader, header.clone());
        }
        let class = StreamClass {
            id,
            clock,
            packet_context: self.root(&mut object, "packet-context-field-class", Scope::PacketContext)?,
            event_header: self.root(&mut object, "event-record-header-field-class", Scope::EventHeader)?,
            event_context: self.root(
                &mut object,
                "event-record-common-context-field-class",
                Scope::StreamEventContext,
            )?,
            events: Vec::new(),
        };
        self.description.streams.push(class);
        object.finish("data stream class")
    }

    fn event_class(&mut self, mut object: Object<'_>) -> Result<()> {
        let id = object.u64("id")?.unwrap_or(0);
        let stream_id = object.u64("data-stream-class-id")?.unwrap_or(0);
        let stream = self.description.streams.iter().position(|class| class.id == stream_id);
        let stream = stream.ok_or(ErrorKind::UnknownStream(stream_id))?;
        if self.description.streams[stream]
            .events
            .iter()
            .any(|event| event.id == id)
        {
            return Err(ErrorKind::Duplicate("event record class"));
        }
        let name = object.owned("name")?.unwrap_or_default();
        object.text("namespace")?;
        object.text("uid")?;
        let attributes = object
            .map
            .get("attributes")
            .and_then(|attributes| attributes.get(NAMESPACE));
        let log_level = attributes
            .and_then(|ours| ours.get("log-level"))
            .and_then(Value::as_i64);
        self.way.clock = None;
        for scope in Scope::ALL {
            match self.description.root(scope, stream, usize::MAX) {
                Some(root) => self.roots.insert(scope, root.clone()),
                None => self.roots.remove(&scope),
            };
        }
        let class = EventClass {
            id,
            name,
            log_level,
            context: self.root(&mut object, "specific-context-field-class", Scope::EventContext)?,
            payload: self.root(&mut object, "payload-field-class", Scope::EventPayload)?,
        };
        self.description.streams[stream].events.push(class);
        object.finish("event record class")
    }

    fn root(&mut self, object: &mut Object<'_>, name: &'static str, scope: Scope) -> Result<Option<Struct>> {
        let Some(value) = object.take(name) else {
            return Ok(None);
        };
        self.way.scope = Some(scope);
        self.way.frames.clear();
        self.way.path.clear();
        match self.class(value, 0)? {
            FieldClass::Struct(class) => {
                self.roots.insert(scope, class.clone());
                Ok(Some(class))
            }
            _ => Err(ErrorKind::Value(name)),
        }
    }

    fn class(&mut self, value: &Value, depth: usize) -> Result<FieldClass> {
        if depth >= MAX_NESTING {
            return Err(ErrorKind::TooDeep);
        }
        self.fields_left = self.fields_left.checked_sub(1).ok_or(ErrorKind::TooLarge)?;
        if let Value::String(alias) = value {
            let class = self.aliases.get(alias).cloned().ok_or(ErrorKind::UnknownAlias)?;
            return self.class(&class, depth + 1);
        }
        let mut object = Object::of(value)?;
        let kind = object.required("type")?.as_str().ok_or(ErrorKind::Value("type"))?;
        let class = match kind {
            "fixed-length-unsigned-integer" => self.integer(&mut object, false)?,
            "fixed-length-signed-integer" => self.integer(&mut object, true)?,
            "fixed-length-floating-point-number" => float(&mut object)?,
            "null-terminated-string" => {
                encoding(&mut object)?;
                FieldClass::String(Encoding::Utf8)
            }
            "structure" => FieldClass::Struct(self.structure(&mut object, depth)?),
            "static-length-array" | "dynamic-length-array" => {
                let length = self.length(&mut object, kind)?;
                let element = object.required("element-field-class")?;
                FieldClass::Array(Array {
                    length,
                    element: Box::new(self.class(element, depth + 1)?),
                    min_align: object
                        .alignment("minimum-alignment")?
                        .filter(|&align| align > 1)
                        .unwrap_or(0),
                    trace_uuid: false,
                })
            }
            "static-length-string" | "dynamic-length-string" => {
                encoding(&mut object)?;
                let length = self.length(&mut object, kind)?;
                bytes(length, Integer::character(Endian::Little))
            }
            "static-length-blob" | "dynamic-length-blob" => self.blob(&mut object, kind)?,
            "variant" => FieldClass::Variant(self.variant(&mut object, depth)?),
            "variable-length-unsigned-integer" | "variable-length-signed-integer" => {
                return Err(ErrorKind::Unsupported("variable-length integers"));
            }
            "fixed-length-bit-array" | "fixed-length-bit-map" => return Err(ErrorKind::Unsupported("bit arrays")),
            "fixed-length-boolean" => return Err(ErrorKind::Unsupported("booleans")),
            "optional" => return Err(ErrorKind::Unsupported("optional fields")),
            _ => return Err(ErrorKind::UnknownType),
        };
        object.finish("field class")?;
        Ok(class)
    }

    fn integer(&mut self, object: &mut Object<'_>, signed: bool) -> Result<FieldClass> {
        let size = object
            .required("length")?
            .as_u64()
            .filter(|size| (1..=64).contains(size));
        let byte_order = byte_order(object)?;
        let mut integer = Integer {
            size: size.ok_or(ErrorKind::Value("length"))? as u32,
            align: object.alignment("alignment")?.unwrap_or(1),
            signed,
            base: match object.u64("preferred-display-base")? {
                None => Base::Decimal,
                Some(base) => Base::from_number(base).ok_or(ErrorKind::Value("preferred-display-base"))?,
            },
            byte_order,
            encoding: Encoding::None,
            role: None,
            clock: None,
        };
        for name in object.list("roles")? {
            let name = name.as_str().ok_or(ErrorKind::Value("roles"))?;
            integer.role = Some(self.role(name)?);
        }
        if matches!(integer.role, Some(Role::Timestamp | Role::TimestampEnd)) {
            integer.clock = Some(self.way.clock.ok_or(ErrorKind::UnknownClock)?);
        }
        let Some(mappings) = object.take("mappings") else {
            return Ok(FieldClass::Integer(integer));
        };
        let mappings = mappings.as_object().ok_or(ErrorKind::Value("mappings"))?;
        let mappings = mappings.iter().map(|(name, list)| {
            Ok(Mapping {
                name: name.clone(),
                ranges: ranges(list.as_array().ok_or(ErrorKind::Value("mappings"))?)?,
            })
        });
        Ok(FieldClass::Enumeration(Enumeration {
            integer,
            mappings: mappings.collect::<Result<_>>()?,
        }))
    }

    fn role(&self, name: &str) -> Result<Role> {
        const HEADER: &[Role] = &[Role::Magic, Role::StreamClassId, Role::StreamInstanceId];
        const CONTEXT: &[Role] = &[
            Role::Timestamp,
            Role::TimestampEnd,
            Role::ContentSize,
            Role::PacketSize,
            Role::SequenceNumber,
            Role::EventsDiscarded,
        ];
        let allowed = match self.way.scope {
            Some(Scope::PacketHeader) => HEADER,
            Some(Scope::PacketContext) => CONTEXT,
            Some(Scope::EventHeader) => &[Role::Timestamp, Role::EventClassId],
            _ => &[],
        };
        let found = allowed.iter().find(|&&role| role_name(role) == name);
        found.copied().ok_or(ErrorKind::Value("roles"))
    }

    fn structure(&mut self, object: &mut Object<'_>, depth: usize) -> Result<Struct> {
        self.way.frames.push(Frame {
            members: Vec::new(),
            current: String::new(),
            path: self.way.path.len(),
        });
        let mut names = std::collections::HashSet::new();
        for member in object.list("member-classes")? {
            let mut member = Object::of(member)?;
            let name = member.required("name")?.as_str().ok_or(ErrorKind::Value("name"))?;
            if !names.insert(name) {
                return Err(ErrorKind::Duplicate("member"));
            }
            let class = member.required("field-class")?;
            if let Some(frame) = self.way.frames.last_mut() {
                frame.current = name.to_owned();
            }
            self.way.path.push(name.to_owned());
            let class = self.class(class, depth + 1)?;
            self.way.path.pop();
            if let Some(frame) = self.way.frames.last_mut() {
                frame.members.push(Member {
                    name: name.to_owned(),
                    class,
                });
            }
            member.finish("member")?;
        }
        Ok(Struct {
            members: self.way.frames.pop().map(|frame| frame.members).unwrap_or_default(),
            min_align: object
                .alignment("minimum-alignment")?
                .filter(|&align| align > 1)
                .unwrap_or(0),
        })
    }

    fn length(&self, object: &mut Object<'_>, kind: &str) -> Result<Length> {
        if kind.starts_with("static") {
            let length = object.required("length")?.as_u64();
            return Ok(Length::Fixed(length.ok_or(ErrorKind::Value("length"))?));
        }
        let (reference, class) = self.location(object.required("length-field-location")?)?;
        match integer_of(class) {
            Some(integer) if !integer.signed => Ok(Length::Field(reference)),
            _ => Err(ErrorKind::Location),
        }
    }

    /// Bytes are read as an array of numbers.
    fn blob(&mut self, object: &mut Object<'_>, kind: &str) -> Result<FieldClass> {
        let length = self.length(object, kind)?;
        object.text("media-type")?;
        let mut class = bytes(length.clone(), Integer::unsigned(8, Endian::Little).hexadecimal());
        for role in object.list("roles")? {
            let sound = role.as_str() == Some("metadata-stream-uuid")
                && self.way.scope == Some(Scope::PacketHeader)
                && length == Length::Fixed(16);
            match &mut class {
                FieldClass::Array(array) if sound => array.trace_uuid = true,
                _ => return Err(ErrorKind::Value("roles")),
            }
        }
        Ok(class)
    }

    fn variant(&mut self, object: &mut Object<'_>, depth: usize) -> Result<Variant> {
        let (tag, class) = self.location(object.required("selector-field-location")?)?;
        if integer_of(class).is_none() {
            return Err(ErrorKind::Location);
        }
        let mut options = Vec::new();
        for (index, option) in object.list("options")?.iter().enumerate() {
            let mut option = Object::of(option)?;
            let name = option.owned("name")?.unwrap_or_else(|| index.to_string());
            let list = ranges(option.list("selector-field-ranges")?)?;
            if list.is_empty() {
                return Err(ErrorKind::Missing("selector-field-ranges"));
            }
            let class = option.required("field-class")?;
            self.way.path.push(name.clone());
            let class = self.class(class, depth + 1)?;
            self.way.path.pop();
            options.push(VariantOption {
                name,
                ranges: list,
                class,
            });
            option.finish("option")?;
        }
        Ok(Variant { tag, options })
    }

    /// Follows a field location (section 5.3.2) to an earlier field.
    fn location(&self, value: &Value) -> Result<(Reference, &FieldClass)> {
        let mut object = Object::of(value)?;
        let path = object.list("path")?;
        let origin = object.text("origin")?;
        object.finish("field location")?;
        let current = self.way.scope.ok_or(ErrorKind::Location)?;
        let Some(origin) = origin else {
            let parents = path.iter().take_while(|name| name.is_null()).count();
            let last = self.way.frames.len().checked_sub(1);
            let frame = last
                .and_then(|last| last.checked_sub(parents))
                .ok_or(ErrorKind::Location)?;
            return self.follow_frames(current, frame, &names(&path[parents..])?);
        };
        let scope = Scope::ALL.into_iter().find(|scope| scope.json_name() == origin);
        let scope = scope.ok_or(ErrorKind::Value("origin"))?;
        let names = names(path)?;
        if scope == current {
            return self.follow_frames(scope, 0, &names);
        }
        let root = self
            .roots
            .get(&scope)
            .filter(|_| scope < current)
            .ok_or(ErrorKind::Location)?;
        let class = descend(&root.members, &names).ok_or(ErrorKind::Location)?;
        let path = names.into_iter().map(str::to_owned).collect();
        Ok((Reference { scope, path }, class))
    }

    /// Names that lead along the way to the current field stay on it, through the arrays and options that lie there.
    fn follow_frames(&self, scope: Scope, first: usize, names: &[&str]) -> Result<(Reference, &FieldClass)> {
        let mut names = names;
        let mut index = first;
        while let Some(frame) = self.way.frames.get(index)
            && let Some((first, rest)) = names.split_first()
            && *first == frame.current
        {
            names = rest;
            index += 1;
        }
        let frame = self.way.frames.get(index).ok_or(ErrorKind::Location)?;
        let class = descend(&frame.members, names).ok_or(ErrorKind::Location)?;
        let prefix = self.way.path[..frame.path].iter().cloned();
        let path = prefix.chain(names.iter().map(|&name| name.to_owned())).collect();
        Ok((Reference { scope, path }, class))
    }
}

fn names(path: &[Value]) -> Result<Vec<&str>> {
    path.iter()
        .map(|name| name.as_str().ok_or(ErrorKind::Location))
        .collect()
}

fn descend<'m>(members: &'m [Member], names: &[&str]) -> Option<&'m FieldClass> {
    let (first, rest) = names.split_first()?;
    let class = &members.iter().find(|member| member.name == *first)?.class;
    match class {
        FieldClass::Struct(class) if !rest.is_empty() => descend(&class.members, rest),
        _ => rest.is_empty().then_some(class),
    }
}

fn integer_of(class: &FieldClass) -> Option<&Integer> {
    match class {
        FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => Some(integer),
        _ => None,
    }
}

fn bytes(length: Length, element: Integer) -> FieldClass {
    FieldClass::Array(Array {
        length,
        element: Box::new(element.into()),
        min_align: 0,
        trace_uuid: false,
    })
}

fn byte_order(object: &mut Object<'_>) -> Result<Endian> {
    let order = match object.required("byte-order")?.as_str() {
        Some("little-endian") => Endian::Little,
        Some("big-endian") => Endian::Big,
        _ => return Err(ErrorKind::Value("byte-order")),
    };
    let natural = match order {
        Endian::Little => "first-to-last",
        Endian::Big => "last-to-first",
    };
    match object.text("bit-order")? {
        None => Ok(order),
        Some(bits) if bits == natural => Ok(order),
        Some("first-to-last" | "last-to-first") => Err(ErrorKind::Unsupported("bits in reverse order")),
        Some(_) => Err(ErrorKind::Value("bit-order")),
    }
}

fn float(object: &mut Object<'_>) -> Result<FieldClass> {
    let size = match object.required("length")?.as_u64() {
        Some(size @ (32 | 64)) => size as u32,
        Some(16 | 128) => return Err(ErrorKind::Unsupported("floating point numbers of this length")),
        _ => return Err(ErrorKind::Value("length")),
    };
    Ok(FieldClass::Float(Float {
        size,
        align: object.alignment("alignment")?.unwrap_or(1),
        byte_order: byte_order(object)?,
    }))
}

fn encoding(object: &mut Object<'_>) -> Result<()> {
    match object.text("encoding")? {
        None | Some("utf-8") => Ok(()),
        Some("utf-16be" | "utf-16le" | "utf-32be" | "utf-32le") => {
            Err(ErrorKind::Unsupported("encodings other than UTF-8"))
        }
        Some(_) => Err(ErrorKind::Value("encoding")),
    }
}

/// A list of `[first, last]`.
fn ranges(list: &[Value]) -> Result<Vec<Range>> {
    const WRONG: ErrorKind = ErrorKind::Value("range");
    let number = |value: &Value| {
        let unsigned = value.as_u64().map(i128::from);
        unsigned.or_else(|| value.as_i64().map(i128::from)).ok_or(WRONG)
    };
    list.iter()
        .map(|range| match range.as_array().map(Vec::as_slice) {
            Some([first, last]) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    Err(WRONG)
                } else {
                    Ok(Range { first, last })
                }
            }
            _ => Err(WRONG),
        })
        .collect()
}
