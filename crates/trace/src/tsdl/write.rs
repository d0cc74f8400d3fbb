//! Writes a description as TSDL, in the form of LTTng 2.16.

use super::words::{KEYWORDS, is_identifier, order_name, quoted};
use crate::constants::TSDL_FIRST_LINE;
use crate::description::{
    Array, Base, Clock, Description, Encoding, Enumeration, EnvironmentValue, FieldClass, Float, Inexpressible,
    Integer, Length, Reference, Role, Scope, Storage, Struct, Variant, format_uuid,
};
use backtrail_wire::Endian;
use std::fmt::Write;

/// A description that 1.8 cannot express.
pub type WriteError = Inexpressible<WriteErrorKind>;

/// Parts of descriptions that 1.8 cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteErrorKind {
    /// A name that is not an identifier.
    Name,
    /// A role that belongs to a field with another name.
    Role(Role),
    /// A field with the name of a role that it does not have.
    NoRole,
    /// A reference to a field that has no path in 1.8.
    Reference,
    /// A variant whose options are not the labels of its tag.
    Option,
    /// An alignment of an array beyond that of its elements.
    ArrayAlignment,
    /// An integer's clock does not exist.
    Clock,
    /// A number in a range that has no literal.
    Range,
    /// A field class that only another dialect has.
    Class,
}

impl std::fmt::Display for WriteErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CTF 1.8 cannot express ")?;
        match self {
            WriteErrorKind::Name => write!(f, "a name that is no identifier"),
            WriteErrorKind::Role(role) => write!(f, "the role {role:?} under this name"),
            WriteErrorKind::NoRole => write!(f, "a field of this name that does not have its role"),
            WriteErrorKind::Reference => write!(f, "a reference to this field"),
            WriteErrorKind::Option => write!(f, "a variant whose options are not its tag's labels"),
            WriteErrorKind::ArrayAlignment => write!(f, "an array's own alignment"),
            WriteErrorKind::Clock => write!(f, "a clock that does not exist"),
            WriteErrorKind::Class => write!(f, "a field of this class"),
            WriteErrorKind::Range => write!(f, "a range of more than 64 bits"),
        }
    }
}

type Result<T> = std::result::Result<T, WriteError>;

/// The text of the metadata, with `/* CTF 1.8 */` as its first line.
///
/// # Errors
///
/// CTF 1.8 cannot express the description.
pub fn write(description: &Description) -> Result<String> {
    let mut writer = Writer {
        description,
        order: description.byte_order.unwrap_or(Endian::NATIVE),
        text: TSDL_FIRST_LINE.to_owned(),
        scope: None,
        stream: None,
        event: None,
        frames: Vec::new(),
        path: Vec::new(),
    };
    writer.trace()?;
    writer.environment()?;
    for clock in &description.clocks {
        writer.clock(clock)?;
    }
    for index in 0..description.streams.len() {
        writer.stream(index)?;
    }
    Ok(writer.text)
}

struct Writer<'d> {
    description: &'d Description,
    order: Endian,
    text: String,
    scope: Option<Scope>,
    /// Index of the stream class, and of the event class in it.
    stream: Option<usize>,
    event: Option<usize>,
    /// The structs around the current field: the length of the path to each, and the names before
    /// the field.
    frames: Vec<(usize, Vec<&'d str>)>,
    path: Vec<&'d str>,
}

impl<'d> Writer<'d> {
    fn fail<T>(&self, kind: WriteErrorKind) -> Result<T> {
        let stream = self.stream.and_then(|index| self.description.streams.get(index));
        let event = stream
            .zip(self.event)
            .and_then(|(stream, index)| stream.events.get(index));
        Err(WriteError {
            kind,
            scope: self.scope,
            stream: stream.map(|class| class.id),
            event: event.map(|class| class.id),
        })
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(text);
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.put(text);
        self.text.push('\n');
    }

    fn trace(&mut self) -> Result<()> {
        self.line(format_args!("\ntrace {{\n\tmajor = 1;\n\tminor = 8;"));
        if let Some(uuid) = &self.description.uuid {
            self.line(format_args!("\tuuid = \"{}\";", format_uuid(uuid)));
        }
        self.line(format_args!("\tbyte_order = {};", order_name(self.order)));
        self.root("packet.header", Scope::PacketHeader)?;
        self.line(format_args!("}};"));
        Ok(())
    }

