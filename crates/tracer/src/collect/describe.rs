//! The description of a trace, from a file of rings.

use std::fmt;

use backtrail_trace::description::{
    Array, Clock, Description, Encoding, Enumeration, EnvironmentValue, EventClass, FieldClass, Float, Integer,
    Mapping, Range, Reference, Role, StreamClass, Struct, Variant, VariantOption, packet_header,
};
use backtrail_wire::Endian;
use std::sync::atomic::Ordering;

use crate::layout::{class, context, head};
use crate::map::Map;

const ORDER: Endian = Endian::NATIVE;
/// The deepest nesting of types.
const DEPTH: usize = 16;

/// The text of a class that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassError {
    /// Bytes from the text's start.
    pub at: usize,
}

impl fmt::Display for ClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the text of an event class, at byte {}", self.at)
    }
}

impl std::error::Error for ClassError {}

/// The description of the process's trace, but for its clock. Also returns the number of classes.
pub(super) fn description(map: &Map, clock: Clock) -> (Description, usize) {
    let text = |at: usize, bytes: usize| {
        let mut memory = vec![0; bytes];
        map.read(at, &mut memory);
        let end = memory.iter().position(|&byte| byte == 0).unwrap_or(bytes);
        memory.truncate(end);
        String::from_utf8_lossy(&memory).into_owned()
    };
    let mut uuid = [0; 16];
    map.read(head::UUID, &mut uuid);
    let string = |value: String| EnvironmentValue::String(value);
    let mut environment = vec![
        ("hostname".to_owned(), string(text(head::HOST, head::HOST_BYTES))),
        ("domain".to_owned(), string("ust".to_owned())),
        ("tracer_name".to_owned(), string("backtrail".to_owned())),
        ("procname".to_owned(), string(text(head::COMM, head::COMM_BYTES))),
        (
            "vpid".to_owned(),
            EnvironmentValue::Integer(map.word(head::PID).load(Ordering::Relaxed) as u32 as i64),
        ),
    ];
    let mut events = Vec::new();
    let (mut classes, mut modules) = (0, 0);
    crate::classes::each(map, |at| {
        let has_stacks = crate::classes::has_stacks(map, at);
        classes += 1 + usize::from(has_stacks);
        let number = map.half(at + class::NUMBER).load(Ordering::Relaxed);
        let text = crate::classes::text_at(map, at);
        if let Some(module) = crate::classes::module_of(&text) {
            let value = string(String::from_utf8_lossy(module).into_owned());
            environment.push((format!("module_{modules}"), value));
            modules += 1;
            return;
        }
        // A class that makes no sense leaves events without one, which readers report.
        if let Ok(class) = parse(&String::from_utf8_lossy(&text)) {
            let number = u64::from(number);
            if has_stacks {
                events.push(with_stack(number, &class));
            }
            events.push(EventClass {
                id: number * 2,
                ..class
            });
        }
    });
    let counter = |role| Integer::unsigned(64, ORDER).role(role);
    let stream = StreamClass {
        clock: Some(0),
        packet_context: Some(
            Struct::new()
                .with("timestamp_begin", counter(Role::Timestamp).clock(0))
                .with("timestamp_end", counter(Role::TimestampEnd).clock(0))
                .with("content_size", counter(Role::ContentSize))
                .with("packet_size", counter(Role::PacketSize))
                .with("packet_seq_num", counter(Role::SequenceNumber))
                .with("events_discarded", counter(Role::EventsDiscarded))
                .with("tid", Integer::unsigned(32, ORDER)),
        ),
        event_header: Some(
            Struct::new()
                .with("id", Integer::unsigned(16, ORDER).role(Role::EventClassId))
                .with("timestamp", Integer::unsigned(48, ORDER).role(Role::Timestamp).clock(0)),
        ),
        event_context: contexts(
            map.word(head::CONTEXTS).load(Ordering::Relaxed),
            &text(head::OWN, head::OWN_BYTES),
        ),
        events,
        ..StreamClass::default()
    };
    let description = Description {
        uuid: Some(uuid),
        byte_order: Some(ORDER),
        environment,
        clocks: vec![clock],
        packet_header: Some(packet_header(ORDER)),
        streams: vec![stream],
        ..Description::default()
    };
    (description, classes)
}

/// The contexts of each event.
fn contexts(bits: u64, own: &str) -> Option<Struct> {
    let mut all = Struct::new();
    let name = Array::fixed(16, Integer::character(ORDER));
    for (bit, name, class) in [
        (context::PID, "vpid", FieldClass::from(Integer::signed(32, ORDER))),
        (context::TID, "vtid", Integer::signed(32, ORDER).into()),
        (context::CPU, "cpu_id", Integer::signed(32, ORDER).into()),
        (context::COMM, "procname", name.into()),
    ] {
        if bits & bit != 0 {
            all = all.with(name, class);
        }
    }
    for name in own.lines() {
        all = all.with(name, Integer::unsigned(64, ORDER));
    }
    (!all.members.is_empty()).then_some(all)
}

