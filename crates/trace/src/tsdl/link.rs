//! Resolves the targets of lengths and tags, and assigns the roles of reserved names (CTF 1.8.3,
//! section 7.3.2).

use super::blocks::{Blocks, EventBlock, StreamBlock};
use super::error::{Error, ErrorKind, Position, Result, error};
use super::labels::label_ranges;
use super::reserved;
use super::syntax::{Dimension, Path};
use super::types::{Raw, RawClass, RawInteger, RawMember};
use crate::description::{
    Array, Clock, Description, Enumeration, EnvironmentValue, EventClass, FieldClass, Float, Integer, Length, Member,
    Reference, Role, Scope, Storage, StreamClass, Struct, Variant, VariantOption,
};
use backtrail_wire::Endian;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub(super) fn link(blocks: Blocks, most_fields: u64) -> Result<Description> {
    let Some(trace) = blocks.trace else {
        return error(ErrorKind::Missing("trace"), Position { line: 1, column: 1 });
    };
    let order = trace.byte_order.unwrap_or(Endian::NATIVE);
    let mut linker = Linker {
        clocks: &blocks.clocks,
        environment: &blocks.environment,
        needs_clock: Cell::new(false),
        order,
        roots: HashMap::new(),
        fields_left: most_fields,
    };
    let packet_header = match trace.packet_header {
        Some(class) => Some(linker.root(Scope::PacketHeader, class)?),
        None => None,
    };
    let streams = linker.streams(blocks.streams, blocks.events)?;
    let needs_clock = linker.needs_clock.get();
    let mut clocks = blocks.clocks;
    if needs_clock {
        clocks.push(Clock::nanoseconds("default", 0));
    }
    Ok(Description {
        uuid: trace.uuid,
        byte_order: Some(order),
        environment: blocks.environment,
        packet_header,
        streams,
        clocks,
        ..Description::default()
    })
}

struct Linker<'c> {
    clocks: &'c [Clock],
    environment: &'c [(String, EnvironmentValue)],
    /// Whether there are timestamps but no clock: then they count nanoseconds from the epoch.
    needs_clock: Cell<bool>,
    order: Endian,
    /// The roots before the current one.
    roots: HashMap<Scope, Rc<Raw>>,
    fields_left: u64,
}

/// The position of the linker in a root.
struct Way<'r> {
    scope: Scope,
    /// The structs around the field, innermost last, each with the number of its members before the
    /// field.
    frames: Vec<Frame<'r>>,
    /// Names of members and options from the root.
    path: Vec<String>,
    /// Whether there is an array between the root and the field.
    in_array: bool,
}

struct Frame<'r> {
    members: &'r [RawMember],
    before: usize,
    /// Names in [`Way::path`] that lead to the struct.
    path: usize,
}