    fn environment(&mut self) -> Result<()> {
        let entries = &self.description.environment;
        if entries.is_empty() {
            return Ok(());
        }
        self.line(format_args!("\nenv {{"));
        for (name, value) in entries {
            if !is_identifier(name) {
                return self.fail(WriteErrorKind::Name);
            }
            match value {
                EnvironmentValue::Integer(value) => self.line(format_args!("\t{name} = {value};")),
                EnvironmentValue::String(value) => self.line(format_args!("\t{name} = {};", quoted(value))),
            }
        }
        self.line(format_args!("}};"));
        Ok(())
    }

    fn clock(&mut self, clock: &Clock) -> Result<()> {
        if !is_identifier(&clock.name) {
            return self.fail(WriteErrorKind::Name);
        }
        self.line(format_args!("\nclock {{\n\tname = \"{}\";", clock.name));
        if let Some(uuid) = &clock.uuid {
            self.line(format_args!("\tuuid = \"{}\";", format_uuid(uuid)));
        }
        if let Some(description) = &clock.description {
            self.line(format_args!("\tdescription = {};", quoted(description)));
        }
        self.line(format_args!("\tfreq = {};", clock.frequency));
        if let Some(precision) = clock.precision {
            self.line(format_args!("\tprecision = {precision};"));
        }
        if clock.offset_seconds != 0 {
            self.line(format_args!("\toffset_s = {};", clock.offset_seconds));
        }
        self.line(format_args!("\toffset = {};", clock.offset_cycles));
        if clock.unix_epoch {
            self.line(format_args!("\tabsolute = TRUE;"));
        }
        self.line(format_args!("}};"));
        Ok(())
    }

    #[expect(clippy::indexing_slicing, reason = "the index of a stream of this description")]
    fn stream(&mut self, index: usize) -> Result<()> {
        let class = &self.description.streams[index];
        self.stream = Some(index);
        // Without an id in the packet header, readers accept none.
        let header = self.description.packet_header.iter().flat_map(|header| &header.members);
        let has_id = class.id != 0 || header.into_iter().any(|member| member.name == "stream_id");
        self.line(format_args!("\nstream {{"));
        if has_id {
            self.line(format_args!("\tid = {};", class.id));
        }
        self.root("packet.context", Scope::PacketContext)?;
        self.root("event.header", Scope::EventHeader)?;
        self.root("event.context", Scope::StreamEventContext)?;
        self.line(format_args!("}};"));
        for (number, event) in class.events.iter().enumerate() {
            self.event = Some(number);
            self.line(format_args!("\nevent {{\n\tname = {};", quoted(&event.name)));
            self.line(format_args!("\tid = {};", event.id));
            if has_id {
                self.line(format_args!("\tstream_id = {};", class.id));
            }
            if let Some(level) = event.log_level {
                self.line(format_args!("\tloglevel = {level};"));
            }
            self.root("context", Scope::EventContext)?;
            self.root("fields", Scope::EventPayload)?;
            self.line(format_args!("}};"));
        }
        self.stream = None;
        self.event = None;
        Ok(())
    }

    fn root(&mut self, name: &str, scope: Scope) -> Result<()> {
        let description = self.description;
        let Some(root) = description.root(scope, self.stream.unwrap_or(0), self.event.unwrap_or(0)) else {
            return Ok(());
        };
        self.scope = Some(scope);
        self.put(format_args!("\t{name} := "));
        self.structure(root, 1)?;
        self.line(format_args!(";"));
        self.scope = None;
        Ok(())
    }

