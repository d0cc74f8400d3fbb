//! What the blocks say: sections and their events (RFC 7).

use super::headers::{Alignments, CLOCK, packet_header, type1, type2};
use super::section::clock;
use super::syntax::{Attribute, Block, Entry};
use super::types::Types;
use backtrail_trace::constants::PAYLOAD_SIZE;
use backtrail_trace::description::{Description, EventClass, Integer, StreamClass, Struct};
use backtrail_trace::tsdl::{Error, ErrorKind, Position, Result, error};
use backtrail_wire::Endian;
use std::collections::{HashMap, HashSet};

/// Blocks may come in any order, since metadata may be appended to while a trace is recorded: types
/// are declared first, then sections, then events.
pub(super) fn describe(entries: &[Entry], order: Endian, most_work: u64) -> Result<Description> {
    let mut types = Types::new(order, most_work);
    let mut seen_trace = false;
    let (mut sections, mut events) = (Vec::new(), Vec::new());
    for entry in entries {
        let (kind, name, block) = match entry {
            Entry::Block { kind, name, block } => (kind.as_str(), name.as_deref(), block),
            Entry::Attribute(attribute) => return error(ErrorKind::Expected("a block"), attribute.position),
        };
        match (kind, name) {
            ("trace", None) if seen_trace => return error(ErrorKind::Duplicate, block.position),
            ("trace", None) => {
                version(block)?;
                seen_trace = true;
            }
            ("type", Some(name)) => types.declare(name, block, false)?,
            ("abstract_type", Some(name)) => types.declare(name, block, true)?,
            ("section", None) => sections.push(block),
            ("event", None) => events.push(block),
            _ => return error(ErrorKind::Expected("trace, section, event or a type"), block.position),
        }
    }
    if !seen_trace {
        return error(ErrorKind::Missing("trace"), Position { line: 1, column: 1 });
    }
    types.check()?;
    let native = Native::of(&mut types, order)?;
    let mut description = Description {
        byte_order: Some(order),
        clocks: vec![clock()],
        packet_header: Some(packet_header(order)),
        ..Description::default()
    };
    for block in sections {
        let id = description.streams.len() as u64;
        let section = native.section(block, id, &mut types)?;
        if description.streams.iter().any(|other| other.name == section.name) {
            return error(ErrorKind::Duplicate, block.position);
        }
        description.streams.push(section);
    }
    add_events(&mut description.streams, &events, &mut types)?;
    Ok(description)
}

/// The attributes of a block, each at most once, and its inner blocks.
struct Contents<'b> {
    position: Position,
    attributes: HashMap<&'b str, &'b Attribute>,
    blocks: Vec<(&'b str, &'b Block)>,
}

impl<'b> Contents<'b> {
    fn of(block: &'b Block) -> Result<Contents<'b>> {
        let mut contents = Contents {
            position: block.position,
            attributes: HashMap::new(),
            blocks: Vec::new(),
        };
        for entry in &block.entries {
            match entry {
                Entry::Attribute(attribute) => {
                    if contents.attributes.insert(&attribute.name, attribute).is_some() {
                        return error(ErrorKind::Duplicate, attribute.position);
                    }
                }
                Entry::Block {
                    kind,
                    name: None,
                    block,
                } => {
                    if contents.blocks.iter().any(|(other, _)| other == kind) {
                        return error(ErrorKind::Duplicate, block.position);
                    }
                    contents.blocks.push((kind, block));
                }
                Entry::Block { block, .. } => return error(ErrorKind::Expected("an attribute"), block.position),
            }
        }
        Ok(contents)
    }

    fn get(&self, name: &str) -> Option<&'b Attribute> {
        self.attributes.get(name).copied()
    }

    fn required(&self, name: &'static str) -> Result<&'b Attribute> {
        self.get(name).ok_or(Error {
            kind: ErrorKind::Missing(name),
            position: self.position,
        })
    }

    fn block(&self, kind: &str) -> Option<&'b Block> {
        self.blocks
            .iter()
            .find(|(other, _)| *other == kind)
            .map(|(_, block)| *block)
    }
}