/// The class of a class's events with a stack: its first field. As a context, babeltrace2 2.0.4
/// would not find the length.
fn with_stack(number: u64, class: &EventClass) -> EventClass {
    let fields = class.payload.clone().unwrap_or_default();
    let name = if fields.get("stack").is_some() {
        "event_stack"
    } else {
        "stack"
    };
    let length = format!("_{name}_length");
    let array = Array::sequence(
        Reference::payload(&[&length]),
        Integer::unsigned(8, ORDER).hexadecimal(),
    );
    let mut payload = Struct::new()
        .with(&length, Integer::unsigned(16, ORDER))
        .with(name, array);
    payload.members.extend(fields.members);
    EventClass {
        id: number * 2 + 1,
        payload: Some(payload),
        ..class.clone()
    }
}

/// Parses a class's text: level, name and fields, with tabs between.
pub fn parse(text: &str) -> Result<EventClass, ClassError> {
    let mut parts = text.split('\t');
    let (level, name, fields) = (parts.next(), parts.next(), parts.next());
    let level = level
        .and_then(|level| level.parse::<u8>().ok())
        .ok_or(ClassError { at: 0 })?;
    let name = name
        .filter(|name| !name.is_empty() && name.len() < 256)
        .ok_or(ClassError { at: 3 })?;
    let start = 4 + name.len();
    let mut parser = Parser {
        text: fields.unwrap_or_default().as_bytes(),
        at: 0,
        path: Vec::new(),
    };
    let payload = parser
        .members(None, 0)
        .map_err(|error| ClassError { at: start + error.at })?;
    Ok(EventClass {
        name: name.to_owned(),
        log_level: Some(level.into()),
        payload: Some(payload),
        ..EventClass::default()
    })
}

struct Parser<'t> {
    text: &'t [u8],
    at: usize,
    /// Names of the structs around the current field.
    path: Vec<String>,
}

type Result1<T> = Result<T, ClassError>;

