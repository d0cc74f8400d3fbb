//! Reads the field classes of CTF 2 metadata (section 5.3).

use super::error::{ErrorKind, Result};
use super::read::{Frame, Object, Reader};
use super::write::{ENCODINGS, role_name};
use crate::constants::MAX_NESTING;
use crate::description::{
    Array, Base, BitMap, Encoding, Enumeration, FieldClass, Float, Integer, Length, Mapping, Member, Optional, Range,
    Reference, Role, Scope, Storage, Struct, Variant, VariantOption,
};
use backtrail_wire::Endian;
use serde_json::Value;

impl Reader {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the depth was compared with its limit; parts of paths by their own lengths"
    )]
    pub(super) fn class(&mut self, value: &Value, depth: usize) -> Result<FieldClass> {
        if depth >= MAX_NESTING {
            return Err(ErrorKind::TooDeep);
        }
        self.fields_left = self.fields_left.checked_sub(1).ok_or(ErrorKind::TooLarge)?;
        if let Value::String(alias) = value {
            let class = self.aliases.get(alias).cloned().ok_or(ErrorKind::UnknownAlias)?;
            return match self.way.of_alias {
                // The class of an alias was checked when the alias was defined.
                true => Ok(FieldClass::String(Encoding::Utf8)),
                false => self.class(&class, depth + 1),
            };
        }
        let mut object = Object::of(value)?;
        let kind = object.required("type")?.as_str().ok_or(ErrorKind::Value("type"))?;
        let class = match kind {
            "fixed-length-unsigned-integer" => self.integer(&mut object, false)?,
            "fixed-length-signed-integer" => self.integer(&mut object, true)?,
            "fixed-length-floating-point-number" => float(&mut object)?,
            "null-terminated-string" => FieldClass::String(encoding(&mut object)?),
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
                    blob: false,
                })
            }
            "static-length-string" | "dynamic-length-string" => {
                let element = Integer {
                    encoding: encoding(&mut object)?,
                    ..Integer::character(Endian::Little)
                };
                bytes(self.length(&mut object, kind)?, element)
            }
            "static-length-blob" | "dynamic-length-blob" => self.blob(&mut object, kind)?,
            "variant" => FieldClass::Variant(self.variant(&mut object, depth)?),
            "variable-length-unsigned-integer" => self.variable_integer(&mut object, false)?,
            "variable-length-signed-integer" => self.variable_integer(&mut object, true)?,
            "fixed-length-bit-array" => self.bit_map(&mut object, false)?,
            "fixed-length-bit-map" => self.bit_map(&mut object, true)?,
            "fixed-length-boolean" => FieldClass::Boolean(fixed_bits(&mut object)?),
            "optional" => FieldClass::Optional(self.optional(&mut object, depth)?),
            _ => return Err(ErrorKind::UnknownType),
        };
        object.finish("field class")?;
        Ok(class)
    }

    fn integer(&mut self, object: &mut Object<'_>, signed: bool) -> Result<FieldClass> {
        let storage = fixed_bits(object)?;
        self.number(object, Integer { signed, ..storage })
    }

    /// Section 5.3.10.
    fn variable_integer(&mut self, object: &mut Object<'_>, signed: bool) -> Result<FieldClass> {
        let storage = Integer {
            signed,
            storage: Storage::Leb128,
            ..Integer::unsigned(64, Endian::Little)
        };
        self.number(object, storage)
    }

    /// The common part of integers of every storage.
    fn number(&mut self, object: &mut Object<'_>, storage: Integer) -> Result<FieldClass> {
        let mut integer = storage;
        if let Some(base) = object.u64("preferred-display-base")? {
            integer.base = Base::from_number(base).ok_or(ErrorKind::Value("preferred-display-base"))?;
        }
        for name in object.list("roles")? {
            let name = name.as_str().ok_or(ErrorKind::Value("roles"))?;
            integer.role = Some(self.role(name)?);
        }
        if matches!(integer.role, Some(Role::Timestamp | Role::TimestampEnd)) && !self.way.of_alias {
            integer.clock = Some(self.way.clock.ok_or(ErrorKind::UnknownClock)?);
        }
        let Some(mappings) = object.take("mappings") else {
            return Ok(FieldClass::Integer(integer));
        };
        Ok(FieldClass::Enumeration(Enumeration {
            integer,
            mappings: named_ranges(mappings, "mappings", integer.signed)?,
        }))
    }

    /// Sections 5.3.4 and 5.3.5.
    fn bit_map(&mut self, object: &mut Object<'_>, named: bool) -> Result<FieldClass> {
        let integer = fixed_bits(object)?.hexadecimal();
        let flags = match named {
            true => named_ranges(object.required("flags")?, "flags", false)?,
            false => Vec::new(),
        };
        let last = flags.iter().flat_map(|flag| &flag.ranges).map(|range| range.last).max();
        if named && last.is_none_or(|last| last >= i128::from(integer.size)) {
            return Err(ErrorKind::Value("flags"));
        }
        Ok(FieldClass::BitMap(BitMap { integer, flags }))
    }

    /// Section 5.3.19.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the depth was compared with its limit; parts of paths by their own lengths"
    )]
    fn optional(&mut self, object: &mut Object<'_>, depth: usize) -> Result<Optional> {
        let (tag, class) = self.location(object.required("selector-field-location")?)?;
        let list = object.take("selector-field-ranges");
        let selector = match class {
            Found::Later => Selector::Any,
            Found::Classes(all) if all.iter().all(|class| matches!(class, FieldClass::Boolean(_))) => Selector::Boolean,
            Found::Classes(all) => Selector::Integer(signedness(&all).ok_or(ErrorKind::Location)?),
        };
        let ranges = match (selector, list) {
            (Selector::Boolean | Selector::Any, None) => Range::TRUE.to_vec(),
            (Selector::Boolean, Some(_)) => return Err(ErrorKind::Value("selector-field-ranges")),
            (Selector::Integer(_), None) => return Err(ErrorKind::Missing("selector-field-ranges")),
            (Selector::Integer(signed), Some(list)) => ranges(list, "selector-field-ranges", signed)?,
            (Selector::Any, Some(list)) => ranges(list, "selector-field-ranges", true)?,
        };
        let class = self.class(object.required("field-class")?, depth + 1)?;
        Ok(Optional {
            tag,
            ranges,
            class: Box::new(class),
        })
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
        const EVENT: &[Role] = &[Role::Timestamp, Role::EventClassId];
        let allowed = match self.way.scope {
            Some(Scope::PacketHeader) => HEADER,
            Some(Scope::PacketContext) => CONTEXT,
            Some(Scope::EventHeader) => EVENT,
            _ => &[],
        };
        let everywhere = [HEADER, CONTEXT, EVENT].concat();
        let allowed = if self.way.of_alias { &everywhere } else { allowed };
        let found = allowed.iter().find(|&&role| role_name(role) == Some(name));
        found.copied().ok_or(ErrorKind::Value("roles"))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the depth was compared with its limit; parts of paths by their own lengths"
    )]
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
        match class {
            Found::Classes(all) if signedness(&all) != Some(false) => Err(ErrorKind::Location),
            _ => Ok(Length::Field(reference)),
        }
    }

    fn blob(&mut self, object: &mut Object<'_>, kind: &str) -> Result<FieldClass> {
        let length = self.length(object, kind)?;
        object.text("media-type")?;
        let mut class = bytes(length.clone(), Integer::unsigned(8, Endian::Little).hexadecimal());
        for role in object.list("roles")? {
            let sound = role.as_str() == Some("metadata-stream-uuid")
                && (self.way.scope == Some(Scope::PacketHeader) || self.way.of_alias)
                && length == Length::Fixed(16);
            if self.description.uuid.is_none() && !self.way.of_alias {
                return Err(ErrorKind::Missing("uuid"));
            }
            match &mut class {
                FieldClass::Array(array) if sound => array.trace_uuid = true,
                _ => return Err(ErrorKind::Value("roles")),
            }
        }
        if let FieldClass::Array(array) = &mut class {
            array.blob = true;
        }
        Ok(class)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the depth was compared with its limit; parts of paths by their own lengths"
    )]
    fn variant(&mut self, object: &mut Object<'_>, depth: usize) -> Result<Variant> {
        let (tag, class) = self.location(object.required("selector-field-location")?)?;
        let signed = match class {
            Found::Later => true,
            Found::Classes(all) => signedness(&all).ok_or(ErrorKind::Location)?,
        };
        let mut options: Vec<VariantOption> = Vec::new();
        for (index, option) in object.list("options")?.iter().enumerate() {
            let mut option = Object::of(option)?;
            let name = option.owned("name")?.unwrap_or_else(|| index.to_string());
            let list = option.required("selector-field-ranges")?;
            let list = ranges(list, "selector-field-ranges", signed)?;
            for other in &options {
                if other.name == name {
                    return Err(ErrorKind::Duplicate("option"));
                }
                if list
                    .iter()
                    .any(|range| other.ranges.iter().any(|other| range.meets(other)))
                {
                    return Err(ErrorKind::Value("selector-field-ranges"));
                }
            }
            let class = option.required("field-class")?;
            self.way.options.push(self.way.path.len());
            self.way.path.push(name.clone());
            let class = self.class(class, depth + 1)?;
            self.way.path.pop();
            self.way.options.pop();
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
    fn location(&self, value: &Value) -> Result<(Reference, Found<'_>)> {
        let mut object = Object::of(value)?;
        let path = object.list("path")?;
        let origin = object.text("origin")?;
        object.finish("field location")?;
        if self.way.of_alias {
            return Ok((Reference::payload(&[]), Found::Later));
        }
        let current = self.way.scope.ok_or(ErrorKind::Location)?;
        let Some(origin) = origin else {
            let (parents, names) = steps(path)?;
            let last = self.way.frames.len().checked_sub(1);
            let frame = last
                .and_then(|last| last.checked_sub(parents))
                .ok_or(ErrorKind::Location)?;
            return self.follow_frames(current, frame, &names);
        };
        let scope = Scope::ALL.into_iter().find(|scope| scope.json_name() == origin);
        let scope = scope.ok_or(ErrorKind::Value("origin"))?;
        let names: Option<Vec<&str>> = path.iter().map(Value::as_str).collect();
        let names = names.ok_or(ErrorKind::Location)?;
        if scope == current {
            return self.follow_frames(scope, 0, &names);
        }
        let root = self
            .roots
            .get(&scope)
            .filter(|_| scope < current)
            .ok_or(ErrorKind::Location)?;
        let (classes, any_option) = descend(&root.members, &names).ok_or(ErrorKind::Location)?;
        let reference = Reference {
            any_option,
            ..Reference::new(scope, &names)
        };
        Ok((reference, Found::Classes(classes)))
    }

    /// Names along the path to the current field stay on it, through the arrays and options there.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the depth was compared with its limit; parts of paths by their own lengths"
    )]
    fn follow_frames(&self, scope: Scope, first: usize, names: &[&str]) -> Result<(Reference, Found<'_>)> {
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
        let (classes, any_option) = descend(&frame.members, names).ok_or(ErrorKind::Location)?;
        let prefix = self.way.path[..frame.path].iter().enumerate();
        let prefix = prefix.filter(|(place, _)| !(any_option && self.way.options.contains(place)));
        let prefix = prefix.map(|(_, name)| name.as_str());
        let reference = Reference {
            any_option,
            ..Reference::new(scope, &prefix.chain(names.iter().copied()).collect::<Vec<_>>())
        };
        Ok((reference, Found::Classes(classes)))
    }
}

