//! Reads CTF 2 metadata.

use super::error::{Error, ErrorKind, Result};
use crate::constants::{NAMESPACE, RECORD_SEPARATOR};
use crate::description::{
    Clock, Description, EnvironmentValue, EventClass, FieldClass, Identity, Member, Scope, StreamClass, Struct,
    parse_uuid,
};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Aliases that use others can describe exponentially many fields. Real metadata has less than one
/// per fifty bytes.
const MAX_FIELDS_PER_BYTE: u64 = 2;

/// Parses the text of a trace's metadata.
///
/// # Errors
///
/// The first error in the text, and its place.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "64 times the length of a text in memory; fewer fragments than bytes"
)]
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
        // RFC 7464, section 2.1: empty text between two separators is not an element.
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

/// An object whose properties are taken one after the other; those left at the end are unknown.
pub(super) struct Object<'v> {
    map: &'v Map<String, Value>,
    taken: usize,
}

impl<'v> Object<'v> {
    pub(super) fn of(value: &'v Value) -> Result<Object<'v>> {
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

    #[expect(clippy::arithmetic_side_effects, reason = "fewer properties than bytes")]
    pub(super) fn take(&mut self, name: &str) -> Option<&'v Value> {
        let value = self.map.get(name);
        self.taken += usize::from(value.is_some());
        value
    }

    pub(super) fn required(&mut self, name: &'static str) -> Result<&'v Value> {
        self.take(name).ok_or(ErrorKind::Missing(name))
    }

    pub(super) fn u64(&mut self, name: &'static str) -> Result<Option<u64>> {
        self.take(name)
            .map(|value| value.as_u64().ok_or(ErrorKind::Value(name)))
            .transpose()
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'v str>> {
        self.take(name)
            .map(|value| value.as_str().ok_or(ErrorKind::Value(name)))
            .transpose()
    }

    pub(super) fn owned(&mut self, name: &'static str) -> Result<Option<String>> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    pub(super) fn list(&mut self, name: &'static str) -> Result<&'v [Value]> {
        match self.take(name) {
            None => Ok(&[]),
            Some(value) => Ok(value.as_array().ok_or(ErrorKind::Value(name))?),
        }
    }

    pub(super) fn alignment(&mut self, name: &'static str) -> Result<Option<u32>> {
        match self.u64(name)? {
            None => Ok(None),
            Some(align) => match u32::try_from(align) {
                Ok(align) if align.is_power_of_two() => Ok(Some(align)),
                _ => Err(ErrorKind::Value(name)),
            },
        }
    }

    pub(super) fn finish(self, kind: &'static str) -> Result<()> {
        match self.taken == self.map.len() {
            true => Ok(()),
            false => Err(ErrorKind::UnknownProperty(kind)),
        }
    }
}

pub(super) struct Reader {
    pub(super) description: Description,
    pub(super) aliases: HashMap<String, Rc<Value>>,
    seen_trace_class: bool,
    /// The scopes before the current one.
    pub(super) roots: HashMap<Scope, Struct>,
    pub(super) way: Way,
    pub(super) fields_left: u64,
}

/// The position of the reader in a root.
#[derive(Default)]
pub(super) struct Way {
    pub(super) scope: Option<Scope>,
    pub(super) clock: Option<usize>,
    /// Whether this is the class of an alias, whose position is unknown: its roles and locations
    /// are checked when it is used.
    pub(super) of_alias: bool,
    /// Structs around the field, innermost last.
    pub(super) frames: Vec<Frame>,
    /// Names of members and options from the root.
    pub(super) path: Vec<String>,
    /// The positions of options in the path.
    pub(super) options: Vec<usize>,
}

pub(super) struct Frame {
    /// Members before the current one.
    pub(super) members: Vec<Member>,
    pub(super) current: String,
    /// Names in [`Way::path`] that lead to the struct.
    pub(super) path: usize,
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
        self.way = Way {
            of_alias: true,
            ..Way::default()
        };
        let checked = self.class(class, 0);
        self.way.of_alias = false;
        checked?;
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
                    // A number that is too large for the type wraps around, as in 1.8.
                    other => {
                        let signed = other.as_i64().or(other.as_u64().map(|value| value as i64));
                        EnvironmentValue::Integer(signed.ok_or(ErrorKind::Value("environment"))?)
                    }
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
            Some(origin @ Value::Object(_)) => {
                let mut origin = Object::of(origin)?;
                origin.text("namespace")?;
                for name in ["name", "uid"] {
                    origin.text(name)?.ok_or(ErrorKind::Missing(name))?;
                }
                origin.finish("origin")?;
                false
            }
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
        let clock = Clock {
            name: id,
            uuid,
            description,
            frequency,
            precision,
            offset_seconds,
            offset_cycles,
            unix_epoch,
        };
        match self.description.clocks.iter().find(|other| other.name == clock.name) {
            // babeltrace2 writes a clock once for each trace that it merges.
            Some(other) if *other == clock => {}
            Some(_) => return Err(ErrorKind::Duplicate("clock class")),
            None => self.description.clocks.push(clock),
        }
        object.finish("clock class")
    }

    fn stream_class(&mut self, mut object: Object<'_>) -> Result<()> {
        let id = object.u64("id")?.unwrap_or(0);
        if self.description.stream(id).is_some() {
            return Err(ErrorKind::Duplicate("data stream class"));
        }
        object.text("namespace")?;
        object.text("uid")?;
        let name = object.owned("name")?;
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
            name,
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

    #[expect(clippy::indexing_slicing, reason = "`stream` was found in this list")]
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
        self.way.options.clear();
        match self.class(value, 0)? {
            FieldClass::Struct(class) => {
                self.roots.insert(scope, class.clone());
                Ok(Some(class))
            }
            _ => Err(ErrorKind::Value(name)),
        }
    }
}
