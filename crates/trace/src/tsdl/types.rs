//! Resolves the names of types in their scopes (CTF 1.8.3, section 7.3.1).

use super::error::{Error, ErrorKind, Position, Result, error};
use super::labels::label_ranges;
use super::syntax::{Alias, Attribute, Dimension, Item, Label, Path, Specifier, Statement, Type, Value};
use crate::constants::MAX_NESTING;
use crate::description::{Base, Encoding, Mapping, Range};
use backtrail_wire::Endian;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A class whose lengths and tags are still names. Named types are shared by their users.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) position: Position,
    pub(super) class: RawClass,
    /// The nesting depth of its classes.
    depth: usize,
    /// The number of its classes if nothing is shared.
    pub(super) fields: u64,
}

#[derive(Debug)]
pub(super) enum RawClass {
    Integer(RawInteger),
    Enum {
        integer: RawInteger,
        mappings: Vec<Mapping>,
    },
    Float {
        size: u32,
        align: u32,
        order: Option<Endian>,
    },
    String(Encoding),
    Struct {
        members: Vec<RawMember>,
        min_align: u32,
    },
    Array {
        length: Dimension,
        element: Rc<Raw>,
    },
    Variant {
        tag: Option<Path>,
        options: Vec<RawMember>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct RawInteger {
    pub(super) size: u32,
    pub(super) align: u32,
    pub(super) signed: bool,
    pub(super) base: Base,
    /// `None` for the trace's byte order.
    pub(super) order: Option<Endian>,
    pub(super) encoding: Encoding,
    pub(super) clock: Option<(String, Position)>,
}

#[derive(Clone, Debug)]
pub(super) struct RawMember {
    pub(super) position: Position,
    pub(super) name: String,
    pub(super) class: Rc<Raw>,
}

#[derive(Default)]
struct Scope {
    aliases: HashMap<String, Rc<Raw>>,
    structs: HashMap<String, Rc<Raw>>,
    enums: HashMap<String, Rc<Raw>>,
    variants: HashMap<String, Rc<Raw>>,
}

/// The open scopes, innermost last.
pub(super) struct Types {
    scopes: Vec<Scope>,
    most_fields: u64,
    /// Names of all fields so far.
    fields: HashSet<String>,
    /// Fields that named types use as lengths.
    lengths: Vec<(String, Position)>,
}

impl Types {
    pub(super) fn new(most_fields: u64) -> Types {
        Types {
            scopes: vec![Scope::default()],
            most_fields,
            fields: HashSet::new(),
            lengths: Vec::new(),
        }
    }

    pub(super) fn enter(&mut self) {
        self.scopes.push(Scope::default());
    }

    pub(super) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// Defines a type; returns whether the statement was a definition.
    pub(super) fn define(&mut self, statement: &Statement) -> Result<bool> {
        match statement {
            Statement::Aliases(_, aliases) => {
                aliases.iter().try_for_each(|alias| self.define_alias(alias))?;
                Ok(true)
            }
            Statement::Definition(class) => {
                self.resolve(class)?;
                Ok(true)
            }
            Statement::Block { .. } | Statement::Attribute { .. } | Statement::Binding { .. } => Ok(false),
        }
    }

    fn define_alias(&mut self, alias: &Alias) -> Result<()> {
        let class = self.resolve(&alias.class)?;
        if let RawClass::Array {
            length: Dimension::Path(path),
            ..
        } = &class.class
        {
            let is_constant = path.words.first().is_some_and(|scope| scope == "env");
            let name = path.words.last().filter(|_| !is_constant);
            self.lengths.extend(name.map(|name| (name.clone(), path.position)));
        }
        self.insert(|scope| &mut scope.aliases, &alias.name, class, alias.position)
    }

    /// After all definitions: fails if an unused type has a length that is not any field.
    pub(super) fn check_lengths(&self) -> Result<()> {
        match self.lengths.iter().find(|(name, _)| !self.fields.contains(name)) {
            Some((_, position)) => error(ErrorKind::UnknownReference, *position),
            None => Ok(()),
        }
    }

    fn insert(
        &mut self,
        map: impl Fn(&mut Scope) -> &mut HashMap<String, Rc<Raw>>,
        name: &str,
        class: Rc<Raw>,
        position: Position,
    ) -> Result<()> {
        let Some(scope) = self.scopes.last_mut() else {
            return Ok(());
        };
        match map(scope).insert(name.to_owned(), class) {
            None => Ok(()),
            Some(_) => error(ErrorKind::DuplicateType, position),
        }
    }

    fn look_up(
        &self,
        map: impl Fn(&Scope) -> &HashMap<String, Rc<Raw>>,
        name: &str,
        position: Position,
    ) -> Result<Rc<Raw>> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| map(scope).get(name))
            .cloned()
            .ok_or(Error {
                kind: ErrorKind::UnknownType,
                position,
            })
    }

