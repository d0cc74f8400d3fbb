//! Dumping types as text, exactly as GNU objdump of binutils 2.40, 2.44 or 2.47 prints them.

use std::io::{self, Write};

use crate::constants::{Encoding, Flags, Kind, SymbolKind, Version};
use crate::error::{Error, Result};
use crate::measure::{AlignmentRule, Measures};
use crate::read::{StructMember, Symbol, Type, TypeId, Types};
use crate::spell::{Dimensions, spell};

/// The most arrows to further types on a line. Real lines have a few dozen.
const MAX_ARROWS: usize = 256;
/// The deepest nesting of structs whose members are shown.
const MAX_DEPTH: usize = 40;
/// The limit on lines for members, to which a multiple of the dict's length is added: a few types
/// that contain each other twice could have any number.
const MEMBERS: usize = 1 << 20;
const MEMBERS_A_BYTE: usize = 8;
/// The size of the output buffer.
const BUFFER: usize = 64 << 10;

/// The number of values shown at each end of a long enum.
const ENDS: usize = 5;

/// The release of objdump whose text to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// binutils 2.40.
    Binutils2_40,
    /// binutils 2.44: types that look-ups by name can't find are in braces.
    Binutils2_44,
    /// binutils 2.47: indexed symbols are marked, and the dimensions of arrays are in C's order.
    Binutils2_47,
}

impl Style {
    fn dimensions(self) -> Dimensions {
        match self {
            Style::Binutils2_40 | Style::Binutils2_44 => Dimensions::InnerFirst,
            Style::Binutils2_47 => Dimensions::OuterFirst,
        }
    }

    /// The names of the flags.
    fn flags(self, flags: Flags) -> String {
        let mut text = String::new();
        let mut before = 0;
        for (flag, name) in Flags::NAMES {
            let present = flags.contains(flag);
            let comma = match self {
                // There is a separator between two names if flags are set on both sides of it.
                Style::Binutils2_40 => flags.0 & before != 0 && flags.0 & !before != 0,
                _ => flags.0 & before != 0 && present,
            };
            text.push_str(if comma { ", " } else { "" });
            text.push_str(if present { name } else { "" });
            before |= flag.0;
        }
        text
    }
}

/// The items that could not be shown; everything else was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first error.
    pub first: Error,
    /// The number of items that can't be read.
    pub count: u32,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.count {
            1 => self.first.fmt(f),
            count => write!(f, "{}, and {} more like this", self.first, count - 1),
        }
    }
}

