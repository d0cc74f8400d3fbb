//! A description to the RFC's metadata (RFC 7): an entry for each type, section and event.

use super::headers::{Alignments, packet_header, type1, type2};
use super::section::LENGTH_NAME;
use crate::constants::MAX_MAPPINGS;
use backtrail_trace::Inexpressible;
use backtrail_trace::description::{
    Array, Description, Encoding, Enumeration, FieldClass, Integer, Length, Scope, Storage, StreamClass, Struct,
};
use backtrail_trace::tsdl::{is_identifier, order_name, quoted};
use backtrail_wire::Endian;
use std::fmt::Write;

/// A description that the RFC cannot express.
pub type WriteError = Inexpressible<WriteErrorKind>;

/// What the RFC cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteErrorKind {
    /// Packets with another header than the RFC's, or with a context; or there is no session.
    Packets,
    /// Event headers that are neither of type 1 nor of type 2 (RFC 6.1), or not all for the same
    /// architecture.
    EventHeader,
    /// Timestamps that are not nanoseconds from the origin.
    Clock,
    /// A stream class without a name: sections have one (RFC 7), and it is their files' name.
    SectionName,
    /// Two stream classes with one name.
    DuplicateSection,
    /// An id of more than 32 bits.
    EventId(u64),
    /// A context that only the events of one class have.
    EventContext,
    /// A variant.
    Variant,
    /// A field that may be absent.
    Optional,
    /// A floating point number.
    Float,
    /// Bits with names.
    BitMap,
    /// A boolean.
    Boolean,
    /// Bytes that are one value.
    Blob,
    /// Text of a fixed length, or after its length.
    TextArray,
    /// Text that is neither UTF-8 nor ASCII.
    Encoding(Encoding),
    /// An integer stored in a way of CTF 2.
    Storage(Storage),
    /// A sequence whose length is not in the field before it, or is used by others too.
    Length,
    /// An alignment of a struct or an array beyond that of its parts.
    Alignment(u32),
    /// An enumeration with labels for more than [`MAX_MAPPINGS`] values, each of which is written.
    Mappings,
    /// A field with a meaning for the structure of packets in another place than their header.
    Role,
}

impl std::fmt::Display for WriteErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use WriteErrorKind as Kind;
        f.write_str("RFC v1.1 cannot express ")?;
        match self {
            Kind::Packets => write!(f, "these packets"),
            Kind::EventHeader => write!(f, "this event header"),
            Kind::Clock => write!(f, "times of this clock"),
            Kind::SectionName => write!(f, "a section without a name"),
            Kind::DuplicateSection => write!(f, "two sections of one name"),
            Kind::EventId(id) => write!(f, "the event id {id}"),
            Kind::EventContext => write!(f, "a context of one class of events"),
            Kind::Variant => write!(f, "a variant"),
            Kind::Optional => write!(f, "an optional field"),
            Kind::Float => write!(f, "a floating point number"),
            Kind::BitMap => write!(f, "bits with names"),
            Kind::Boolean => write!(f, "a boolean"),
            Kind::Blob => write!(f, "a BLOB"),
            Kind::TextArray => write!(f, "an array of characters"),
            Kind::Encoding(encoding) => write!(f, "text in {encoding:?}"),
            Kind::Storage(storage) => write!(f, "integers stored as {storage:?}"),
            Kind::Length => write!(f, "a sequence whose length is not its own, in the field before it"),
            Kind::Alignment(align) => write!(f, "an alignment of {align} bits that no part needs"),
            Kind::Mappings => write!(f, "labels of more than {MAX_MAPPINGS} values"),
            Kind::Role => write!(f, "a role of this field"),
        }
    }
}

type Result<T> = std::result::Result<T, WriteError>;