    pub(super) fn resolve(&mut self, class: &Type) -> Result<Rc<Raw>> {
        let position = class.position;
        let raw = match &class.specifier {
            Specifier::Named(name) => return self.look_up(|scope| &scope.aliases, name, position),
            Specifier::Integer(attributes) => RawClass::Integer(integer(attributes, position)?),
            Specifier::Float(attributes) => float(attributes, position)?,
            Specifier::String(attributes) => string(attributes)?,
            Specifier::Array { element, length } => RawClass::Array {
                length: length.clone(),
                element: self.resolve(element)?,
            },
            Specifier::Struct { name, body, align } => {
                return self.structure(name.as_deref(), body.as_deref(), *align, position);
            }
            Specifier::Enum { name, container, body } => {
                return self.enumeration(name.as_deref(), container.as_deref(), body.as_deref(), position);
            }
            Specifier::Variant { name, tag, body } => {
                return self.variant(name.as_deref(), tag.as_ref(), body.as_deref(), position);
            }
        };
        self.share(raw, position)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the depth is compared with its limit")]
    fn share(&self, class: RawClass, position: Position) -> Result<Rc<Raw>> {
        let (mut depth, mut fields) = (0, 1u64);
        let mut add = |class: &Raw| {
            depth = depth.max(class.depth);
            fields = fields.saturating_add(class.fields);
        };
        match &class {
            RawClass::Struct { members, .. } | RawClass::Variant { options: members, .. } => {
                members.iter().for_each(|member| add(&member.class));
            }
            RawClass::Array { element, .. } => add(element),
            RawClass::Integer(_) | RawClass::Enum { .. } | RawClass::Float { .. } | RawClass::String(_) => {}
        }
        depth += 1;
        if depth > MAX_NESTING {
            return error(ErrorKind::TooDeep, position);
        }
        if fields > self.most_fields {
            return error(ErrorKind::TooLarge, position);
        }
        Ok(Rc::new(Raw {
            position,
            class,
            depth,
            fields,
        }))
    }

    fn structure(
        &mut self,
        name: Option<&str>,
        body: Option<&[Item]>,
        align: Option<u64>,
        position: Position,
    ) -> Result<Rc<Raw>> {
        let align = match align {
            Some(align) => alignment(align, position)?,
            None => 1,
        };
        let Some(body) = body else {
            let known = self.look_up(|scope| &scope.structs, name.unwrap_or_default(), position)?;
            return match &known.class {
                RawClass::Struct { members, min_align } if align > *min_align => {
                    let members = members.clone();
                    self.share(
                        RawClass::Struct {
                            members,
                            min_align: align,
                        },
                        position,
                    )
                }
                _ => Ok(known),
            };
        };
        let members = self.body(body)?;
        check_labels(&members)?;
        let class = self.share(
            RawClass::Struct {
                members,
                min_align: align,
            },
            position,
        )?;
        if let Some(name) = name {
            self.insert(|scope| &mut scope.structs, name, class.clone(), position)?;
        }
        Ok(class)
    }

    fn variant(
        &mut self,
        name: Option<&str>,
        tag: Option<&Path>,
        body: Option<&[Item]>,
        position: Position,
    ) -> Result<Rc<Raw>> {
        let options = match body {
            Some(body) => self.body(body)?,
            None => match &self
                .look_up(|scope| &scope.variants, name.unwrap_or_default(), position)?
                .class
            {
                RawClass::Variant { options, .. } => options.clone(),
                _ => Vec::new(),
            },
        };
        if options.is_empty() {
            return error(ErrorKind::Expected("an option"), position);
        }
        let tag = tag.cloned();
        let class = self.share(RawClass::Variant { tag, options }, position)?;
        if let (Some(name), Some(_)) = (name, body) {
            self.insert(|scope| &mut scope.variants, name, class.clone(), position)?;
        }
        Ok(class)
    }

    fn body(&mut self, items: &[Item]) -> Result<Vec<RawMember>> {
        self.enter();
        let mut members: Vec<RawMember> = Vec::new();
        let mut names = HashSet::new();
        for item in items {
            match item {
                Item::Statement(statement) => {
                    self.define(statement)?;
                }
                Item::Field { name, position, class } => {
                    if !names.insert(name.as_str()) {
                        return error(ErrorKind::Duplicate, *position);
                    }
                    self.fields.insert(name.clone());
                    members.push(RawMember {
                        position: *position,
                        name: name.clone(),
                        class: self.resolve(class)?,
                    });
                }
            }
        }
        self.leave();
        Ok(members)
    }

    fn enumeration(
        &mut self,
        name: Option<&str>,
        container: Option<&Type>,
        body: Option<&[Label]>,
        position: Position,
    ) -> Result<Rc<Raw>> {
        let Some(body) = body else {
            return self.look_up(|scope| &scope.enums, name.unwrap_or_default(), position);
        };
        let container = match container {
            Some(class) => self.resolve(class)?,
            None => self.look_up(|scope| &scope.aliases, "int", position)?,
        };
        let RawClass::Integer(integer) = &container.class else {
            return error(ErrorKind::Value("enum"), position);
        };
        let raw = RawClass::Enum {
            integer: integer.clone(),
            mappings: mappings(body, integer)?,
        };
        let class = self.share(raw, position)?;
        if let Some(name) = name {
            self.insert(|scope| &mut scope.enums, name, class.clone(), position)?;
        }
        Ok(class)
    }
}

/// The options of a variant must share a label with a tag beside it, even if the struct is not
/// used.
#[expect(clippy::indexing_slicing, reason = "indexes of these lists")]
fn check_labels(members: &[RawMember]) -> Result<()> {
    for (index, member) in members.iter().enumerate() {
        let RawClass::Variant {
            tag: Some(tag),
            options,
        } = &member.class.class
        else {
            continue;
        };
        let is_tag = |other: &&RawMember| tag.words.len() == 1 && other.name == tag.words[0];
        let Some(RawClass::Enum { mappings, .. }) = members[..index].iter().find(is_tag).map(|tag| &tag.class.class)
        else {
            continue;
        };
        if options
            .iter()
            .all(|option| label_ranges(mappings, &option.name).is_empty())
        {
            return error(ErrorKind::NoLabel, member.position);
        }
    }
    Ok(())
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "64 bits in 128; indexes of its own list"
)]
fn mappings(labels: &[Label], integer: &RawInteger) -> Result<Vec<Mapping>> {
    // LTTng's programs use an enum with containers that are too small for some of its values. As in
    // babeltrace2, values have 64 bits and the container's sign.
    let wrapped = |value: i128| match integer.signed {
        true => i128::from(value as i64),
        false => i128::from(value as u64),
    };
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    let mut next = 0i128;
    for label in labels {
        let (first, last) = label.range.unwrap_or((next, next));
        if first > last {
            return error(ErrorKind::Value("label"), label.position);
        }
        let (first, last) = (wrapped(first), wrapped(last));
        next = last + 1;
        if first > last {
            continue;
        }
        let range = Range { first, last };
        match by_name.get(label.name.as_str()) {
            Some(&index) => mappings[index].ranges.push(range),
            None => {
                by_name.insert(&label.name, mappings.len());
                mappings.push(Mapping {
                    name: label.name.clone(),
                    ranges: vec![range],
                });
            }
        }
    }
    Ok(mappings)
}

