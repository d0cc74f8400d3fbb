//! Printing bodies of structs, unions and enums, and assertions that a compiler gives them the
//! layout in the file.

use super::{Key, Printer, names};
use crate::constants::Kind;
use crate::error::{ErrorKind, Result};
use crate::read::{StructMember, Type, TypeId};

/// A part of a struct, at the offset where a compiler puts it.
enum Part<'d> {
    /// A member, with its width if it is a bit field.
    Member(StructMember<'d>, Option<u16>),
    /// A member whose type is not represented or no member's in C, printed as bytes.
    Bytes(&'d [u8], u64),
    /// Padding bytes between members.
    Padding(u64),
    /// Padding bits between members.
    PaddingBits(u64),
}

/// A struct as printed in C.
struct Plan<'d> {
    parts: Vec<Part<'d>>,
    packed: bool,
    alignment: u64,
}

/// The members of a namespace that only fill it, by their sorts.
#[derive(Default)]
struct Invented {
    paddings: u32,
    unnamed: u32,
}

/// The offset of the next part, in bits.
struct Place {
    end: u64,
    packed: bool,
    alignment: u64,
}

impl<'d> Printer<'d> {
    /// `struct name { … }`; `start` is everything before the brace.
    pub(super) fn body(
        &mut self,
        unit: usize,
        found: &Type<'d>,
        start: &str,
        indent: usize,
        depth: usize,
    ) -> Result<String> {
        let mut invented = Invented::default();
        self.body_within(unit, found, start, indent, depth, &mut invented)
    }

    /// A body that shares its namespace with the one around it.
    fn body_within(
        &mut self,
        unit: usize,
        found: &Type<'d>,
        start: &str,
        indent: usize,
        depth: usize,
        invented: &mut Invented,
    ) -> Result<String> {
        let depth = self.deeper(depth, found.id())?;
        if found.kind() == Kind::Enum {
            return self.enumerators(found, start, indent);
        }
        let plan = self.plan(unit, found, depth)?;
        let tabs = "\t".repeat(indent + 1);
        let mut text = format!("{start} {{\n");
        for part in &plan.parts {
            text.push_str(&tabs);
            match part {
                Part::Member(member, bits) => {
                    let member_text = self.member(unit, member, indent + 1, depth, invented)?;
                    text.push_str(&member_text);
                    text.push_str(&bits.map_or(String::new(), |bits| format!(" : {bits}")));
                }
                Part::Bytes(name, count) => {
                    let name = match name.is_empty() {
                        true => {
                            invented.unnamed += 1;
                            format!("_unnamed_{}", invented.unnamed)
                        }
                        false => names::member(name),
                    };
                    text.push_str(&format!("/* not represented */ unsigned char {name}[{count}]"));
                }
                Part::Padding(count) => {
                    invented.paddings += 1;
                    text.push_str(&format!("unsigned char _padding_{}[{count}]", invented.paddings));
                }
                Part::PaddingBits(count) => text.push_str(&format!("unsigned char : {count}")),
            }
            text.push_str(";\n");
            if text.len() > super::MAX_DECLARATION {
                return Err(found.error(ErrorKind::TooLong(found.id().0)));
            }
        }
        text.push_str(&"\t".repeat(indent));
        text.push('}');
        text.push_str(if plan.packed { " __attribute__((packed))" } else { "" });
        Ok(text)
    }

    fn member(
        &mut self,
        unit: usize,
        member: &StructMember<'d>,
        indent: usize,
        depth: usize,
        invented: &mut Invented,
    ) -> Result<String> {
        let inner = self.units[unit].types.get(member.id)?;
        match inner.kind() {
            // The members of a nameless struct share one namespace with the struct around it.
            kind @ (Kind::Struct | Kind::Union) if member.name.is_empty() => {
                self.body_within(unit, &inner, kind.name(), indent, depth, invented)
            }
            _ => {
                let name = names::member(member.name);
                self.declaration(unit, member.id, &name, indent, depth)
            }
        }
    }

