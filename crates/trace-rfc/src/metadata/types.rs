//! Types, and what they inherit, to field classes (RFC 4).

use super::section::LENGTH_NAME;
use super::syntax::{Attribute, Block, Entry, Value};
use backtrail_trace::constants::MAX_NESTING;
use backtrail_trace::description::{
    Array, Encoding, Enumeration, FieldClass, Float, Integer, Length, Mapping, Member, Range, Storage, Struct,
};
use backtrail_trace::tsdl::{Error, ErrorKind, Position, Result, error};
use backtrail_wire::Endian;
use std::collections::{HashMap, HashSet};

/// The types of the metadata.
pub(super) struct Types<'b> {
    named: HashMap<&'b str, Named<'b>>,
    order: Endian,
    /// Attributes and fields that may still be looked at.
    work_left: u64,
    depth: usize,
}

#[derive(Clone, Copy)]
struct Named<'b> {
    block: &'b Block,
    is_abstract: bool,
}

/// The abstract types that the RFC defines. A later one says more than an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Integer,
    Bitfield,
    Enum,
    Float,
    Struct,
    Array,
    Sequence,
    String,
}

impl Kind {
    fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "integer" => Kind::Integer,
            "gcc_bitfield" => Kind::Bitfield,
            "enum" => Kind::Enum,
            "floating_point" => Kind::Float,
            "struct" => Kind::Struct,
            "array" => Kind::Array,
            "sequence" => Kind::Sequence,
            "string" => Kind::String,
            _ => return None,
        })
    }

    /// What a type with both parents is: enumerations and bit fields are integers too.
    fn with(self, other: Kind) -> Option<Kind> {
        let both = (self.min(other), self.max(other));
        match both {
            (one, same) if one == same => Some(one),
            (Kind::Integer | Kind::Bitfield, more @ (Kind::Bitfield | Kind::Enum)) => Some(more),
            _ => None,
        }
    }
}

/// A type's attributes, its parents' included.
struct Attributes<'b> {
    position: Position,
    kind: Option<Kind>,
    values: HashMap<&'b str, &'b Attribute>,
}

impl<'b> Attributes<'b> {
    fn get(&self, name: &str) -> Option<&'b Attribute> {
        self.values.get(name).copied()
    }

    fn required(&self, name: &'static str) -> Result<&'b Attribute> {
        self.get(name).ok_or(Error {
            kind: ErrorKind::Missing(name),
            position: self.position,
        })
    }
}