fn alignment(align: u64, position: Position) -> Result<u32> {
    match u32::try_from(align) {
        Ok(align) if align.is_power_of_two() => Ok(align),
        _ => error(ErrorKind::Value("align"), position),
    }
}

/// `native` gives `None`.
pub(super) fn byte_order(value: &Value, position: Position) -> Result<Option<Endian>> {
    match value.as_word("byte_order", position)? {
        "le" => Ok(Some(Endian::Little)),
        "be" | "network" => Ok(Some(Endian::Big)),
        "native" => Ok(None),
        _ => error(ErrorKind::Value("byte_order"), position),
    }
}

fn encoding(value: &Value, position: Position) -> Result<Encoding> {
    let Value::Path(word) = value else {
        return error(ErrorKind::Value("encoding"), position);
    };
    match word.as_str() {
        "none" => Ok(Encoding::None),
        "UTF8" | "utf8" | "UTF_8" | "utf_8" | "utf-8" | "UTF-8" => Ok(Encoding::Utf8),
        "ASCII" | "ascii" => Ok(Encoding::Ascii),
        _ => error(ErrorKind::Value("encoding"), position),
    }
}

fn base(value: &Value, position: Position) -> Result<Base> {
    let base = match value {
        Value::Number {
            magnitude,
            negative: false,
        } => Base::from_number(*magnitude),
        Value::Path(word) => match word.as_str() {
            "decimal" | "dec" | "d" | "i" | "u" => Some(Base::Decimal),
            "hexadecimal" | "hex" | "x" | "X" | "p" => Some(Base::Hexadecimal),
            "octal" | "oct" | "o" => Some(Base::Octal),
            "binary" | "b" => Some(Base::Binary),
            _ => None,
        },
        Value::Number { .. } | Value::Text(_) => None,
    };
    base.ok_or(Error {
        kind: ErrorKind::Value("base"),
        position,
    })
}