    fn enumerators(&mut self, found: &Type<'d>, start: &str, indent: usize) -> Result<String> {
        let tabs = "\t".repeat(indent + 1);
        let mut text = format!("{start} {{\n");
        let values = found.all_values()?;
        if values.is_empty() {
            let name = self.names.ordinary("_no_values");
            text.push_str(&format!("{tabs}{name},\n"));
        }
        let (mut least, mut most) = (0, 0);
        for (name, value) in values {
            let name = self.names.ordinary(&String::from_utf8_lossy(name));
            let number = value.parse::<i128>().unwrap_or(0);
            (least, most) = (number.min(least), number.max(most));
            let suffix = if number > i64::MAX.into() { "ULL" } else { "" };
            match number == i64::MIN.into() {
                true => text.push_str(&format!("{tabs}{name} = -{} - 1,\n", i64::MAX)),
                false => text.push_str(&format!("{tabs}{name} = {value}{suffix},\n")),
            }
        }
        text.push_str(&"\t".repeat(indent));
        text.push('}');
        text.push_str(enum_attribute(found.size(), least, most));
        Ok(text)
    }

    /// Plans a struct so that its members get their offsets in the file: as it is, packed, or as
    /// mere bytes.
    fn plan(&mut self, unit: usize, found: &Type<'d>, depth: usize) -> Result<Plan<'d>> {
        for packed in [false, true] {
            if let Some(plan) = self.try_plan(unit, found, packed, depth)? {
                return Ok(plan);
            }
        }
        Ok(Plan {
            parts: vec![Part::Padding(found.size())],
            packed: false,
            alignment: 1,
        })
    }

    fn try_plan(&mut self, unit: usize, found: &Type<'d>, packed: bool, depth: usize) -> Result<Option<Plan<'d>>> {
        let is_union = found.kind() == Kind::Union;
        let size = match found.size().checked_mul(8) {
            Some(size) => size,
            None => return Ok(None),
        };
        let mut parts = Vec::new();
        let mut place = Place {
            end: 0,
            packed,
            alignment: 1,
        };
        let mut union_end = 0;
        let mut members = found.members()?.peekable();
        while let Some(member) = members.next() {
            let member = member?;
            self.step(found)?;
            if is_union {
                union_end = place.end.max(union_end);
                place.end = 0;
            }
            let next = members
                .peek()
                .and_then(|next| next.as_ref().ok())
                .map(|next| next.offset);
            let limit = next
                .filter(|&next| !is_union && next > member.offset && next <= size)
                .unwrap_or(size);
            if !self.place(unit, &member, limit, &mut place, &mut parts, depth)? || (is_union && place.end > size) {
                return Ok(None);
            }
        }
        let end = place.end.max(union_end).next_multiple_of(8);
        let filled = match packed {
            true => end,
            false => end.next_multiple_of(8 * place.alignment),
        };
        if end > size || (!packed && size % (8 * place.alignment) != 0) {
            return Ok(None);
        }
        if filled != size {
            let from = if is_union { 0 } else { end };
            parts.push(Part::Padding((size - from) / 8));
        }
        let alignment = if packed { 1 } else { place.alignment };
        Ok(Some(Plan {
            parts,
            packed,
            alignment,
        }))
    }

    /// Adds a member, with padding before it; false if it can't get its offset. `limit` is the
    /// start of the next member.
    fn place(
        &mut self,
        unit: usize,
        member: &StructMember<'d>,
        limit: u64,
        place: &mut Place,
        parts: &mut Vec<Part<'d>>,
        depth: usize,
    ) -> Result<bool> {
        let types = self.units[unit].types;
        let slice = types.get(member.id).ok().filter(|found| found.kind() == Kind::Slice);
        let of = match slice {
            Some(slice) => slice.slice()?.of,
            None => member.id,
        };
        let mut size = self.units[unit].measures.size(of).ok();
        let room = limit.saturating_sub(member.offset) / 8;
        let kind = types.resolve(of).map(|found| found.kind()).ok();
        // GNU ld gives every enum the size of an int.
        let is_too_large = kind == Some(Kind::Enum) && slice.is_none() && size.is_some_and(|size| size > room);
        // Pascal has functions as members, meaning their addresses.
        if is_too_large || kind == Some(Kind::Function) {
            size = None;
        }
        let is_void = self.is_void(unit, of);
        let Some(size) = size.filter(|_| !is_void) else {
            let reached = place.pad_to(member.offset, parts) && member.offset.is_multiple_of(8);
            let bytes = if is_void { 0 } else { room };
            parts.push(Part::Bytes(member.name, bytes));
            place.end = member.offset + 8 * bytes;
            return Ok(reached);
        };
        let Some(size) = size.checked_mul(8) else {
            return Ok(false);
        };
        let alignment = self.alignment(unit, of, depth)?;
        if let Some(slice) = slice {
            let slice = slice.slice()?;
            let Some(offset) = member.offset.checked_add(slice.offset.into()) else {
                return Ok(false);
            };
            let bits = u64::from(slice.bits);
            if bits == 0 || bits > size || member.name.is_empty() {
                return Ok(false);
            }
            if place.bit_field(size, bits) != offset && !place.pad_to(offset, parts) {
                return Ok(false);
            }
            if place.bit_field(size, bits) != offset {
                return Ok(false);
            }
            place.end = offset + bits;
            parts.push(Part::Member(*member, Some(slice.bits)));
        } else {
            let natural = place.aligned(alignment);
            if natural != Some(member.offset)
                && !(member.offset.is_multiple_of(8) && place.pad_to(member.offset, parts))
            {
                return Ok(false);
            }
            if place.aligned(alignment) != Some(member.offset) {
                return Ok(false);
            }
            let Some(end) = member.offset.checked_add(size) else {
                return Ok(false);
            };
            place.end = end;
            parts.push(Part::Member(*member, None));
        }
        place.alignment = place.alignment.max(alignment);
        Ok(true)
    }

    /// The alignment that a compiler gives to a type as it is printed.
    fn alignment(&mut self, unit: usize, id: TypeId, depth: usize) -> Result<u64> {
        let depth = self.deeper(depth, id)?;
        let found = self.units[unit].types.resolve(id)?;
        let key: Key = self.key(unit, found.id());
        if let Some(&known) = self.alignments.get(&key) {
            return Ok(known);
        }
        let alignment = match found.kind() {
            Kind::Pointer => self.units[unit].types.dict().pointer_bytes().into(),
            Kind::Array => self.alignment(unit, found.array()?.contents, depth)?,
            Kind::Struct | Kind::Union => self.plan(unit, &found, depth)?.alignment,
            Kind::Enum => of_number(found.size()),
            Kind::Slice => self.alignment(unit, found.slice()?.of, depth)?,
            Kind::Float if (3..=5).contains(&found.encoding()?.format) => of_number(found.size() / 2),
            Kind::Integer | Kind::Float => of_number(found.size()),
            _ => 1,
        };
        self.alignments.insert(key, alignment);
        Ok(alignment)
    }

    /// Prints assertions that the type and its members have the size and offsets in the file.
    pub(super) fn assert_layout(&mut self, unit: usize, found: &Type<'d>, spelled: &str) -> Result<()> {
        if found.kind() == Kind::Enum {
            return Ok(());
        }
        let mut text = format!(
            "_Static_assert(sizeof({spelled}) == {}, \"{spelled}\");\n",
            found.size()
        );
        self.assert_members(unit, found, spelled, 0, 0, &mut text)?;
        self.out.extend(text.bytes());
        Ok(())
    }

    fn assert_members(
        &mut self,
        unit: usize,
        found: &Type<'d>,
        spelled: &str,
        base: u64,
        depth: usize,
        text: &mut String,
    ) -> Result<()> {
        let plan = self.plan(unit, found, depth)?;
        for part in &plan.parts {
            let Part::Member(member, None) = part else { continue };
            let offset = base.saturating_add(member.offset);
            let inner = self.units[unit].types.get(member.id)?;
            if member.name.is_empty() {
                if matches!(inner.kind(), Kind::Struct | Kind::Union) {
                    self.assert_members(unit, &inner, spelled, offset, self.deeper(depth, member.id)?, text)?;
                }
                continue;
            }
            let (name, offset) = (names::member(member.name), offset / 8);
            let size = self.units[unit].measures.size(member.id)?;
            // C has no size for a flexible array.
            let sized = match size {
                0 => String::new(),
                size => format!(" && sizeof((({spelled} *)0)->{name}) == {size}"),
            };
            text.push_str(&format!(
                "_Static_assert(__builtin_offsetof({spelled}, {name}) == {offset}{sized}, \"{spelled}: {name}\");\n"
            ));
        }
        Ok(())
    }
}

impl Place {
    /// The offset at which a compiler puts a part of this alignment.
    fn aligned(&self, alignment: u64) -> Option<u64> {
        let alignment = if self.packed { 1 } else { alignment };
        self.end.checked_next_multiple_of(8 * alignment.max(1))
    }

    /// The offset at which a compiler puts a bit field of a type of `size` bits: it does not cross
    /// a multiple of `size`.
    fn bit_field(&self, size: u64, bits: u64) -> u64 {
        match self.packed || self.end / size == (self.end + bits - 1) / size {
            true => self.end,
            false => self.end.next_multiple_of(size),
        }
    }

    /// Pads up to a bit offset; false if it has already been passed.
    fn pad_to(&mut self, offset: u64, parts: &mut Vec<Part<'_>>) -> bool {
        if offset < self.end {
            return false;
        }
        if offset / 8 == self.end / 8 {
            parts.extend((offset > self.end).then(|| Part::PaddingBits(offset - self.end)));
        } else {
            let whole = self.end.next_multiple_of(8);
            // The bytes begin at a whole byte by themselves.
            parts.extend((offset / 8 * 8 > whole).then(|| Part::Padding((offset / 8 * 8 - whole) / 8)));
            if offset / 8 * 8 == whole && whole > self.end {
                parts.push(Part::PaddingBits(whole - self.end));
            }
            parts.extend((!offset.is_multiple_of(8)).then_some(Part::PaddingBits(offset % 8)));
        }
        self.end = offset;
        true
    }
}

/// What gives an enum with such values its size, if a compiler would choose another one: an int, or
/// 8 bytes if one of the values needs them; with `packed`, as few as the values need.
fn enum_attribute(size: u64, least: i128, most: i128) -> &'static str {
    let needed = |from: u32| {
        let fits = |bytes: &u32| {
            let bits = 8 * bytes;
            let limit = if least < 0 { 1 << (bits - 1) } else { 1 << bits };
            most < limit && least >= -(1 << (bits - 1))
        };
        u64::from(
            [1, 2, 4]
                .into_iter()
                .filter(|&bytes| bytes >= from)
                .find(fits)
                .unwrap_or(8),
        )
    };
    match size {
        size if size == needed(4) => "",
        size if size < 4 && size == needed(1) => " __attribute__((packed))",
        1 => " __attribute__((mode(QI)))",
        2 => " __attribute__((mode(HI)))",
        4 => " __attribute__((mode(SI)))",
        8 => " __attribute__((mode(DI)))",
        _ => "",
    }
}

/// The alignment of a number of `size` bytes: `size` if it is a power of two, and 16 at most.
fn of_number(size: u64) -> u64 {
    match size {
        0 => 1,
        size => (1 << size.trailing_zeros().min(4)) as u64,
    }
}