/// The entries of the metadata, each of which is a string of its own in a metadata packet (RFC 7).
///
/// Left out is what the RFC cannot express and a reader of the events does not need: the trace's
/// UUID and environment, the clock's name, log levels, in which base numbers are printed, the
/// encoding of single characters.
///
/// Contexts other than the payload's size have a place in the RFC's prose (6.2.1), but none in its
/// grammar; they are written as in its next version, `context = type { … }`.
///
/// # Errors
///
/// The RFC cannot express the description.
pub fn write(description: &Description) -> Result<Vec<String>> {
    let order = description.byte_order.unwrap_or(Endian::NATIVE);
    let mut writer = Writer {
        native: Native::of(description, order)?,
        scope: None,
        stream: None,
        event: None,
        text: String::new(),
    };
    let mut entries = vec!["trace {\n\tmajor = 1;\n\tminor = 1;\n}".to_owned()];
    entries.extend(writer.native.named.iter().map(|(name, integer)| {
        let mut text = format!("type {name} ");
        integer_type(&mut text, integer, order);
        text
    }));
    for (index, class) in description.streams.iter().enumerate() {
        writer.stream = Some(class.id);
        let earlier = &description.streams[..index];
        if earlier.iter().any(|earlier| earlier.name == class.name) {
            return writer.fail(WriteErrorKind::DuplicateSection);
        }
        writer.section(class)?;
        entries.push(std::mem::take(&mut writer.text));
        for event in &class.events {
            writer.event = Some(event.id);
            writer.event(class, event)?;
            entries.push(std::mem::take(&mut writer.text));
        }
        writer.event = None;
    }
    Ok(entries)
}

/// What the metadata's own types say of the architecture.
struct Native {
    order: Endian,
    align: Alignments,
    /// Integers by their names in C.
    named: Vec<(&'static str, Integer)>,
}

impl Native {
    /// Finds the alignments with which all event headers are those of the RFC.
    fn of(description: &Description, order: Endian) -> Result<Native> {
        let fail = |kind, stream| {
            Err(WriteError {
                kind,
                scope: None,
                stream,
                event: None,
            })
        };
        if description.packet_header.as_ref() != Some(&packet_header(order)) || description.session.is_none() {
            return fail(WriteErrorKind::Packets, None);
        }
        let contexts = description
            .streams
            .iter()
            .filter_map(|class| class.event_context.as_ref());
        let short = contexts
            .filter_map(Struct::payload_size)
            .next()
            .map_or(8, |size| size.align);
        let aligns = [8, 1, 2, 4, 16, 32, 64];
        let candidates = aligns
            .iter()
            .flat_map(|&u32| aligns.iter().map(move |&u64| (u32, u64)))
            .flat_map(|(u32, u64)| {
                [short]
                    .into_iter()
                    .chain(aligns)
                    .map(move |u16| Alignments { u16, u32, u64 })
            });
        let fits = |align: &Alignments| {
            let mut classes = description.streams.iter();
            classes.all(|class| header_type(class, order, *align).is_some())
        };
        let Some(align) = candidates.into_iter().find(fits) else {
            let odd = description.streams.iter();
            let packed = Alignments::PACKED;
            let odd = odd.filter(|class| header_type(class, order, packed).is_none());
            return fail(WriteErrorKind::EventHeader, odd.map(|class| class.id).next());
        };
        let number = |size, align| Integer::unsigned(size, order).align(align);
        let named = [
            ("uint8_t", "int8_t", number(8, 8)),
            ("uint16_t", "int16_t", number(16, align.u16)),
            ("uint32_t", "int32_t", number(32, align.u32)),
            ("uint64_t", "int64_t", number(64, align.u64)),
        ];
        let named = named.into_iter().flat_map(|(unsigned, signed, integer)| {
            let negative = Integer {
                signed: true,
                ..integer
            };
            [(unsigned, integer), (signed, negative)]
        });
        Ok(Native {
            order,
            align,
            named: named.collect(),
        })
    }
}

fn header_type(class: &StreamClass, order: Endian, align: Alignments) -> Option<&'static str> {
    let header = class.event_header.as_ref()?;
    let types = [("type1", type1(order, align)), ("type2", type2(order, align))];
    let found = types.into_iter().find(|(_, described)| described == header);
    found.map(|(name, _)| name)
}

struct Writer {
    native: Native,
    scope: Option<Scope>,
    stream: Option<u64>,
    event: Option<u64>,
    text: String,
}

impl Writer {
    fn fail<T>(&self, kind: WriteErrorKind) -> Result<T> {
        Err(WriteError {
            kind,
            scope: self.scope,
            stream: self.stream,
            event: self.event,
        })
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(text);
    }