/// Byte-aligned if the size allows it (CTF 1.8.3, section 4.1.2).
fn default_align(size: u32) -> u32 {
    if size.is_multiple_of(8) { 8 } else { 1 }
}

#[expect(clippy::indexing_slicing, reason = "indexes of these lists")]
fn check_duplicates(attributes: &[Attribute]) -> Result<()> {
    for (index, attribute) in attributes.iter().enumerate() {
        if attributes[..index].iter().any(|earlier| earlier.name == attribute.name) {
            return error(ErrorKind::Duplicate, attribute.position);
        }
    }
    Ok(())
}

fn integer(attributes: &[Attribute], position: Position) -> Result<RawInteger> {
    check_duplicates(attributes)?;
    let mut size = None;
    let mut align = None;
    let mut integer = RawInteger {
        size: 0,
        align: 1,
        signed: false,
        base: Base::Decimal,
        order: None,
        encoding: Encoding::None,
        clock: None,
    };
    for Attribute { name, position, value } in attributes {
        let position = *position;
        match name.as_str() {
            "size" => {
                let bits = value.as_u64("size", position)?;
                if !(1..=64).contains(&bits) {
                    return error(ErrorKind::Value("size"), position);
                }
                size = Some(bits as u32);
            }
            "align" => align = Some(alignment(value.as_u64("align", position)?, position)?),
            "signed" => integer.signed = value.as_bool("signed", position)?,
            "base" => integer.base = base(value, position)?,
            "byte_order" => integer.order = byte_order(value, position)?,
            "encoding" => integer.encoding = encoding(value, position)?,
            "map" => integer.clock = Some((mapped_clock(value, position)?, position)),
            // The specification asks readers to skip unknown attributes.
            _ => {}
        }
    }
    let Some(size) = size else {
        return error(ErrorKind::Missing("size"), position);
    };
    integer.size = size;
    integer.align = align.unwrap_or(default_align(size));
    Ok(integer)
}

/// The name in `clock.NAME.value`.
fn mapped_clock(value: &Value, position: Position) -> Result<String> {
    let Value::Path(path) = value else {
        return error(ErrorKind::Value("map"), position);
    };
    match path.strip_prefix("clock.").and_then(|rest| rest.strip_suffix(".value")) {
        Some(name) => Ok(name.to_owned()),
        None => error(ErrorKind::Value("map"), position),
    }
}

fn float(attributes: &[Attribute], position: Position) -> Result<RawClass> {
    check_duplicates(attributes)?;
    let (mut exponent, mut mantissa, mut align, mut order) = (None, None, None, None);
    for Attribute { name, position, value } in attributes {
        let position = *position;
        match name.as_str() {
            "exp_dig" => exponent = Some(value.as_u64("exp_dig", position)?),
            "mant_dig" => mantissa = Some(value.as_u64("mant_dig", position)?),
            "align" => align = Some(alignment(value.as_u64("align", position)?, position)?),
            "byte_order" => order = byte_order(value, position)?,
            _ => {}
        }
    }
    let size = match (exponent, mantissa) {
        (Some(8), Some(24)) => 32,
        (Some(11), Some(53)) => 64,
        (None, _) => return error(ErrorKind::Missing("exp_dig"), position),
        (_, None) => return error(ErrorKind::Missing("mant_dig"), position),
        _ => return error(ErrorKind::Unsupported("floating point numbers of this size"), position),
    };
    let align = align.unwrap_or(default_align(size));
    Ok(RawClass::Float { size, align, order })
}

fn string(attributes: &[Attribute]) -> Result<RawClass> {
    check_duplicates(attributes)?;
    let mut stored = Encoding::Utf8;
    for Attribute { name, position, value } in attributes {
        if name == "encoding" {
            stored = encoding(value, *position)?;
        }
    }
    Ok(RawClass::String(stored))
}