    fn indent(&mut self, depth: usize) {
        for _ in 0..depth {
            self.text.push('\t');
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the description limits the depth")]
    fn structure(&mut self, class: &'d Struct, depth: usize) -> Result<()> {
        self.line(format_args!("struct {{"));
        self.frames.push((self.path.len(), Vec::new()));
        for member in &class.members {
            self.check_role(&member.name, &member.class)?;
            self.indent(depth + 1);
            self.path.push(&member.name);
            let dimensions = self.class(&member.class, depth + 1)?;
            self.path.pop();
            let name = self.field_name(&member.name, self.scope)?;
            self.line(format_args!(" {name}{dimensions};"));
            if let Some((_, names)) = self.frames.last_mut() {
                names.push(&member.name);
            }
        }
        self.frames.pop();
        self.indent(depth);
        self.text.push('}');
        if class.min_align > 1 {
            self.put(format_args!(" align({})", class.min_align));
        }
        Ok(())
    }

    /// Fields of events get LTTng's underscore, so that they never collide with keywords.
    fn field_name(&self, name: &str, scope: Option<Scope>) -> Result<String> {
        let of_event = scope.is_some_and(|scope| scope >= Scope::StreamEventContext);
        let name = match of_event || name.starts_with('_') || KEYWORDS.contains(&name) {
            true => format!("_{name}"),
            false => name.to_owned(),
        };
        match is_identifier(&name) {
            true => Ok(name),
            false => self.fail(WriteErrorKind::Name),
        }
    }

    /// In 1.8, a field's name determines its role.
    fn check_role(&self, name: &str, class: &FieldClass) -> Result<()> {
        let integer = match class {
            FieldClass::Integer(integer) | FieldClass::Enumeration(Enumeration { integer, .. }) => integer,
            FieldClass::Array(array) if array.trace_uuid && name != "uuid" => return self.fail(WriteErrorKind::Name),
            _ => return Ok(()),
        };
        let Some(scope) = self.scope else { return Ok(()) };
        let Some(role) = integer.role else {
            return match self.path.is_empty() && Role::is_reserved(scope, name) {
                true => self.fail(WriteErrorKind::NoRole),
                false => Ok(()),
            };
        };
        match (role.reserved_name(scope), scope, role) {
            (Some(expected), ..) if name == expected => Ok(()),
            (None, Scope::EventHeader, Role::Timestamp) => Ok(()),
            _ => self.fail(WriteErrorKind::Role(role)),
        }
    }

    /// Writes the class up to the position of the field's name; returns the part after the name.
    fn class(&mut self, class: &'d FieldClass, depth: usize) -> Result<String> {
        match class {
            FieldClass::Integer(integer) => self.integer(integer)?,
            FieldClass::Enumeration(class) => self.enumeration(class, depth)?,
            FieldClass::Float(float) if float.reversed => return self.fail(WriteErrorKind::Class),
            FieldClass::Float(float) => self.float(float),
            FieldClass::String(Encoding::Ascii) => self.put(format_args!("string {{ encoding = ASCII; }}")),
            FieldClass::String(encoding) if encoding.unit_bytes() > 1 => return self.fail(WriteErrorKind::Class),
            FieldClass::String(_) => self.text.push_str("string"),
            FieldClass::Struct(class) => self.structure(class, depth)?,
            FieldClass::Variant(class) => self.variant(class, depth)?,
            FieldClass::Array(class) => return self.array(class, depth),
            FieldClass::Optional(_) | FieldClass::BitMap(_) | FieldClass::Boolean(_) => {
                return self.fail(WriteErrorKind::Class);
            }
        }
        Ok(String::new())
    }

    fn integer(&mut self, integer: &Integer) -> Result<()> {
        if integer.storage != Storage::Bits {
            return self.fail(WriteErrorKind::Class);
        }
        self.put(format_args!(
            "integer {{ size = {}; align = {};",
            integer.size, integer.align
        ));
        if integer.signed {
            self.text.push_str(" signed = true;");
        }
        if integer.base != Base::Decimal {
            self.put(format_args!(" base = {};", integer.base.number()));
        }
        if integer.byte_order != self.order {
            self.put(format_args!(" byte_order = {};", order_name(integer.byte_order)));
        }
        match integer.encoding {
            Encoding::None => {}
            Encoding::Utf8 => self.text.push_str(" encoding = UTF8;"),
            Encoding::Ascii => self.text.push_str(" encoding = ASCII;"),
            _ => return self.fail(WriteErrorKind::Class),
        }
        if let Some(clock) = integer.clock {
            let Some(clock) = self.description.clocks.get(clock) else {
                return self.fail(WriteErrorKind::Clock);
            };
            self.put(format_args!(" map = clock.{}.value;", clock.name));
        }
        self.text.push_str(" }");
        Ok(())
    }

    fn float(&mut self, float: &Float) {
        let (exponent, mantissa) = if float.size == 32 { (8, 24) } else { (11, 53) };
        self.put(format_args!(
            "floating_point {{ exp_dig = {exponent}; mant_dig = {mantissa}; align = {};",
            float.align
        ));
        if float.byte_order != self.order {
            self.put(format_args!(" byte_order = {};", order_name(float.byte_order)));
        }
        self.text.push_str(" }");
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the description limits the depth")]
    fn enumeration(&mut self, class: &Enumeration, depth: usize) -> Result<()> {
        self.text.push_str("enum : ");
        self.integer(&class.integer)?;
        self.line(format_args!(" {{"));
        for mapping in &class.mappings {
            for range in &mapping.ranges {
                let fits = |value: i128| value.unsigned_abs() <= u128::from(u64::MAX);
                if !fits(range.first) || !fits(range.last) {
                    return self.fail(WriteErrorKind::Range);
                }
                self.indent(depth + 1);
                self.put(format_args!("{} = {}", quoted(&mapping.name), range.first));
                if range.last != range.first {
                    self.put(format_args!(" ... {}", range.last));
                }
                self.line(format_args!(","));
            }
        }
        self.indent(depth);
        self.text.push('}');
        Ok(())
    }

    fn array(&mut self, class: &'d Array, depth: usize) -> Result<String> {
        if class.min_align > 1 {
            return self.fail(WriteErrorKind::ArrayAlignment);
        }
        let length = match &class.length {
            Length::Fixed(length) => length.to_string(),
            Length::Field(reference) => self.reference(reference)?,
            Length::Prefixed { .. } => return self.fail(WriteErrorKind::Class),
        };
        let inner = self.class(&class.element, depth)?;
        Ok(format!("[{length}]{inner}"))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the description limits the depth")]
    fn variant(&mut self, class: &'d Variant, depth: usize) -> Result<()> {
        let labels = match self.target(&class.tag) {
            Some(FieldClass::Enumeration(tag)) => &tag.mappings,
            _ => return self.fail(WriteErrorKind::Reference),
        };
        let tag = self.reference(&class.tag)?;
        self.line(format_args!("variant <{tag}> {{"));
        for option in &class.options {
            let is_label = labels
                .iter()
                .any(|mapping| mapping.name == option.name && mapping.ranges == option.ranges);
            if !is_label {
                return self.fail(WriteErrorKind::Option);
            }
            // Readers look for the name among the labels as it is written, but drop an underscore
            // before they compare it with other options.
            let plain = |name: &'d str| name.strip_prefix('_').unwrap_or(name);
            let others = class
                .options
                .iter()
                .filter(|other| plain(&other.name) == plain(&option.name));
            if !is_identifier(&option.name) || KEYWORDS.contains(&option.name.as_str()) || others.count() > 1 {
                return self.fail(WriteErrorKind::Name);
            }
            self.indent(depth + 1);
            self.path.push(&option.name);
            let dimensions = self.class(&option.class, depth + 1)?;
            self.path.pop();
            self.line(format_args!(" {}{dimensions};", option.name));
        }
        self.indent(depth);
        self.text.push('}');
        Ok(())
    }

    /// The class of the field that a reference means.
    fn target(&self, reference: &Reference) -> Option<&'d FieldClass> {
        let root = self
            .description
            .root(reference.scope, self.stream.unwrap_or(0), self.event.unwrap_or(0))?;
        let (first, rest) = reference.path.split_first()?;
        rest.iter().try_fold(root.get(first)?, |class, name| {
            let mut class = class;
            while let FieldClass::Array(array) = class {
                class = &array.element;
            }
            match class {
                FieldClass::Struct(class) => class.get(name),
                FieldClass::Variant(class) => class
                    .options
                    .iter()
                    .find(|option| option.name == *name)
                    .map(|option| &option.class),
                _ => None,
            }
        })
    }

    /// The shortest form: the name alone if the field is in an enclosing struct and nothing nearer
    /// has its name.
    fn reference(&self, reference: &Reference) -> Result<String> {
        let Some((name, parents)) = reference.path.split_last().filter(|_| !reference.any_option) else {
            return self.fail(WriteErrorKind::Reference);
        };
        if self.scope == Some(reference.scope) {
            let nearest = self
                .frames
                .iter()
                .rev()
                .find(|(_, names)| names.contains(&name.as_str()));
            if let Some(&(length, _)) = nearest
                && self
                    .path
                    .get(..length)
                    .is_some_and(|path| path.iter().eq(parents.iter()))
            {
                return self.field_name(name, self.scope);
            }
        }
        // Absolute paths go through structs only.
        let mut path = Reference::new(reference.scope, &[]);
        let mut words = reference.scope.tsdl_name().to_owned();
        for name in &reference.path {
            path.path.push(name.clone());
            let inner = path.path.len() < reference.path.len();
            match self.target(&path) {
                Some(FieldClass::Struct(_)) if inner => {}
                Some(FieldClass::Integer(_) | FieldClass::Enumeration(_)) if !inner => {}
                _ => return self.fail(WriteErrorKind::Reference),
            }
            words.push('.');
            words.push_str(&self.field_name(name, Some(reference.scope))?);
        }
        Ok(words)
    }
}