    fn section(&mut self, class: &StreamClass) -> Result<()> {
        let Some(name) = &class.name else {
            return self.fail(WriteErrorKind::SectionName);
        };
        if class.packet_context.is_some() {
            return self.fail(WriteErrorKind::Packets);
        }
        let Some(header) = header_type(class, self.native.order, self.native.align) else {
            return self.fail(WriteErrorKind::EventHeader);
        };
        let context = class.event_context.as_ref();
        let native = Integer::unsigned(16, self.native.order).align(self.native.align.u16);
        let sized = context
            .and_then(Struct::payload_size)
            .is_some_and(|size| size == native);
        self.put(format_args!(
            "section {{\n\tname = {};\n\tevent {{\n\t\theader_type = {header};\n",
            named(name)
        ));
        match context {
            Some(context) if !sized => {
                self.scope = Some(Scope::StreamEventContext);
                self.put(format_args!("\t\tcontext = "));
                self.structure(context, 2)?;
                self.put(format_args!(";\n"));
                self.scope = None;
            }
            _ => self.put(format_args!("\t\tcontext {{\n\t\t\tevent_size = {sized};\n\t\t}}\n")),
        }
        self.put(format_args!("\t}}\n}}"));
        Ok(())
    }

    fn event(&mut self, class: &StreamClass, event: &backtrail_trace::description::EventClass) -> Result<()> {
        if event.context.is_some() {
            return self.fail(WriteErrorKind::EventContext);
        }
        if u32::try_from(event.id).is_err() {
            return self.fail(WriteErrorKind::EventId(event.id));
        }
        self.put(format_args!(
            "event {{\n\tname = {};\n\tid = {};\n\tsection = {};\n",
            named(&event.name),
            event.id,
            named(class.name.as_deref().unwrap_or_default())
        ));
        if let Some(payload) = &event.payload {
            self.scope = Some(Scope::EventPayload);
            self.put(format_args!("\tfields = "));
            self.structure(payload, 1)?;
            self.put(format_args!(";\n"));
            self.scope = None;
        }
        self.put(format_args!("}}"));
        Ok(())
    }

    fn indent(&mut self, depth: usize) {
        self.text.extend(std::iter::repeat_n('\t', depth));
    }

    fn structure(&mut self, class: &Struct, depth: usize) -> Result<()> {
        let needed = class.members.iter().map(|member| alignment(&member.class)).max();
        if class.min_align > needed.unwrap_or(1).max(1) {
            return self.fail(WriteErrorKind::Alignment(class.min_align));
        }
        self.put(format_args!("type {{ parent = struct; fields = {{\n"));
        for member in &class.members {
            self.indent(depth + 1);
            self.put(format_args!("{{ "));
            self.class(&member.class, depth + 1)?;
            self.put(format_args!(", {} }},\n", named(&member.name)));
        }
        self.indent(depth);
        self.put(format_args!("}}; }}"));
        Ok(())
    }

    fn class(&mut self, class: &FieldClass, depth: usize) -> Result<()> {
        match class {
            FieldClass::Integer(integer) => self.integer(integer),
            FieldClass::Enumeration(class) => self.enumeration(class),
            FieldClass::String(Encoding::None | Encoding::Utf8) => {
                self.put(format_args!("type {{ parent = string; }}"));
                Ok(())
            }
            FieldClass::String(Encoding::Ascii) => {
                self.put(format_args!("type {{ parent = string; encoding = ASCII; }}"));
                Ok(())
            }
            FieldClass::String(other) => self.fail(WriteErrorKind::Encoding(*other)),
            FieldClass::Struct(class) => self.structure(class, depth),
            FieldClass::Array(class) => self.array(class, depth),
            FieldClass::Float(_) => self.fail(WriteErrorKind::Float),
            FieldClass::Variant(_) => self.fail(WriteErrorKind::Variant),
            FieldClass::Optional(_) => self.fail(WriteErrorKind::Optional),
            FieldClass::BitMap(_) => self.fail(WriteErrorKind::BitMap),
            FieldClass::Boolean(_) => self.fail(WriteErrorKind::Boolean),
        }
    }

    fn check_integer(&self, integer: &Integer) -> Result<()> {
        match integer.storage {
            Storage::Bits | Storage::Unit(_) if integer.role.is_none() => Ok(()),
            Storage::Bits | Storage::Unit(_) => self.fail(WriteErrorKind::Role),
            other => self.fail(WriteErrorKind::Storage(other)),
        }
    }