/// Writes a dict's text, from its header to its strings. `symbols` are those for
/// [`crate::Dict::symbol_types`]; `None` if the file has no symbol table.
///
/// Items that can't be read are left out, and the inner result reports them.
pub fn dump(
    types: Types<'_>,
    style: Style,
    symbols: Option<&[Symbol<'_>]>,
    out: &mut dyn Write,
) -> io::Result<Result<(), Damage>> {
    let mut dump = Dump {
        types,
        style,
        measures: Measures::new(types, AlignmentRule::FirstMember),
        damage: None,
        members_left: MEMBERS.saturating_add(types.dict().body_len().saturating_mul(MEMBERS_A_BYTE)),
        out,
    };
    dump.header()?;
    dump.labels()?;
    dump.symbols("Data objects", SymbolKind::Object, symbols)?;
    dump.symbols("Function objects", SymbolKind::Function, symbols)?;
    dump.variables()?;
    dump.all_types()?;
    dump.strings()?;
    Ok(dump.damage.map_or(Ok(()), Err))
}

struct Dump<'d, 'o> {
    types: Types<'d>,
    style: Style,
    measures: Measures<'d>,
    damage: Option<Damage>,
    members_left: usize,
    out: &'o mut dyn Write,
}

/// The details to print for a type besides its name.
#[derive(Clone, Copy)]
enum Line {
    /// A type in the list of types, root-visible or not; the types that it refers to follow.
    Own { root: bool },
    /// The type of a symbol; the types that it refers to follow.
    Symbol,
    /// The type of a member.
    Member,
}

impl<'d> Dump<'d, '_> {
    fn header(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n  Header:")?;
        let dict = self.types.dict();
        let header = dict.header();
        writeln!(self.out, "    Magic number: {:#x}", crate::constants::CTF_MAGIC)?;
        // objdump's library rewrites version 1 when it opens a dict.
        let version = match header.version {
            Version::V1 => Version::V1Upgraded,
            version => version,
        };
        let flags = header.flags;
        let limits = match version {
            Version::V1Upgraded => " (latest format, version 1 type boundaries)",
            _ => "",
        };
        writeln!(self.out, "    Version: {} ({}{limits})", version as u8, version.name())?;
        if flags.0 != 0 {
            writeln!(self.out, "    Flags: {:#x} ({})", flags.0, self.style.flags(flags))?;
        }
        for (what, name) in [
            ("Parent label", dict.parent_label()),
            ("Parent name", dict.parent_name()),
            ("Compilation unit name", dict.cu_name()),
        ] {
            if let Some(Some(name)) = self.readable(name) {
                write!(self.out, "    {what}: ")?;
                self.line(name)?;
            }
        }
        for (what, part) in [
            ("Label", &header.labels),
            ("Data object", &header.objects),
            ("Function info", &header.functions),
            ("Object index", &header.object_index),
            ("Function index", &header.function_index),
            ("Variable", &header.variables),
            ("Type", &header.types),
            ("String", &header.strings),
        ] {
            // objdump prints one byte more than the strings have.
            let more = u64::from(what == "String");
            let (start, end) = (u64::from(part.start), u64::from(part.end) + more);
            if start < end {
                let (last, len) = (end - 1, end - start);
                writeln!(
                    self.out,
                    "    {what} section:\t{start:#x} -- {last:#x} ({len:#x} bytes)"
                )?;
            }
        }
        Ok(())
    }

    fn labels(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n  Labels:")?;
        for label in self.types.dict().labels() {
            self.named(label)?;
        }
        Ok(())
    }

    fn symbols(&mut self, title: &str, kind: SymbolKind, symbols: Option<&[Symbol<'_>]>) -> io::Result<()> {
        writeln!(self.out, "\n  {title}:")?;
        let dict = self.types.dict();
        match (self.style, dict.is_indexed(kind), symbols) {
            (Style::Binutils2_47, true, _) => writeln!(self.out, "      (Section is indexed.)")?,
            (Style::Binutils2_47, false, None) => writeln!(self.out, "      (No symbol table.)")?,
            _ => {}
        }
        for symbol in dict.symbol_types(kind, symbols.unwrap_or_default()) {
            self.named(symbol)?;
        }
        Ok(())
    }

    fn variables(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n  Variables:")?;
        for variable in self.types.dict().variables() {
            self.named(variable)?;
        }
        Ok(())
    }

    fn all_types(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n  Types:")?;
        for id in self.types.dict().ids() {
            let mut text = Vec::new();
            let written = self.own_type(id, &mut text)?;
            self.out.write_all(&text)?;
            self.readable(written);
        }
        Ok(())
    }

    fn strings(&mut self) -> io::Result<()> {
        writeln!(self.out, "\n  Strings:")?;
        for (offset, string) in self.types.dict().strings() {
            write!(self.out, "    {offset:#x}: ")?;
            self.line(string)?;
        }
        Ok(())
    }

    /// Writes a name with its type.
    fn named(&mut self, named: Result<(&[u8], TypeId)>) -> io::Result<()> {
        let text = named.and_then(|(name, id)| {
            let mut text = Vec::new();
            self.describe(id, Line::Symbol, &mut text)?;
            Ok((name, text))
        });
        let Some((name, text)) = self.readable(text) else {
            return Ok(());
        };
        self.out.write_all(b"    ")?;
        self.out.write_all(name)?;
        self.out.write_all(b" -> ")?;
        self.line(&text)
    }

    fn line(&mut self, text: &[u8]) -> io::Result<()> {
        self.out.write_all(text)?;
        self.out.write_all(b"\n")
    }

    /// Returns a successful result, and counts an error.
    fn readable<T>(&mut self, read: Result<T>) -> Option<T> {
        let first = match read {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        let damage = self.damage.get_or_insert(Damage { first, count: 0 });
        damage.count = damage.count.saturating_add(1);
        None
    }

    /// Writes a type with its members or values. The inner result is that of reading it.
    fn own_type(&mut self, id: TypeId, text: &mut Vec<u8>) -> io::Result<Result<()>> {
        let own = match self.own_line(id, text) {
            Ok(own) => own,
            Err(error) => {
                text.clear();
                return Ok(Err(error));
            }
        };
        let indent = format!("{:x}", id.0).len() + 8;
        match own.kind() {
            Kind::Struct | Kind::Union => self.members(&own, 0, indent, 0, text),
            Kind::Enum => Ok(enumerators(&own, indent, true, text)),
            Kind::Slice => {
                let of = own.slice().and_then(|slice| self.types.get(slice.of));
                Ok(of.and_then(|of| match of.kind() {
                    Kind::Enum => enumerators(&of, indent, false, text),
                    _ => Ok(()),
                }))
            }
            _ => Ok(Ok(())),
        }
    }

    fn own_line(&mut self, id: TypeId, text: &mut Vec<u8>) -> Result<Type<'d>> {
        let own = self.types.get(id)?;
        text.extend(b"    ");
        self.describe(id, Line::Own { root: own.is_root() }, text)?;
        text.push(b'\n');
        Ok(own)
    }

    fn members(
        &mut self,
        of: &Type<'d>,
        base: u64,
        indent: usize,
        depth: usize,
        text: &mut Vec<u8>,
    ) -> io::Result<Result<()>> {
        let members = match of.members() {
            Ok(members) => members,
            Err(error) => return Ok(Err(error)),
        };
        for member in members {
            let shown = member.and_then(|member| self.member(of, member, base, indent, depth, text));
            // A member that is not represented ends the list, as in objdump.
            let inner = match shown {
                Ok(Some(inner)) => inner,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            };
            if text.len() > BUFFER {
                self.out.write_all(text)?;
                text.clear();
            }
            if matches!(inner.0.kind(), Kind::Struct | Kind::Union) {
                let shown = self.members(&inner.0, inner.1, indent, depth + 1, text)?;
                if shown.is_err() {
                    return Ok(shown);
                }
            }
        }
        Ok(Ok(()))
    }

    /// Writes a member's line; returns its type without typedefs, and its offset.
    fn member(
        &mut self,
        of: &Type<'d>,
        member: StructMember<'d>,
        base: u64,
        indent: usize,
        depth: usize,
        text: &mut Vec<u8>,
    ) -> Result<Option<(Type<'d>, u64)>> {
        let left = self.members_left.checked_sub(1).filter(|_| depth <= MAX_DEPTH);
        self.members_left = left.ok_or(of.error(crate::ErrorKind::TooLong(of.id().0)))?;
        let offset = base.wrapping_add(member.offset);
        let Ok(inner) = self.types.resolve(member.id) else {
            return Ok(None);
        };
        let mut line = Vec::new();
        self.describe(member.id, Line::Member, &mut line)?;
        text.resize(text.len() + indent + 4 * depth, b' ');
        text.extend(format!("[{offset:#x}] ").bytes());
        text.extend(member.name);
        text.extend(b": ");
        text.extend(line);
        text.push(b'\n');
        Ok(Some((inner, offset)))
    }

    /// Describes a type on a line, with the types that it refers to.
    fn describe(&mut self, id: TypeId, line: Line, text: &mut Vec<u8>) -> Result<()> {
        let mut next = id;
        for _ in 0..MAX_ARROWS {
            if next.is_none() {
                text.extend(b" (type not represented in CTF)");
                return Ok(());
            }
            let found = self.types.get(next)?;
            self.describe_one(&found, line, text)?;
            if matches!(line, Line::Member) {
                return Ok(());
            }
            next = match found.kind() {
                Kind::Array => found.array()?.contents,
                Kind::Pointer | Kind::Typedef | Kind::Slice => found.reference()?,
                kind if kind.is_qualifier() => found.reference()?,
                _ => return Ok(()),
            };
            text.extend(b" -> ");
        }
        Err(self.types.get(id)?.error(crate::ErrorKind::Cycle(id.0)))
    }

    fn describe_one(&mut self, of: &Type<'d>, line: Line, text: &mut Vec<u8>) -> Result<()> {
        let id = of.id();
        let braces = matches!(line, Line::Own { root: false }) && self.style != Style::Binutils2_40;
        if braces {
            text.push(b'{');
        }
        if matches!(line, Line::Member) {
            text.extend(b"ID ");
        }
        // A slice has the kind of the type that is sliced.
        let kind = match of.kind() {
            Kind::Slice => self.types.get(of.slice()?.of)?.kind(),
            kind => kind,
        };
        text.extend(format!("{id}: (kind {}) ", kind as u8).bytes());
        text.extend(spell(self.types, id, self.style.dimensions())?);
        let size = self.measures.size(id).ok();
        if let Some(encoding) = self.encoding(of) {
            let whole = size.and_then(|size| size.checked_mul(8)) == Some(encoding.bits.into());
            if !whole && matches!(line, Line::Member) {
                text.extend(format!(":{}", encoding.bits).bytes());
            }
            if !whole || encoding.offset != 0 {
                let slice = if of.kind() == Kind::Slice { "slice " } else { "" };
                text.extend(format!(" [{slice}{:#x}:{:#x}]", encoding.offset, encoding.bits).bytes());
            }
            text.extend(format!(" (format {:#x})", encoding.format).bytes());
        }
        if let Some(size) = size.filter(|_| kind != Kind::Function) {
            text.extend(format!(" (size {size:#x})").bytes());
        }
        if let Ok(alignment) = self.measures.alignment(id) {
            text.extend(format!(" (aligned at {alignment:#x})").bytes());
        }
        if braces {
            text.push(b'}');
        }
        Ok(())
    }

    /// The encoding of an integer, a float, or a slice of one or of an enum.
    fn encoding(&self, of: &Type<'d>) -> Option<Encoding> {
        if of.kind() != Kind::Slice {
            return of.encoding().ok();
        }
        let slice = of.slice().ok()?;
        let inner = self.types.resolve(slice.of).ok()?;
        let format = match inner.kind() {
            Kind::Enum => Encoding::SIGNED,
            _ => inner.encoding().ok()?.format,
        };
        Some(Encoding {
            format,
            offset: slice.offset,
            bits: slice.bits,
        })
    }
}

/// Writes the values of an enum. For slices, objdump does not leave any out.
fn enumerators(of: &Type<'_>, indent: usize, shorten: bool, text: &mut Vec<u8>) -> Result<()> {
    let enumerators = of.enumerators()?;
    let count = enumerators.len();
    for (number, enumerator) in enumerators.enumerate() {
        if shorten && count > 2 * ENDS && (ENDS..count - ENDS).contains(&number) {
            if number == ENDS {
                text.resize(text.len() + indent, b' ');
                text.extend(b"...\n");
            }
            continue;
        }
        let enumerator = enumerator?;
        text.resize(text.len() + indent, b' ');
        text.extend(enumerator.name);
        text.extend(format!(": {}\n", enumerator.value).bytes());
    }
    Ok(())
}
