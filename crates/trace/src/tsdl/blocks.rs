//! Interprets blocks: the meaning of attributes, and the types that names refer to.

use super::error::{Error, ErrorKind, Position, Result, error};
use super::syntax::{Block, Statement, Value};
use super::types::{Raw, Types, byte_order};
use crate::description::{Clock, EnvironmentValue, Scope, parse_uuid};
use backtrail_wire::Endian;
use std::collections::HashMap;
use std::rc::Rc;

#[derive(Default)]
pub(super) struct Blocks {
    pub(super) trace: Option<TraceBlock>,
    pub(super) environment: Vec<(String, EnvironmentValue)>,
    pub(super) clocks: Vec<Clock>,
    pub(super) streams: Vec<StreamBlock>,
    pub(super) events: Vec<EventBlock>,
}

#[derive(Default)]
pub(super) struct TraceBlock {
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) byte_order: Option<Endian>,
    pub(super) packet_header: Option<Rc<Raw>>,
}

pub(super) struct StreamBlock {
    pub(super) position: Position,
    pub(super) id: Option<u64>,
    pub(super) roots: HashMap<Scope, Rc<Raw>>,
}

pub(super) struct EventBlock {
    pub(super) position: Position,
    pub(super) id: Option<u64>,
    pub(super) stream_id: Option<u64>,
    pub(super) name: String,
    pub(super) log_level: Option<i64>,
    pub(super) roots: HashMap<Scope, Rc<Raw>>,
}

/// Collects the blocks of a document from its statements.
pub(super) struct Collector {
    types: Types,
    blocks: Blocks,
}

impl Collector {
    pub(super) fn new(most_fields: u64) -> Collector {
        Collector {
            types: Types::new(most_fields),
            blocks: Blocks::default(),
        }
    }

    /// Adds the next statement.
    pub(super) fn add(&mut self, statement: &Statement) -> Result<()> {
        let (types, blocks) = (&mut self.types, &mut self.blocks);
        let Statement::Block { name, block } = statement else {
            return match types.define(statement)? {
                true => Ok(()),
                false => misplaced(statement),
            };
        };
        let contents = Contents::of(block, name == "env", types)?;
        match name.as_str() {
            "trace" => {
                if blocks.trace.is_some() {
                    return error(ErrorKind::Duplicate, block.position);
                }
                blocks.trace = Some(trace(&contents)?);
            }
            "env" => environment(&contents, &mut blocks.environment)?,
            "clock" => {
                let clock = clock(&contents)?;
                match blocks.clocks.iter().find(|other| other.name == clock.name) {
                    // babeltrace2 writes a clock once for each trace that it merges.
                    Some(other) if *other == clock => {}
                    Some(_) => return error(ErrorKind::Duplicate, block.position),
                    None => blocks.clocks.push(clock),
                }
            }
            "stream" => blocks.streams.push(stream(contents)?),
            "event" => blocks.events.push(event(contents)?),
            // Call sites do not describe data.
            _ => {}
        }
        Ok(())
    }

    /// All blocks.
    pub(super) fn finish(self) -> Result<Blocks> {
        self.types.check_lengths()?;
        Ok(self.blocks)
    }
}

fn misplaced<T>(statement: &Statement) -> Result<T> {
    match statement {
        Statement::Attribute { position, .. } | Statement::Binding { position, .. } => {
            error(ErrorKind::Expected("a block or a type"), *position)
        }
        Statement::Block { block, .. } => error(ErrorKind::Expected("an attribute or a type"), block.position),
        Statement::Aliases(position, _) => error(ErrorKind::Expected("an attribute"), *position),
        Statement::Definition(class) => error(ErrorKind::Expected("an attribute"), class.position),
    }
}

/// Attributes and types of a block, each at most once.
struct Contents<'b> {
    position: Position,
    attributes: Vec<(&'b str, Position, &'b Value)>,
    bindings: Vec<(&'b str, Rc<Raw>)>,
}