impl Parser<'_> {
    fn fail<T>(&self) -> Result1<T> {
        Err(ClassError { at: self.at })
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, byte: u8) -> Result1<()> {
        match self.take(byte) {
            true => Ok(()),
            false => self.fail(),
        }
    }

    fn word(&mut self) -> Result1<String> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        let word = rest.get(..length).unwrap_or_default();
        self.at += length;
        match word.first() {
            Some(first) if length < 256 && !first.is_ascii_digit() => Ok(String::from_utf8_lossy(word).into_owned()),
            _ => self.fail(),
        }
    }

    fn number(&mut self) -> Result1<i128> {
        let is_negative = self.take(b'-');
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).take(20).count();
        let digits = rest.get(..length).unwrap_or_default();
        self.at += length;
        if digits.is_empty() {
            return self.fail();
        }
        let value = digits
            .iter()
            .fold(0i128, |value, digit| value * 10 + i128::from(digit & 15));
        Ok(if is_negative { -value } else { value })
    }

    /// Members with commas between, up to the end.
    fn members(&mut self, end: Option<u8>, depth: usize) -> Result1<Struct> {
        let mut all = Struct::new();
        while self.peek() != end {
            if !all.members.is_empty() {
                self.expect(b',')?;
            }
            let name = self.word()?;
            self.expect(b':')?;
            for (name, class) in self.field(&name, depth)? {
                if all.get(&name).is_some() {
                    return self.fail();
                }
                all = all.with(&name, class);
            }
        }
        if end.is_some() {
            self.at += 1;
        }
        Ok(all)
    }

    fn reference(&self, name: &str) -> Reference {
        let mut path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        path.push(name);
        Reference::payload(&path)
    }

    /// A field, after the number that it depends on, if any.
    fn field(&mut self, name: &str, depth: usize) -> Result1<Vec<(String, FieldClass)>> {
        if depth > DEPTH {
            return self.fail();
        }
        let field = |class| (name.to_owned(), class);
        if self.take(b'[') {
            if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                let length = self.number()? as u64;
                self.expect(b'*')?;
                let element = self.element(name, depth)?;
                self.expect(b']')?;
                return Ok(vec![field(Array::fixed(length, element).into())]);
            }
            let element = self.element(name, depth)?;
            self.expect(b']')?;
            let length = format!("_{name}_length");
            let array = Array::sequence(self.reference(&length), element);
            return Ok(vec![(length, Integer::unsigned(32, ORDER).into()), field(array.into())]);
        }
        if self.take(b'?') {
            self.path.push(name.to_owned());
            self.path.push("some".to_owned());
            let value = self.field("value", depth + 1);
            self.path.truncate(self.path.len() - 2);
            return Ok(optional(name, value?, |tag| self.reference(tag)));
        }
        if self.take(b'{') {
            self.path.push(name.to_owned());
            let members = self.members(Some(b'}'), depth + 1);
            self.path.pop();
            return Ok(vec![field(members?.into())]);
        }
        let word = self.word()?;
        if word == "e" {
            return Ok(vec![field(self.labels()?.into())]);
        }
        match plain(&word) {
            Some(class) => Ok(vec![field(class)]),
            None => self.fail(),
        }
    }

    /// The class of an array's elements. One that depends on a number is in a struct with it. The
    /// array has no name of its own in a path.
    fn element(&mut self, name: &str, depth: usize) -> Result1<FieldClass> {
        if depth > DEPTH {
            return self.fail();
        }
        let is_fixed = self.text.get(self.at + 1).is_some_and(|byte| byte.is_ascii_digit());
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                self.path.push(name.to_owned());
                let members = self.members(Some(b'}'), depth + 1);
                self.path.pop();
                Ok(members?.into())
            }
            Some(b'[') if is_fixed => {
                self.at += 1;
                let length = self.number()? as u64;
                self.expect(b'*')?;
                let element = self.element(name, depth + 1)?;
                self.expect(b']')?;
                Ok(Array::fixed(length, element).into())
            }
            _ => {
                self.path.push(name.to_owned());
                let members = self.field("value", depth + 1);
                self.path.pop();
                let mut members = members?;
                match (members.pop(), members.is_empty()) {
                    (Some((_, class)), true) => Ok(class),
                    (last, _) => {
                        let all = members.into_iter().chain(last);
                        Ok(all
                            .fold(Struct::new(), |all, (name, class)| all.with(&name, class))
                            .into())
                    }
                }
            }
        }
    }

    fn labels(&mut self) -> Result1<Enumeration> {
        self.expect(b'(')?;
        let number = self.word()?;
        let Some(FieldClass::Integer(integer)) = plain(&number) else {
            return self.fail();
        };
        let mut mappings = Vec::new();
        while self.take(b';') {
            let name = self.word()?;
            self.expect(b'=')?;
            mappings.push(Mapping {
                name,
                ranges: vec![Range::one(self.number()?)],
            });
        }
        self.expect(b')')?;
        match mappings.is_empty() {
            true => self.fail(),
            false => Ok(Enumeration { integer, mappings }),
        }
    }
}

/// A variant of nothing and the value, after its tag.
fn optional(
    name: &str,
    value: Vec<(String, FieldClass)>,
    reference: impl Fn(&str) -> Reference,
) -> Vec<(String, FieldClass)> {
    let tag = format!("_{name}_is");
    let labels = [("none", 0), ("some", 1)];
    let mappings = labels.iter().map(|&(name, value)| Mapping {
        name: name.to_owned(),
        ranges: vec![Range::one(value)],
    });
    let enumeration = Enumeration {
        integer: Integer::unsigned(8, ORDER),
        mappings: mappings.collect(),
    };
    let some = value
        .into_iter()
        .fold(Struct::new(), |all, (name, class)| all.with(&name, class));
    let option = |(name, value): (&str, i128), class| VariantOption {
        name: name.to_owned(),
        ranges: vec![Range::one(value)],
        class: FieldClass::Struct(class),
    };
    let variant = Variant {
        tag: reference(&tag),
        options: vec![option(labels[0], Struct::new()), option(labels[1], some)],
    };
    vec![(tag, enumeration.into()), (name.to_owned(), variant.into())]
}

/// The class of a number or a text.
fn plain(word: &str) -> Option<FieldClass> {
    if word == "s" {
        return Some(FieldClass::String(Encoding::Utf8));
    }
    if word == "b" {
        return Some(Integer::unsigned(8, ORDER).into());
    }
    let (kind, size) = word.split_at_checked(1)?;
    let size = size.parse().ok().filter(|size| [8, 16, 32, 64].contains(size))?;
    Some(match kind {
        "u" => Integer::unsigned(size, ORDER).into(),
        "x" => Integer::unsigned(size, ORDER).hexadecimal().into(),
        "i" => Integer::signed(size, ORDER).into(),
        "f" if size >= 32 => Float {
            size,
            align: 8,
            byte_order: ORDER,
            reversed: false,
        }
        .into(),
        _ => return None,
    })
}