impl Linker<'_> {
    #[expect(clippy::indexing_slicing, reason = "indexes of its own lists")]
    fn streams(&mut self, blocks: Vec<StreamBlock>, events: Vec<EventBlock>) -> Result<Vec<StreamClass>> {
        let mut streams: Vec<StreamClass> = Vec::new();
        let mut roots = Vec::new();
        for block in blocks {
            let id = block.id.unwrap_or(0);
            if streams.iter().any(|class| class.id == id) {
                return error(ErrorKind::Duplicate, block.position);
            }
            self.forget(Scope::PacketContext);
            let mut class = StreamClass {
                id,
                ..StreamClass::default()
            };
            for (scope, root) in [
                (Scope::PacketContext, &mut class.packet_context),
                (Scope::EventHeader, &mut class.event_header),
                (Scope::StreamEventContext, &mut class.event_context),
            ] {
                if let Some(raw) = block.roots.get(&scope) {
                    *root = Some(self.root(scope, raw.clone())?);
                }
            }
            class.clock = stream_clock(&class);
            streams.push(class);
            roots.push(block.roots);
        }
        if streams.is_empty() {
            streams.push(StreamClass::default());
            roots.push(HashMap::new());
        }
        for event in events {
            let index = match event.stream_id {
                Some(id) => streams.iter().position(|class| class.id == id).ok_or(Error {
                    kind: ErrorKind::UnknownStream(id),
                    position: event.position,
                })?,
                None if streams.len() == 1 => 0,
                None => return error(ErrorKind::Missing("stream_id"), event.position),
            };
            self.forget(Scope::PacketContext);
            self.roots.extend(roots[index].clone());
            let class = self.event(&event)?;
            streams[index].events.push(class);
        }
        Ok(streams)
    }

    fn forget(&mut self, from: Scope) {
        self.roots.retain(|&scope, _| scope < from);
    }

    fn event(&mut self, event: &EventBlock) -> Result<EventClass> {
        let mut class = EventClass {
            id: event.id.unwrap_or(0),
            name: event.name.clone(),
            log_level: event.log_level,
            ..EventClass::default()
        };
        for (scope, root) in [
            (Scope::EventContext, &mut class.context),
            (Scope::EventPayload, &mut class.payload),
        ] {
            if let Some(raw) = event.roots.get(&scope) {
                *root = Some(self.root(scope, raw.clone())?);
            }
        }
        Ok(class)
    }

    fn root(&mut self, scope: Scope, raw: Rc<Raw>) -> Result<Struct> {
        self.fields_left = self.fields_left.checked_sub(raw.fields).ok_or(Error {
            kind: ErrorKind::TooLarge,
            position: raw.position,
        })?;
        reserved::check(scope, &raw)?;
        let mut way = Way {
            scope,
            frames: Vec::new(),
            path: Vec::new(),
            in_array: false,
        };
        let class = match self.class(&raw, &mut way, "", raw.position)? {
            FieldClass::Struct(class) => class,
            _ => return error(ErrorKind::NotAStruct, raw.position),
        };
        self.roots.insert(scope, raw);
        Ok(class)
    }

    fn class<'r>(&self, raw: &'r Raw, way: &mut Way<'r>, name: &str, position: Position) -> Result<FieldClass> {
        Ok(match &raw.class {
            RawClass::Integer(integer) => FieldClass::Integer(self.integer(integer, way, name, position)?),
            RawClass::Enum { integer, mappings } => FieldClass::Enumeration(Enumeration {
                integer: self.integer(integer, way, name, position)?,
                mappings: mappings.clone(),
            }),
            RawClass::Float { size, align, order } => FieldClass::Float(Float {
                size: *size,
                align: *align,
                byte_order: order.unwrap_or(self.order),
                reversed: false,
            }),
            RawClass::String(encoding) => FieldClass::String(*encoding),
            RawClass::Struct { members, min_align } => FieldClass::Struct(self.structure(members, *min_align, way)?),
            RawClass::Array { length, element } => FieldClass::Array(self.array(length, element, way, name)?),
            RawClass::Variant { tag, options } => {
                FieldClass::Variant(self.variant(tag.as_ref(), options, way, position)?)
            }
        })
    }

    fn integer(&self, raw: &RawInteger, way: &Way<'_>, name: &str, position: Position) -> Result<Integer> {
        let mut integer = Integer {
            size: raw.size,
            align: raw.align,
            signed: raw.signed,
            base: raw.base,
            byte_order: raw.order.unwrap_or(self.order),
            encoding: raw.encoding,
            role: None,
            clock: None,
            storage: Storage::Bits,
        };
        if let Some((name, position)) = &raw.clock {
            let Some(clock) = self.clocks.iter().position(|clock| clock.name == *name) else {
                return error(ErrorKind::UnknownClock, *position);
            };
            integer.clock = Some(clock);
        }
        if !way.in_array {
            self.assign_role(&mut integer, way, name, position)?;
        }
        Ok(integer)
    }

    /// Assigns roles by the reserved names of sections 5 and 6.
    fn assign_role(&self, integer: &mut Integer, way: &Way<'_>, name: &str, position: Position) -> Result<()> {
        let at_top = way.path.len() == 1;
        let is_timestamp = match way.scope {
            Scope::PacketContext => matches!(name, "timestamp_begin" | "timestamp_end"),
            Scope::EventHeader => name == "timestamp",
            _ => false,
        };
        // Traces with one clock may omit the clock of their timestamps, and even the clock itself.
        if is_timestamp && integer.clock.is_none() {
            if self.clocks.len() > 1 {
                return error(ErrorKind::UnknownClock, position);
            }
            integer.clock = Some(0);
            self.needs_clock.set(self.clocks.is_empty());
        }
        integer.role = match (way.scope, name) {
            (Scope::PacketHeader, "magic") if at_top => Some(Role::Magic),
            (Scope::PacketHeader, "stream_id") if at_top => Some(Role::StreamClassId),
            (Scope::PacketHeader, "stream_instance_id") if at_top => Some(Role::StreamInstanceId),
            (Scope::PacketContext, "timestamp_begin") if integer.clock.is_some() => Some(Role::Timestamp),
            (Scope::PacketContext, "timestamp_end") if integer.clock.is_some() => Some(Role::TimestampEnd),
            (Scope::PacketContext, "content_size") if at_top => Some(Role::ContentSize),
            (Scope::PacketContext, "packet_size") if at_top => Some(Role::PacketSize),
            (Scope::PacketContext, "packet_seq_num") if at_top => Some(Role::SequenceNumber),
            (Scope::PacketContext, "events_discarded") if at_top => Some(Role::EventsDiscarded),
            (Scope::EventHeader, "id") => Some(Role::EventClassId),
            (Scope::EventHeader, _) if integer.clock.is_some() => Some(Role::Timestamp),
            _ => None,
        };
        Ok(())
    }

    fn structure<'r>(&self, members: &'r [RawMember], min_align: u32, way: &mut Way<'r>) -> Result<Struct> {
        let mut class = Struct {
            members: Vec::with_capacity(members.len()),
            min_align: if min_align > 1 { min_align } else { 0 },
        };
        way.frames.push(Frame {
            members,
            before: 0,
            path: way.path.len(),
        });
        let taken: HashSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
        for (index, member) in members.iter().enumerate() {
            if let Some(frame) = way.frames.last_mut() {
                frame.before = index;
            }
            let name = visible_name(|name| taken.contains(name), &member.name);
            way.path.push(name.clone());
            let field = self.class(&member.class, way, &name, member.position)?;
            way.path.pop();
            class.members.push(Member { name, class: field });
        }
        way.frames.pop();
        Ok(class)
    }

    fn array<'r>(&self, length: &Dimension, element: &'r Raw, way: &mut Way<'r>, name: &str) -> Result<Array> {
        let is_uuid = way.scope == Scope::PacketHeader && way.path.len() == 1 && name == "uuid";
        let length = match length {
            Dimension::Number(number) => Length::Fixed(*number),
            Dimension::Path(path) => match self.constant(path) {
                Some(length) => Length::Fixed(length.ok_or(Error {
                    kind: ErrorKind::UnknownReference,
                    position: path.position,
                })?),
                None => Length::Field(self.reference(path, way, is_length)?.0),
            },
        };
        let outside = std::mem::replace(&mut way.in_array, true);
        let element = self.class(element, way, "", element.position)?;
        way.in_array = outside;
        let is_byte = matches!(&element, FieldClass::Integer(integer) if integer.size == 8 && integer.align == 8);
        Ok(Array {
            blob: false,
            trace_uuid: is_uuid && is_byte && length == Length::Fixed(16),
            length,
            element: Box::new(element),
            min_align: 0,
        })
    }

    /// A number of the environment, if the path leads there (CTF 1.8.3, section 7.3.2).
    fn constant(&self, path: &Path) -> Option<Option<u64>> {
        let [scope, name] = path.words.as_slice() else {
            return None;
        };
        if scope != "env" {
            return None;
        }
        let entry = self.environment.iter().find(|(entry, _)| entry == name);
        Some(match entry {
            Some((_, EnvironmentValue::Integer(number))) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    fn variant<'r>(
        &self,
        tag: Option<&Path>,
        options: &'r [RawMember],
        way: &mut Way<'r>,
        position: Position,
    ) -> Result<Variant> {
        let Some(tag) = tag else {
            return error(ErrorKind::NoTag, position);
        };
        let (reference, target) = self.reference(tag, way, |raw| matches!(raw.class, RawClass::Enum { .. }))?;
        let RawClass::Enum { mappings, .. } = &target.class else {
            return error(ErrorKind::UnknownReference, tag.position);
        };
        let mut linked = Vec::with_capacity(options.len());
        for option in options {
            way.path.push(option.name.clone());
            let class = self.class(&option.class, way, &option.name, option.position)?;
            way.path.pop();
            linked.push(VariantOption {
                name: option.name.clone(),
                ranges: label_ranges(mappings, &option.name),
                class,
            });
        }
        if linked.iter().all(|option| option.ranges.is_empty()) {
            return error(ErrorKind::NoLabel, position);
        }
        Ok(Variant {
            tag: reference,
            options: linked,
        })
    }

    /// The field that a path refers to: in the structs around, then in the earlier scopes, unless
    /// it starts with a scope's name. A nearer field whose class makes it unusable does not hide
    /// one further out: a named type may be used where there is one.
    #[expect(clippy::indexing_slicing, reason = "indexes of its own lists")]
    fn reference<'s>(
        &'s self,
        path: &Path,
        way: &Way<'s>,
        fits: impl Fn(&Raw) -> bool,
    ) -> Result<(Reference, &'s Raw)> {
        let words: Vec<&str> = path.words.iter().map(String::as_str).collect();
        let unknown = Error {
            kind: ErrorKind::UnknownReference,
            position: path.position,
        };
        for scope in Scope::ALL {
            let Some(rest) = strip_scope(&words, scope) else {
                continue;
            };
            let found = match scope == way.scope {
                true => way.descend(rest),
                false => self.descend_root(scope, rest),
            };
            let (names, target) = found.filter(|(_, target)| fits(target)).ok_or(unknown)?;
            return Ok((
                Reference {
                    scope,
                    path: names,
                    any_option: false,
                },
                target,
            ));
        }
        for frame in way.frames.iter().rev() {
            if let Some((names, target)) = descend(&frame.members[..frame.before], frame.members, &words)
                && fits(target)
            {
                let path = way.path[..frame.path].iter().cloned().chain(names).collect();
                return Ok((
                    Reference {
                        scope: way.scope,
                        path,
                        any_option: false,
                    },
                    target,
                ));
            }
        }
        for scope in Scope::ALL.into_iter().rev().filter(|&scope| scope < way.scope) {
            if let Some((path, target)) = self.descend_root(scope, &words)
                && fits(target)
            {
                return Ok((
                    Reference {
                        scope,
                        path,
                        any_option: false,
                    },
                    target,
                ));
            }
        }
        Err(unknown)
    }

    fn descend_root(&self, scope: Scope, words: &[&str]) -> Option<(Vec<String>, &Raw)> {
        match &self.roots.get(&scope)?.class {
            RawClass::Struct { members, .. } => descend(members, members, words),
            _ => None,
        }
    }
}