/// The target of a location.
enum Found<'c> {
    /// One class, or through variants one in each option.
    Classes(Vec<&'c FieldClass>),
    /// The location of an alias is resolved when the alias is used.
    Later,
}

/// The field that decides whether an optional field is present.
enum Selector {
    Boolean,
    /// Whether it is signed.
    Integer(bool),
    Any,
}

/// How many structures up a path begins, and the names from there on. A null behind a name leads
/// back to the structure that the name was in.
#[expect(clippy::arithmetic_side_effects, reason = "fewer than the path has steps")]
fn steps(path: &[Value]) -> Result<(usize, Vec<&str>)> {
    let (mut parents, mut names) = (0, Vec::new());
    for step in path {
        match step {
            Value::String(name) => names.push(name.as_str()),
            Value::Null if names.pop().is_none() => parents += 1,
            Value::Null => {}
            _ => return Err(ErrorKind::Location),
        }
    }
    Ok((parents, names))
}

/// The fields that names lead to, and whether through variants: then there is one in each option.
fn descend<'m>(members: &'m [Member], names: &[&str]) -> Option<(Vec<&'m FieldClass>, bool)> {
    let (first, rest) = names.split_first()?;
    below(&members.iter().find(|member| member.name == *first)?.class, rest)
}

fn below<'m>(class: &'m FieldClass, names: &[&str]) -> Option<(Vec<&'m FieldClass>, bool)> {
    match class {
        FieldClass::Struct(class) if !names.is_empty() => descend(&class.members, names),
        FieldClass::Variant(class) => {
            let found = class.options.iter().map(|option| Some(below(&option.class, names)?.0));
            Some((found.collect::<Option<Vec<_>>>()?.concat(), true))
        }
        _ => names.is_empty().then(|| (vec![class], false)),
    }
}