impl<'b> Types<'b> {
    pub(super) fn new(order: Endian, most_work: u64) -> Types<'b> {
        Types {
            named: HashMap::new(),
            order,
            work_left: most_work,
            depth: 0,
        }
    }

    pub(super) fn declare(&mut self, name: &'b str, block: &'b Block, is_abstract: bool) -> Result<()> {
        match self.named.insert(name, Named { block, is_abstract }) {
            None => Ok(()),
            Some(_) => error(ErrorKind::DuplicateType, block.position),
        }
    }

    /// Looks at every concrete type, also at those that nothing uses. `packet_header` may stand
    /// there as in the RFC, where it has two fields of one name; it is fixed.
    pub(super) fn check(&mut self) -> Result<()> {
        let concrete = self
            .named
            .iter()
            .filter(|(name, named)| !named.is_abstract && **name != "packet_header");
        let mut blocks: Vec<&'b Block> = concrete.map(|(_, named)| named.block).collect();
        blocks.sort_by_key(|block| (block.position.line, block.position.column));
        blocks.into_iter().try_for_each(|block| self.class(block).map(drop))
    }

    /// The class of a named integer, if the metadata declares one.
    pub(super) fn integer_named(&mut self, name: &str) -> Result<Option<Integer>> {
        let Some(named) = self.named.get(name).copied() else {
            return Ok(None);
        };
        match self.class(named.block)? {
            FieldClass::Integer(integer) => Ok(Some(integer)),
            _ => error(ErrorKind::Value("type"), named.block.position),
        }
    }

    /// The struct that an attribute names or describes.
    pub(super) fn structure_of(&mut self, attribute: &'b Attribute) -> Result<Struct> {
        match self.field(&attribute.value, attribute.position)? {
            FieldClass::Struct(class) => Ok(class),
            _ => error(ErrorKind::NotAStruct, attribute.position),
        }
    }

    /// The class of a field: a type by name, or a nameless one.
    fn field(&mut self, value: &'b Value, position: Position) -> Result<FieldClass> {
        match value {
            Value::Type(block) => self.class(block),
            Value::Name(name) => match self.named.get(name.as_str()).copied() {
                Some(named) if named.is_abstract => error(ErrorKind::Abstract, position),
                Some(named) => self.class(named.block),
                None if Kind::of(name).is_some() => error(ErrorKind::Abstract, position),
                // RFC 6.2.1 uses it and declares it nowhere.
                None if name == "uint" => Ok(Integer::unsigned(32, self.order).into()),
                None => error(ErrorKind::UnknownType, position),
            },
            _ => error(ErrorKind::Expected("a type"), position),
        }
    }

    fn class(&mut self, block: &'b Block) -> Result<FieldClass> {
        // Types that contain themselves end here too.
        if self.depth >= MAX_NESTING {
            return error(ErrorKind::TooDeep, block.position);
        }
        self.depth += 1;
        let class = self.class_at_depth(block);
        self.depth -= 1;
        class
    }

    fn class_at_depth(&mut self, block: &'b Block) -> Result<FieldClass> {
        let mut attributes = Attributes {
            position: block.position,
            kind: None,
            values: HashMap::new(),
        };
        self.inherit(block, &mut attributes, 0)?;
        match attributes.kind {
            None => error(ErrorKind::Missing("parent"), block.position),
            Some(Kind::Integer) if attributes.get("map").is_none() => Ok(self.integer(&attributes)?.into()),
            Some(Kind::Bitfield) if attributes.get("map").is_none() => Ok(self.integer(&attributes)?.into()),
            Some(Kind::Integer | Kind::Bitfield | Kind::Enum) => self.enumeration(&attributes),
            Some(Kind::Float) => self.float(&attributes),
            Some(Kind::Struct) => self.structure(&attributes),
            Some(Kind::Array) => self.array(&attributes),
            Some(Kind::Sequence) => self.sequence(&attributes),
            Some(Kind::String) => string(&attributes),
        }
    }

    fn work(&mut self, amount: usize, position: Position) -> Result<()> {
        let left = self.work_left.checked_sub(amount as u64 + 1);
        self.work_left = left.ok_or(Error {
            kind: ErrorKind::TooLarge,
            position,
        })?;
        Ok(())
    }

    /// Adds a type's attributes to those of the types that inherit from it, which count more.
    fn inherit(&mut self, block: &'b Block, attributes: &mut Attributes<'b>, generation: usize) -> Result<()> {
        if generation >= MAX_NESTING {
            return error(ErrorKind::TooDeep, block.position);
        }
        self.work(block.entries.len(), block.position)?;
        let mut own = HashSet::new();
        let mut parents = Vec::new();
        for entry in &block.entries {
            let attribute = match entry {
                Entry::Attribute(attribute) => attribute,
                Entry::Block { block, .. } => return error(ErrorKind::Expected("an attribute"), block.position),
            };
            if attribute.name == "parent" {
                parents.push(attribute);
            } else if own.insert(attribute.name.as_str()) {
                attributes.values.entry(&attribute.name).or_insert(attribute);
            } else {
                return error(ErrorKind::Duplicate, attribute.position);
            }
        }
        for parent in parents {
            let name = parent.as_name("parent")?;
            let kind = Kind::of(name);
            if let Some(named) = self.named.get(name).copied() {
                self.inherit(named.block, attributes, generation + 1)?;
            } else if kind.is_none() {
                return error(ErrorKind::UnknownType, parent.position);
            }
            let Some(kind) = kind else { continue };
            let joined = attributes.kind.map_or(Some(kind), |other| other.with(kind));
            attributes.kind = Some(joined.ok_or(Error {
                kind: ErrorKind::Value("parent"),
                position: parent.position,
            })?);
        }
        Ok(())
    }

    fn byte_order(&self, attributes: &Attributes<'b>) -> Result<Endian> {
        let Some(attribute) = attributes.get("byte_order") else {
            return Ok(self.order);
        };
        match attribute.as_name("byte_order")? {
            "native" => Ok(self.order),
            "network" | "be" => Ok(Endian::Big),
            "le" => Ok(Endian::Little),
            _ => error(ErrorKind::Value("byte_order"), attribute.position),
        }
    }

    /// RFC 4.1.5 and 4.1.6. Without an alignment, whole bytes are byte-aligned and others are not.
    fn integer(&self, attributes: &Attributes<'b>) -> Result<Integer> {
        let size = attributes.required("size")?;
        let bits = size.as_u32("size")?;
        if !(1..=64).contains(&bits) {
            return error(ErrorKind::Value("size"), size.position);
        }
        let signed = attributes
            .get("signed")
            .map_or(Ok(false), |signed| signed.as_bool("signed"))?;
        let storage = match attributes.kind {
            Some(Kind::Bitfield) => {
                let unit = attributes.required("unit_size")?;
                match unit.as_u32("unit_size")? {
                    unit if unit.is_power_of_two() && bits <= unit => Storage::Unit(unit),
                    _ => return error(ErrorKind::Value("unit_size"), unit.position),
                }
            }
            _ => Storage::Bits,
        };
        Ok(Integer {
            signed,
            storage,
            align: alignment(attributes, bits)?,
            ..Integer::unsigned(bits, self.byte_order(attributes)?)
        })
    }

    /// RFC 4.1.8.
    fn enumeration(&mut self, attributes: &Attributes<'b>) -> Result<FieldClass> {
        let integer = self.integer(attributes)?;
        let map = attributes.required("map")?;
        let entries = map.as_list("map")?;
        self.work(entries.len(), map.position)?;
        let mut mappings: Vec<Mapping> = Vec::with_capacity(entries.len());
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (position, entry) in entries {
            let (value, label) = match entry {
                Value::List(pair) => match pair.as_slice() {
                    [(_, Value::Number(value)), (_, Value::Name(label) | Value::Text(label))] => (*value, label),
                    _ => return error(ErrorKind::Value("map"), *position),
                },
                _ => return error(ErrorKind::Value("map"), *position),
            };
            let range = Range::one(value);
            match places.get(label.as_str()) {
                Some(&place) => mappings[place].ranges.push(range),
                None => {
                    places.insert(label, mappings.len());
                    mappings.push(Mapping {
                        name: label.clone(),
                        ranges: vec![range],
                    });
                }
            }
        }
        Ok(Enumeration { integer, mappings }.into())
    }

    /// RFC v1, section 4.1.7; v1.1 left it out as not needed by the kernel.
    fn float(&self, attributes: &Attributes<'b>) -> Result<FieldClass> {
        let exponent = attributes.required("exp_dig")?.as_u64("exp_dig")?;
        let mantissa = attributes.required("mant_dig")?.as_u64("mant_dig")?;
        let size = match (exponent, mantissa) {
            (8, 24) => 32,
            (11, 53) => 64,
            _ => {
                let what = ErrorKind::Unsupported("floating point numbers of this size");
                return error(what, attributes.position);
            }
        };
        Ok(FieldClass::Float(Float {
            size,
            align: alignment(attributes, size)?,
            byte_order: self.byte_order(attributes)?,
            reversed: false,
        }))
    }

    /// RFC 4.2.1.
    fn structure(&mut self, attributes: &Attributes<'b>) -> Result<FieldClass> {
        let attribute = attributes.required("fields")?;
        let fields = attribute.as_list("fields")?;
        let mut class = Struct::new();
        let mut names = HashSet::new();
        for (position, field) in fields {
            self.work(0, *position)?;
            let (kind, name) = match field {
                Value::List(pair) => match pair.as_slice() {
                    [kind, (_, Value::Name(name) | Value::Text(name))] => (kind, name),
                    _ => return error(ErrorKind::Expected("a type and a name"), *position),
                },
                _ => return error(ErrorKind::Expected("{"), *position),
            };
            if !names.insert(name.as_str()) {
                return error(ErrorKind::Duplicate, *position);
            }
            class.members.push(Member {
                name: name.clone(),
                class: self.field(&kind.1, kind.0)?,
            });
        }
        Ok(class.into())
    }

    fn element(&mut self, attributes: &Attributes<'b>) -> Result<Box<FieldClass>> {
        let element = attributes.required("elem_type")?;
        Ok(Box::new(self.field(&element.value, element.position)?))
    }

    /// RFC 4.2.2.
    fn array(&mut self, attributes: &Attributes<'b>) -> Result<FieldClass> {
        let length = Length::Fixed(attributes.required("length")?.as_u64("length")?);
        Ok(array(length, self.element(attributes)?))
    }

    /// RFC 4.2.3.
    fn sequence(&mut self, attributes: &Attributes<'b>) -> Result<FieldClass> {
        let name = attributes.get(LENGTH_NAME);
        let name = name.map(|name| name.as_name(LENGTH_NAME)).transpose()?;
        let length = attributes.required("length_type")?;
        let length = match self.field(&length.value, length.position)? {
            FieldClass::Integer(integer) if !integer.signed => Length::Prefixed {
                length: integer,
                name: name.map(str::to_owned),
            },
            _ => return error(ErrorKind::Value("length_type"), length.position),
        };
        Ok(array(length, self.element(attributes)?))
    }
}

fn array(length: Length, element: Box<FieldClass>) -> FieldClass {
    FieldClass::Array(Array {
        length,
        element,
        min_align: 0,
        trace_uuid: false,
        blob: false,
    })
}

/// RFC 4.2.4.
fn string(attributes: &Attributes<'_>) -> Result<FieldClass> {
    let Some(attribute) = attributes.get("encoding") else {
        return Ok(FieldClass::String(Encoding::Utf8));
    };
    match attribute.as_name("encoding")? {
        "UTF8" => Ok(FieldClass::String(Encoding::Utf8)),
        "ASCII" => Ok(FieldClass::String(Encoding::Ascii)),
        _ => error(ErrorKind::Value("encoding"), attribute.position),
    }
}

fn alignment(attributes: &Attributes<'_>, size: u32) -> Result<u32> {
    let Some(attribute) = attributes.get("align") else {
        return Ok(if size.is_multiple_of(8) { 8 } else { 1 });
    };
    match attribute.as_u32("align")? {
        align if align.is_power_of_two() => Ok(align),
        _ => error(ErrorKind::Value("align"), attribute.position),
    }
}