    fn integer(&mut self, integer: &Integer) -> Result<()> {
        self.check_integer(integer)?;
        let plain = Integer {
            base: Integer::unsigned(8, Endian::Little).base,
            encoding: Encoding::None,
            clock: None,
            ..*integer
        };
        match self.native.named.iter().find(|(_, named)| *named == plain) {
            Some((name, _)) => self.text.push_str(name),
            None => {
                self.text.push_str("type ");
                integer_type(&mut self.text, integer, self.native.order);
            }
        }
        Ok(())
    }

    /// Ranges are written number by number (RFC 4.1.8).
    fn enumeration(&mut self, class: &Enumeration) -> Result<()> {
        self.check_integer(&class.integer)?;
        let ranges = class.mappings.iter().flat_map(|mapping| &mapping.ranges);
        let values = ranges.map(|range| range.last.saturating_sub(range.first).saturating_add(1));
        if values.fold(0i128, i128::saturating_add) > i128::from(MAX_MAPPINGS) {
            return self.fail(WriteErrorKind::Mappings);
        }
        self.put(format_args!("type {{ parent = enum;"));
        integer_attributes(&mut self.text, &class.integer, self.native.order);
        self.put(format_args!(" map = {{"));
        let mut separator = "";
        for mapping in &class.mappings {
            for value in mapping.ranges.iter().flat_map(|range| range.first..=range.last) {
                self.put(format_args!("{separator} {{ {value}, {} }}", quoted(&mapping.name)));
                separator = ",";
            }
        }
        self.put(format_args!(" }}; }}"));
        Ok(())
    }

    fn array(&mut self, class: &Array, depth: usize) -> Result<()> {
        if class.blob {
            return self.fail(WriteErrorKind::Blob);
        }
        if matches!(&*class.element, FieldClass::Integer(element) if element.is_character()) {
            return self.fail(WriteErrorKind::TextArray);
        }
        if class.min_align > alignment(&class.element).max(1) {
            return self.fail(WriteErrorKind::Alignment(class.min_align));
        }
        match &class.length {
            Length::Fixed(length) => self.put(format_args!("type {{ parent = array; length = {length};")),
            Length::Field(_) => return self.fail(WriteErrorKind::Length),
            Length::Prefixed { length, name } => {
                self.put(format_args!("type {{ parent = sequence; length_type = "));
                self.integer(length)?;
                self.put(format_args!(";"));
                if let Some(name) = name {
                    self.put(format_args!(" {} = {};", LENGTH_NAME, quoted(name)));
                }
            }
        }
        self.put(format_args!(" elem_type = "));
        self.class(&class.element, depth)?;
        self.put(format_args!("; }}"));
        Ok(())
    }
}

/// Names are identifiers in the RFC's examples; others are put into quotes.
fn named(name: &str) -> String {
    match is_identifier(name) {
        true => name.to_owned(),
        false => quoted(name),
    }
}

fn integer_type(text: &mut String, integer: &Integer, native: Endian) {
    text.push_str(match integer.storage {
        Storage::Unit(_) => "{ parent = gcc_bitfield;",
        _ => "{ parent = integer;",
    });
    integer_attributes(text, integer, native);
    text.push_str(" }");
}

fn integer_attributes(text: &mut String, integer: &Integer, native: Endian) {
    let Integer {
        size, align, signed, ..
    } = integer;
    // Writing to a String cannot fail.
    let _ = write!(text, " size = {size}; signed = {signed}; align = {align};");
    if integer.byte_order != native {
        let _ = write!(text, " byte_order = {};", order_name(integer.byte_order));
    }
    if let Storage::Unit(unit) = integer.storage {
        let _ = write!(text, " unit_size = {unit};");
    }
}

/// What a field asks of the structs around it, in bits.
fn alignment(class: &FieldClass) -> u32 {
    match class {
        FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => match integer.storage {
            Storage::Unit(unit) => unit.max(integer.align),
            _ => integer.align,
        },
        FieldClass::String(_) => 8,
        FieldClass::Struct(class) => class
            .members
            .iter()
            .map(|member| alignment(&member.class))
            .max()
            .unwrap_or(1),
        FieldClass::Array(class) => match &class.length {
            Length::Prefixed { length, .. } => alignment(&class.element).max(length.align),
            _ => alignment(&class.element),
        },
        // Refused.
        _ => 1,
    }
}