/// Whether integers are signed, if all classes are integers.
fn signedness(classes: &[&FieldClass]) -> Option<bool> {
    let mut all = classes
        .iter()
        .map(|class| integer_of(class).map(|integer| integer.signed));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
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
        blob: false,
    })
}

/// Byte order, and whether the bit order matches it (section 5.3.3).
fn bit_order(object: &mut Object<'_>) -> Result<(Endian, Storage)> {
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
        None => Ok((order, Storage::Bits)),
        Some(bits) if bits == natural => Ok((order, Storage::Bits)),
        Some("first-to-last" | "last-to-first") => Ok((order, Storage::Reversed)),
        Some(_) => Err(ErrorKind::Value("bit-order")),
    }
}

/// The storage of every fixed-length class, unsigned.
fn fixed_bits(object: &mut Object<'_>) -> Result<Integer> {
    let size = object.required("length")?.as_u64();
    let size = size.filter(|size| (1..=64).contains(size));
    let size = size.ok_or(ErrorKind::Value("length"))? as u32;
    let (byte_order, storage) = bit_order(object)?;
    let align = object.alignment("alignment")?.unwrap_or(1);
    Ok(Integer {
        storage,
        ..Integer::unsigned(size, byte_order).align(align)
    })
}

/// An object whose values are lists of ranges.
fn named_ranges(value: &Value, name: &'static str, signed: bool) -> Result<Vec<Mapping>> {
    let object = value.as_object().ok_or(ErrorKind::Value(name))?;
    let mappings = object.iter().map(|(label, list)| {
        if label.is_empty() {
            return Err(ErrorKind::Value(name));
        }
        Ok(Mapping {
            name: label.clone(),
            ranges: ranges(list, name, signed)?,
        })
    });
    mappings.collect()
}