impl<'r> Way<'r> {
    /// Follows names from the root. Those of structs that are still open lead to their members
    /// before the field.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "lists are not empty where their first part is taken, and open ones have the field"
    )]
    fn descend(&self, words: &[&str]) -> Option<(Vec<String>, &'r Raw)> {
        let mut words = words;
        let mut frames = self.frames.as_slice();
        while let ([outer, inner, ..], [first, rest @ ..]) = (frames, words)
            && !rest.is_empty()
            && outer.members[outer.before].name == **first
            // Names of options are not part of such a path.
            && inner.path == outer.path + 1
        {
            (frames, words) = (&frames[1..], rest);
        }
        let frame = frames.first()?;
        let (names, target) = descend(&frame.members[..frame.before], frame.members, words)?;
        let open = self.path[..frame.path].iter().cloned();
        Some((open.chain(names).collect(), target))
    }
}

/// Whether it can be the length of a sequence.
fn is_length(raw: &Raw) -> bool {
    matches!(&raw.class, RawClass::Integer(integer) | RawClass::Enum { integer, .. } if !integer.signed)
}

/// The words after a scope's name.
fn strip_scope<'w>(words: &'w [&'w str], scope: Scope) -> Option<&'w [&'w str]> {
    let mut rest = words;
    for part in scope.tsdl_name().split('.') {
        let (first, tail) = rest.split_first()?;
        if *first != part {
            return None;
        }
        rest = tail;
    }
    (!rest.is_empty()).then_some(rest)
}

/// Follows names through structs; returns the names as others see them, and the field. `members`
/// may be a part of the struct's.
fn descend<'r>(members: &'r [RawMember], all: &'r [RawMember], words: &[&str]) -> Option<(Vec<String>, &'r Raw)> {
    let (first, rest) = words.split_first()?;
    let member = members.iter().find(|member| member.name == *first)?;
    let mut names = vec![visible_name(
        |name| all.iter().any(|member| member.name == name),
        &member.name,
    )];
    if rest.is_empty() {
        return Some((names, &member.class));
    }
    let RawClass::Struct { members, .. } = &member.class.class else {
        return None;
    };
    let (inner, target) = descend(members, members, rest)?;
    names.extend(inner);
    Some((names, target))
}

/// Tracers write an underscore before names that could be keywords. It is dropped, unless another
/// member would then have the same name.
fn visible_name(is_taken: impl Fn(&str) -> bool, name: &str) -> String {
    let mut kept = name;
    while let Some(rest) = kept.strip_prefix('_') {
        if !is_taken(rest) {
            return name[1..].to_owned();
        }
        kept = rest;
    }
    name.to_owned()
}

/// The clock that the stream's timestamps use.
fn stream_clock(class: &StreamClass) -> Option<usize> {
    fn find(class: &Struct) -> Option<usize> {
        class.members.iter().find_map(|member| find_in(&member.class))
    }
    fn find_in(class: &FieldClass) -> Option<usize> {
        match class {
            FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => {
                integer.role.filter(|&role| role == Role::Timestamp).and(integer.clock)
            }
            FieldClass::Struct(class) => find(class),
            FieldClass::Variant(class) => class.options.iter().find_map(|option| find_in(&option.class)),
            // The other classes are not in 1.8, or contain no timestamps.
            _ => None,
        }
    }
    class
        .event_header
        .as_ref()
        .and_then(find)
        .or_else(|| class.packet_context.as_ref().and_then(find))
}