/// The RFC never says which version it is. Minor versions are taken for compatible.
fn version(block: &Block) -> Result<()> {
    let contents = Contents::of(block)?;
    let major = contents.required("major")?;
    if major.as_u64("major")? != 1 {
        return error(ErrorKind::Value("major"), major.position);
    }
    contents.required("minor")?.as_u64("minor").map(drop)
}

/// What the architecture makes of the fixed structs: byte order and alignments.
struct Native {
    order: Endian,
    align: Alignments,
    /// Of the context that holds the size of the payload.
    payload_size: Integer,
}

impl Native {
    /// The alignments of the architecture show in the metadata's own types; without them everything
    /// is packed.
    fn of(types: &mut Types<'_>, order: Endian) -> Result<Native> {
        let mut integer = |name: &str, size| {
            let declared = types.integer_named(name)?;
            Ok(declared.unwrap_or(Integer::unsigned(size, order)))
        };
        let (short, word, long) = (
            integer("uint16_t", 16)?,
            integer("uint32_t", 32)?,
            integer("uint64_t", 64)?,
        );
        Ok(Native {
            order,
            align: Alignments {
                u16: short.align,
                u32: word.align,
                u64: long.align,
            },
            payload_size: short,
        })
    }

    fn section<'b>(&self, block: &'b Block, id: u64, types: &mut Types<'b>) -> Result<StreamClass> {
        let contents = Contents::of(block)?;
        let name = contents.required("name")?.as_name("name")?.to_owned();
        let event = contents.block("event").ok_or(Error {
            kind: ErrorKind::Missing("event"),
            position: block.position,
        })?;
        let event = Contents::of(event)?;
        let header_type = event.required("header_type")?;
        let header = match header_type.as_name("header_type")? {
            "type1" => type1(self.order, self.align),
            "type2" => type2(self.order, self.align),
            _ => return error(ErrorKind::Value("header_type"), header_type.position),
        };
        Ok(StreamClass {
            id,
            name: Some(name),
            clock: Some(CLOCK),
            event_header: Some(header),
            event_context: self.context(&event, types)?,
            ..StreamClass::default()
        })
    }

    /// `context { event_size = true }` or, as the next version of the RFC had it, a struct.
    fn context<'b>(&self, event: &Contents<'b>, types: &mut Types<'b>) -> Result<Option<Struct>> {
        if let Some(attribute) = event.get("context").or(event.get("context_type")) {
            return types.structure_of(attribute).map(Some);
        }
        let Some(block) = event.block("context") else {
            return Ok(None);
        };
        let sized = match Contents::of(block)?.get("event_size") {
            Some(attribute) => attribute.as_bool("event_size")?,
            None => false,
        };
        Ok(sized.then(|| Struct::new().with(PAYLOAD_SIZE, self.payload_size)))
    }
}

fn add_events<'b>(sections: &mut [StreamClass], blocks: &[&'b Block], types: &mut Types<'b>) -> Result<()> {
    let places: HashMap<String, usize> = sections
        .iter()
        .enumerate()
        .filter_map(|(place, section)| Some((section.name.clone()?, place)))
        .collect();
    let mut ids = HashSet::new();
    for &block in blocks {
        let contents = Contents::of(block)?;
        let section = contents.required("section")?;
        let Some(&place) = places.get(section.as_name("section")?) else {
            return error(ErrorKind::UnknownSection, section.position);
        };
        let id = contents.required("id")?;
        let number = id.as_u32("id")?;
        if !ids.insert((place, number)) {
            return error(ErrorKind::Duplicate, id.position);
        }
        let fields = contents.get("fields");
        sections[place].events.push(EventClass {
            id: u64::from(number),
            name: contents.required("name")?.as_name("name")?.to_owned(),
            payload: fields.map(|attribute| types.structure_of(attribute)).transpose()?,
            ..EventClass::default()
        });
    }
    Ok(())
}