fn float(object: &mut Object<'_>) -> Result<FieldClass> {
    let size = match object.required("length")?.as_u64() {
        Some(size @ (32 | 64)) => size as u32,
        Some(16 | 128) => return Err(ErrorKind::Unsupported("floating point numbers of this length")),
        _ => return Err(ErrorKind::Value("length")),
    };
    let (byte_order, storage) = bit_order(object)?;
    Ok(FieldClass::Float(Float {
        size,
        align: object.alignment("alignment")?.unwrap_or(1),
        byte_order,
        reversed: storage == Storage::Reversed,
    }))
}

fn encoding(object: &mut Object<'_>) -> Result<Encoding> {
    let Some(name) = object.text("encoding")? else {
        return Ok(Encoding::Utf8);
    };
    let found = ENCODINGS.iter().find(|(_, other)| *other == name);
    found.map(|&(encoding, _)| encoding).ok_or(ErrorKind::Value("encoding"))
}

/// A list of `[first, last]`, at least one (section 4, integer range set).
fn ranges(list: &Value, name: &'static str, signed: bool) -> Result<Vec<Range>> {
    const WRONG: ErrorKind = ErrorKind::Value("range");
    let number = |value: &Value| {
        let unsigned = value.as_u64().map(i128::from);
        unsigned
            .or_else(|| value.as_i64().filter(|_| signed).map(i128::from))
            .ok_or(WRONG)
    };
    let list = list.as_array().filter(|list| !list.is_empty());
    list.ok_or(ErrorKind::Value(name))?
        .iter()
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