impl<'b> Contents<'b> {
    fn of(block: &'b Block, again: bool, types: &mut Types) -> Result<Contents<'b>> {
        let mut contents = Contents {
            position: block.position,
            attributes: Vec::new(),
            bindings: Vec::new(),
        };
        let mut names = std::collections::HashSet::new();
        types.enter();
        for statement in &block.statements {
            match statement {
                Statement::Attribute { path, position, value } => {
                    // Among entries of an environment with one name, the last one counts.
                    if !names.insert(path.as_str()) && !again {
                        return error(ErrorKind::Duplicate, *position);
                    }
                    contents.attributes.push((path, *position, value));
                }
                Statement::Binding { path, position, class } => {
                    if !names.insert(path.as_str()) {
                        return error(ErrorKind::Duplicate, *position);
                    }
                    let class = types.resolve(class)?;
                    contents.bindings.push((path, class));
                }
                other => {
                    if !types.define(other)? {
                        return misplaced(other);
                    }
                }
            }
        }
        types.leave();
        Ok(contents)
    }

    fn roots(self, names: &[(&str, Scope)]) -> HashMap<Scope, Rc<Raw>> {
        let mut roots = HashMap::new();
        for (path, class) in self.bindings {
            // Unknown attributes are skipped, whatever they are bound to.
            if let Some((_, scope)) = names.iter().find(|(name, _)| *name == path) {
                roots.insert(*scope, class);
            }
        }
        roots
    }
}

fn uuid(value: &Value, position: Position) -> Result<Option<[u8; 16]>> {
    match parse_uuid(value.as_text("uuid", position)?) {
        Some(uuid) => Ok(Some(uuid)),
        None => error(ErrorKind::Value("uuid"), position),
    }
}

fn trace(contents: &Contents<'_>) -> Result<TraceBlock> {
    let mut trace = TraceBlock::default();
    for &(name, position, value) in &contents.attributes {
        match name {
            "major" if value.as_u64("major", position)? != 1 => return error(ErrorKind::Value("major"), position),
            "minor" if value.as_u64("minor", position)? != 8 => return error(ErrorKind::Value("minor"), position),
            "uuid" => trace.uuid = uuid(value, position)?,
            "byte_order" => match byte_order(value, position)? {
                None => return error(ErrorKind::Value("byte_order"), position),
                order => trace.byte_order = order,
            },
            _ => {}
        }
    }
    let header = contents.bindings.iter().find(|(path, _)| *path == "packet.header");
    trace.packet_header = header.map(|(_, class)| class.clone());
    for needed in ["byte_order", "major", "minor"] {
        if !contents.attributes.iter().any(|&(name, ..)| name == needed) {
            return error(ErrorKind::Missing(needed), contents.position);
        }
    }
    Ok(trace)
}

fn environment(contents: &Contents<'_>, environment: &mut Vec<(String, EnvironmentValue)>) -> Result<()> {
    for &(name, position, value) in &contents.attributes {
        let value = match value {
            Value::Text(text) => EnvironmentValue::String(text.clone()),
            Value::Number { negative: true, .. } => EnvironmentValue::Integer(value.as_i64("env", position)?),
            // Numbers that do not fit wrap around, as in all readers.
            Value::Number { magnitude, .. } => EnvironmentValue::Integer(*magnitude as i64),
            Value::Path(word) => EnvironmentValue::String(word.clone()),
        };
        match environment.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => environment.push((name.to_owned(), value)),
        }
    }
    Ok(())
}

fn clock(contents: &Contents<'_>) -> Result<Clock> {
    let mut clock = Clock {
        unix_epoch: false,
        ..Clock::nanoseconds("", 0)
    };
    let mut offset = 0i128;
    for &(name, position, value) in &contents.attributes {
        match name {
            "name" => clock.name = value.as_word("name", position)?.to_owned(),
            "uuid" => clock.uuid = uuid(value, position)?,
            "description" => clock.description = Some(value.as_text("description", position)?.to_owned()),
            "freq" => match value.as_u64("freq", position)? {
                0 => return error(ErrorKind::Value("freq"), position),
                frequency => clock.frequency = frequency,
            },
            "precision" => clock.precision = Some(value.as_u64("precision", position)?),
            "offset_s" => clock.offset_seconds = value.as_i64("offset_s", position)?,
            "offset" => offset = value.as_i128("offset", position)?,
            "absolute" => clock.unix_epoch = value.as_bool("absolute", position)?,
            _ => {}
        }
    }
    set_offset(&mut clock, offset).ok_or(Error {
        kind: ErrorKind::Value("offset"),
        position: contents.position,
    })?;
    match clock.name.is_empty() {
        true => error(ErrorKind::Missing("name"), contents.position),
        false => Ok(clock),
    }
}

/// Sets the offset in cycles; a negative one becomes negative seconds.
fn set_offset(clock: &mut Clock, offset: i128) -> Option<()> {
    let (seconds, cycles) = match offset < 0 {
        true => {
            let frequency = i128::from(clock.frequency);
            (offset.div_euclid(frequency), offset.rem_euclid(frequency))
        }
        false => (0, offset),
    };
    clock.offset_seconds = clock.offset_seconds.checked_add(i64::try_from(seconds).ok()?)?;
    clock.offset_cycles = u64::try_from(cycles).ok()?;
    Some(())
}

fn stream(contents: Contents<'_>) -> Result<StreamBlock> {
    let mut id = None;
    for &(name, position, value) in &contents.attributes {
        if name == "id" {
            id = Some(value.as_u64("id", position)?);
        }
    }
    Ok(StreamBlock {
        position: contents.position,
        id,
        roots: contents.roots(&[
            ("packet.context", Scope::PacketContext),
            ("event.header", Scope::EventHeader),
            ("event.context", Scope::StreamEventContext),
        ]),
    })
}

fn event(contents: Contents<'_>) -> Result<EventBlock> {
    let mut event = EventBlock {
        position: contents.position,
        id: None,
        stream_id: None,
        name: String::new(),
        log_level: None,
        roots: HashMap::new(),
    };
    let mut named = false;
    for &(name, position, value) in &contents.attributes {
        match name {
            "name" => {
                event.name = value.as_word("name", position)?.to_owned();
                named = true;
            }
            "id" => event.id = Some(value.as_u64("id", position)?),
            "stream_id" => event.stream_id = Some(value.as_u64("stream_id", position)?),
            "loglevel" => {
                value.as_u64("loglevel", position)?;
                event.log_level = Some(value.as_i64("loglevel", position)?);
            }
            "model.emf.uri" => {
                value.as_text("model.emf.uri", position)?;
            }
            _ => {}
        }
    }
    if !named {
        return error(ErrorKind::Missing("name"), event.position);
    }
    event.roots = contents.roots(&[("context", Scope::EventContext), ("fields", Scope::EventPayload)]);
    Ok(event)
}
