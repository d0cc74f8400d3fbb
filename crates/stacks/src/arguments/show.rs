//! Formats values as in C.

use std::fmt::Write;

use backtrail_args::shape::WideFloat;
use backtrail_ctype::{Encoding, Enumerator, Error, Kind, StructMember, Type, TypeId, Types};
use backtrail_wire::{Endian, read_bits, sign_extend};

use super::float::{self, shortest};
use super::module::{defined, size};
use crate::process::Hidden;
use crate::shown::{Amount, HIDDEN, Shown};

/// Maximum nesting of structs and arrays.
pub(super) const DEEPEST: u32 = 4;
/// Maximum number of members or elements shown for each.
pub(super) const MOST_MEMBERS: usize = 16;
/// The least number of equal elements in a row that are shown as one.
pub(super) const LEAST_REPEATS: usize = 10;
/// The limit on the length of a shown string in bytes, whatever is asked for.
const LONGEST_TEXT: usize = 1 << 16;
/// Maximum length of a formatted value in bytes, beside a string's.
const LONGEST_VALUE: usize = 4096;
/// Maximum number of values that are read for one, shown or not.
pub(super) const MOST_VALUES: u32 = 1 << 13;
/// Marks omitted and unknown parts.
pub(super) const LEFT_OUT: &str = "...";

/// A byte of a value; `None` if it is lost.
pub(super) type Byte = Option<u8>;

/// These bytes, if all are known.
pub(super) fn known(bytes: &[Byte]) -> Option<Vec<u8>> {
    bytes.iter().copied().collect()
}

/// Formats values of a dict's types.
pub(super) struct Show<'s, 'd> {
    /// Reads memory from an address on, and returns how many bytes were read.
    pub(super) read: &'s dyn Fn(u64, &mut [u8]) -> usize,
    /// The type with this name, if it is the only one.
    pub(super) named: &'s dyn Fn(&[u8]) -> Option<TypeId>,
    pub(super) endian: Endian,
    /// Whether `long double` is the format of x87.
    pub(super) x87: bool,
    pub(super) types: Types<'d>,
    pub(super) out: String,
    /// The addresses of functions, with the ends of their texts in `out`.
    pub(super) code: Vec<(usize, u64)>,
    pub(super) shown: &'s Shown,
    /// How many more values may be read.
    pub(super) left: u32,
    /// What was not shown so far.
    pub(super) hidden: Hidden,
}

impl<'d> Show<'_, 'd> {
    /// Appends a value of this type; `None` if the type is incomplete, or needs more bytes than
    /// there are.
    pub(super) fn value(&mut self, id: TypeId, bytes: &[Byte], depth: u32) -> Option<()> {
        let is_long = self.out.len() > LONGEST_VALUE.saturating_add(self.longest_text());
        self.left = self.left.saturating_sub(1);
        if is_long || self.left == 0 {
            self.out.push_str(LEFT_OUT);
            return Some(());
        }
        let found = self.resolve(id).ok()?;
        let of_its_size = || bytes.get(..usize::try_from(found.size()).ok().filter(|&len| len > 0)?);
        match found.kind() {
            Kind::Integer => self.integer(found.encoding().ok()?, &known(of_its_size()?)?),
            Kind::Float => self.float(&found, &known(of_its_size()?)?),
            Kind::Pointer => self.pointer(&found, &known(bytes.get(..8)?)?, depth),
            Kind::Enum => {
                let bytes = known(of_its_size()?)?;
                let number = self.number(&bytes)?;
                self.enumerator(&found, number, bytes.len() as u32 * 8)
            }
            Kind::Struct | Kind::Union => {
                let len = usize::try_from(found.size()).ok()?;
                self.members(&found, bytes.get(..len)?, depth)
            }
            Kind::Array => self.array(&found, bytes, depth),
            _ => None,
        }
    }

    /// The type without typedefs and qualifiers, and the definition of one that is only declared.
    pub(super) fn resolve(&self, id: TypeId) -> Result<Type<'d>, Error> {
        defined(self.types, self.named, id)
    }

    /// The size of a type's values in bytes.
    pub(super) fn size(&self, id: TypeId) -> Option<u64> {
        size(self.types, self.named, id)
    }

    /// Takes back what was appended to these first bytes.
    pub(super) fn cut(&mut self, len: usize) {
        self.out.truncate(len);
        self.code.retain(|(end, _)| *end <= len);
    }

    /// Up to eight bytes as a number.
    pub(super) fn number(&self, bytes: &[u8]) -> Option<u64> {
        let mut word = [0; 8];
        let len = bytes.len();
        Some(match self.endian {
            Endian::Little => {
                word.get_mut(..len)?.copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
            Endian::Big => {
                word.get_mut(8usize.checked_sub(len)?..)?.copy_from_slice(bytes);
                u64::from_be_bytes(word)
            }
        })
    }

    fn integer(&mut self, encoding: Encoding, bytes: &[u8]) -> Option<()> {
        let is_signed = encoding.format & Encoding::SIGNED != 0;
        if bytes.len() == 16 {
            let array: [u8; 16] = bytes.try_into().ok()?;
            let wide = match self.endian {
                Endian::Little => i128::from_le_bytes(array),
                Endian::Big => i128::from_be_bytes(array),
            };
            self.out += &match is_signed {
                true => wide.to_string(),
                false => (wide as u128).to_string(),
            };
            return Some(());
        }
        let number = self.number(bytes)?;
        let all = bytes.len() as u32 * 8;
        // The other bits of `_BitInt(7)` may be anything.
        let used = u32::from(encoding.bits);
        match 0 < used && used < all && encoding.format & Encoding::BOOL == 0 {
            true if encoding.offset != 0 => return None,
            true => self.scalar(encoding, number & ((1 << used) - 1), used),
            false => self.scalar(encoding, number, all),
        }
        Some(())
    }

    /// Appends an integer of this many bits.
    fn scalar(&mut self, encoding: Encoding, number: u64, bits: u32) {
        let signed = sign_extend(number, bits);
        match (
            encoding.format & Encoding::BOOL != 0,
            encoding.format & Encoding::SIGNED != 0,
        ) {
            (true, _) if number == 0 => self.out.push_str("false"),
            (true, _) if number == 1 => self.out.push_str("true"),
            (_, true) => self.out += &signed.to_string(),
            _ => self.out += &number.to_string(),
        }
        let character = match bits {
            _ if encoding.format & Encoding::CHAR == 0 => None,
            8 => Some(char::from(number as u8)),
            // Of a UTF-16 code unit, only what is a character by itself.
            _ => u32::try_from(number).ok().and_then(char::from_u32),
        };
        if let Some(character) = character {
            self.out.push_str(" '");
            match u8::try_from(u32::from(character)) {
                Ok(byte) if bits == 8 || byte < 0x80 => self.byte(byte, b'\''),
                _ if character.is_control() => self.out += &character.escape_unicode().to_string(),
                _ => self.out.push(character),
            }
            self.out.push('\'');
        }
    }

    fn float(&mut self, found: &Type<'d>, bytes: &[u8]) -> Option<()> {
        let name = found.name().ok()?;
        // CTF_FP_SINGLE, CTF_FP_DOUBLE, CTF_FP_LDOUBLE; CTF_FP_CPLX, CTF_FP_DCPLX, CTF_FP_LDCPLX.
        let text = match found.encoding().ok()?.format {
            1 | 2 | 6 => self.real(name, bytes)?,
            3..=5 => {
                let (real, imaginary) = bytes.split_at(bytes.len() / 2);
                format!("{} + {}i", self.real(name, real)?, self.real(name, imaginary)?)
            }
            _ => return None,
        };
        self.out += &text;
        Some(())
    }

    /// A number as text; `name` is that of its type, or of the complex type that it is a part of.
    fn real(&self, name: &[u8], bytes: &[u8]) -> Option<String> {
        let wide = || {
            let array: [u8; 16] = bytes.try_into().ok()?;
            Some(match self.endian {
                Endian::Little => u128::from_le_bytes(array),
                Endian::Big => u128::from_be_bytes(array),
            })
        };
        Some(match bytes.len() {
            4 => shortest(f32::from_bits(self.number(bytes)? as u32)),
            8 => shortest(f64::from_bits(self.number(bytes)?)),
            16 => match self.x87.then(|| WideFloat::of(name)) {
                Some(None) => return None,
                Some(Some(WideFloat::X87)) => float::x87(wide()?),
                Some(Some(WideFloat::Binary128)) | None => float::binary128(wide()?),
            },
            _ => return None,
        })
    }

    fn pointer(&mut self, pointer: &Type<'_>, bytes: &[u8], depth: u32) -> Option<()> {
        let address = self.number(bytes)?;
        // Writing to a string never fails.
        let _ = write!(self.out, "{address:#x}");
        let to = pointer.reference().ok().and_then(|to| self.resolve(to).ok());
        match to.filter(|_| address != 0) {
            Some(to) if is_char(&to) => self.text_at(address),
            Some(to) if to.kind() == Kind::Function => self.code.push((self.out.len(), address)),
            Some(to) if self.is_box(&to) => {
                if let Some(element) = self.marked(&to) {
                    self.owned(element, address, depth);
                }
            }
            Some(to) => self.container_at(&to, address, depth),
            None => {}
        }
        Some(())
    }

    /// Appends the string at an address, up to its zero byte. Appends nothing if it cannot be read.
    fn text_at(&mut self, address: u64) {
        if self.shown.amount < Amount::All {
            self.hidden = self.hidden.max(Hidden::Text);
            return;
        }
        let longest = self.longest_text();
        // With the zero byte. A page at a time: memory after the string may be unmapped.
        let mut text = vec![0; longest + usize::from(longest > 0)];
        const PAGE: u64 = 4096;
        let mut len = 0;
        while len < text.len() {
            let at = address.wrapping_add(len as u64);
            let wanted = (text.len() - len).min((PAGE - at % PAGE) as usize);
            let read = (self.read)(at, &mut text[len..len + wanted]);
            let zero = text[len..len + read].iter().position(|&byte| byte == 0);
            if let Some(zero) = zero {
                self.out.push(' ');
                return self.quoted(&text[..len + zero], false);
            }
            len += read;
            if read < wanted {
                break;
            }
        }
        if len > 0 {
            self.out.push(' ');
            self.quoted(&text[..len.min(longest)], true);
        }
    }

    /// Appends this many bytes at an address as a string.
    pub(super) fn text_of(&mut self, address: u64, len: u64) -> Option<()> {
        if self.shown.amount < Amount::All {
            self.leave_out(Hidden::Text);
            return Some(());
        }
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(self.longest_text());
        let mut text = vec![0; wanted];
        if (self.read)(address, &mut text) < wanted {
            return None;
        }
        self.quoted(&text, wanted as u64 != len);
        Some(())
    }

    pub(super) fn longest_text(&self) -> usize {
        self.shown.longest_text.min(LONGEST_TEXT)
    }

    /// Appends that a value is not shown.
    pub(super) fn leave_out(&mut self, what: Hidden) {
        self.out.push_str(HIDDEN);
        self.hidden = self.hidden.max(what);
    }

    pub(super) fn quoted(&mut self, text: &[u8], is_cut: bool) {
        self.out.push('"');
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c.is_ascii() || c.is_control() {
                    true => c
                        .encode_utf8(&mut [0; 4])
                        .bytes()
                        .for_each(|byte| self.byte(byte, b'"')),
                    false => self.out.push(c),
                }
            }
            chunk.invalid().iter().for_each(|&byte| self.byte(byte, b'"'));
        }
        self.out.push('"');
        if is_cut {
            self.out.push_str(LEFT_OUT);
        }
    }

    /// Appends a byte between quotes of this kind.
    fn byte(&mut self, byte: u8, quote: u8) {
        match byte {
            b'\\' => self.out.push_str("\\\\"),
            7..=13 => {
                self.out.push('\\');
                self.out.push(b"abtnvfr"[usize::from(byte) - 7].into());
            }
            _ if byte == quote => {
                self.out.push('\\');
                self.out.push(byte.into());
            }
            b' '..=b'~' => self.out.push(byte.into()),
            _ => self.out += &format!("\\{byte:03o}"),
        }
    }

    /// Appends the name of the value in this many bits.
    fn enumerator(&mut self, found: &Type<'d>, number: u64, bits: u32) -> Option<()> {
        // Enums are unsigned unless a value is negative.
        let is_negative = |value: Enumerator<'_>| value.value < 0;
        let number = match found.enumerators().ok()?.flatten().any(is_negative) {
            true => sign_extend(number, bits),
            false => number as i64,
        };
        for value in found.enumerators().ok()? {
            let value = value.ok()?;
            // Values beyond 31 bits have the same bits with another sign.
            if i64::from(value.value) == number || value.value as u32 as i64 == number && found.size() == 4 {
                self.out += &String::from_utf8_lossy(value.name);
                return Some(());
            }
        }
        match self.flags(found, number) {
            Some(flags) => self.out += &flags,
            None => self.out += &number.to_string(),
        }
        Some(())
    }

    /// A number as a combination of flags, if the enum's values are flags: no two of them share a
    /// bit.
    fn flags(&self, found: &Type<'d>, number: i64) -> Option<String> {
        let mut rest = u64::try_from(number).ok().filter(|&number| number != 0)?;
        let (mut seen, mut names) = (0u64, Vec::new());
        for value in found.enumerators().ok()? {
            let value = value.ok()?;
            let bits = u64::from(u32::try_from(value.value).ok()?);
            // Several bits form one flag only if they are contiguous.
            let is_one_field = bits == 0 || (bits >> bits.trailing_zeros()).wrapping_add(1).is_power_of_two();
            if !is_one_field || bits & seen != 0 {
                return None;
            }
            seen |= bits;
            if bits != 0 && rest & bits == bits {
                rest &= !bits;
                names.push(String::from_utf8_lossy(value.name).into_owned());
            }
        }
        if rest != 0 {
            names.push(format!("unknown: {rest:#x}"));
        }
        Some(format!("({})", names.join(" | ")))
    }

    fn members(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        if depth >= DEEPEST {
            self.out.push_str("{...}");
            return Some(());
        }
        if let Some(()) = self.container(found, bytes, depth) {
            return Some(());
        }
        if let Some(()) = self.slice(found, bytes, depth) {
            return Some(());
        }
        if let Some(variants) = self.variants(found) {
            let selected = variants.selected(self, bytes)?;
            return self.variant(&selected, bytes, depth);
        }
        self.enclosed(found, bytes, depth)
    }

    /// Appends the members of a struct or a union: in braces with their names, or in parentheses if
    /// it is a tuple of Rust.
    pub(super) fn enclosed(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let first = found.members().ok()?.next();
        let is_tuple = first.is_some_and(|first| first.is_ok_and(|first| first.name == b"__0"));
        self.out.push(if is_tuple { '(' } else { '{' });
        self.fields(found, bytes, depth, !is_tuple)?;
        self.out.push(if is_tuple { ')' } else { '}' });
        Some(())
    }

    fn fields(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32, named: bool) -> Option<()> {
        let mut index = 0;
        for member in found.members().ok()? {
            let member = member.ok()?;
            if self.has_no_value(&member) {
                continue;
            }
            if index > 0 {
                self.out.push_str(", ");
            }
            index += 1;
            if index > MOST_MEMBERS {
                self.out.push_str(LEFT_OUT);
                break;
            }
            if named && !member.name.is_empty() {
                self.out += &String::from_utf8_lossy(member.name);
                self.out += " = ";
            }
            if self.shown.hides(&String::from_utf8_lossy(member.name)) {
                self.leave_out(Hidden::Name);
                continue;
            }
            let before = self.out.len();
            if self.member(member.id, member.offset, bytes, depth).is_none() {
                self.cut(before);
                self.out.push_str(LEFT_OUT);
            }
        }
        Some(())
    }

    /// Whether a member only shows the type of elements, or is a base class without members.
    fn has_no_value(&self, member: &StructMember<'_>) -> bool {
        let Ok(of) = self.resolve(member.id) else {
            return false;
        };
        let is_empty = || of.members().is_ok_and(|mut members| members.next().is_none());
        match of.kind() {
            Kind::Array => member.name.is_empty() && self.is_marker(&of),
            Kind::Struct => of.name().is_ok_and(|name| name == member.name && !name.is_empty()) && is_empty(),
            _ => false,
        }
    }

    fn member(&mut self, id: TypeId, offset: u64, bytes: &[Byte], depth: u32) -> Option<()> {
        let found = self.types.get(id).ok()?;
        if found.kind() != Kind::Slice {
            let at = usize::try_from(offset / 8).ok().filter(|_| offset.is_multiple_of(8))?;
            return self.value(id, bytes.get(at..)?, depth + 1);
        }
        let slice = found.slice().ok()?;
        let bits = u32::from(slice.bits);
        let first = offset.checked_add(slice.offset.into())?;
        let [start, end] = [first / 8, first.checked_add(bits.into())?.div_ceil(8)].map(usize::try_from);
        let bytes = known(bytes.get(start.ok()?..end.ok()?)?)?;
        let number = read_bits(&bytes, first % 8, bits, self.endian).ok()?;
        let of = self.resolve(slice.of).ok()?;
        match of.kind() {
            Kind::Enum => self.enumerator(&of, number, bits),
            Kind::Integer => {
                self.scalar(of.encoding().ok()?, number, bits);
                Some(())
            }
            _ => None,
        }
    }

    fn array(&mut self, found: &Type<'d>, bytes: &[Byte], depth: u32) -> Option<()> {
        let array = found.array().ok()?;
        let element = self.resolve(array.contents).ok()?;
        let count = array.count as usize;
        if is_char(&element) && count > 0 {
            let text = known(bytes.get(..count)?)?;
            if self.shown.amount < Amount::All {
                self.leave_out(Hidden::Text);
                return Some(());
            }
            let end = text.iter().position(|&byte| byte == 0);
            let shown = &text[..end.unwrap_or(count).min(self.longest_text())];
            self.quoted(shown, shown.len() < end.unwrap_or(count));
            return Some(());
        }
        if depth >= DEEPEST {
            self.out.push_str("{...}");
            return Some(());
        }
        self.elements(array.contents, count, bytes, depth)
    }

    /// Appends elements of this type, which follow each other in `bytes`. If these end early, only
    /// the first elements are known.
    pub(super) fn elements(&mut self, id: TypeId, count: usize, bytes: &[Byte], depth: u32) -> Option<()> {
        let size = self.size(id)?;
        let size = usize::try_from(size).ok().filter(|&size| size > 0)?;
        let known = bytes.len() / size;
        let element = |index: usize| bytes.get(index * size..(index + 1) * size);
        self.out.push('{');
        let (mut index, mut shown) = (0, 0);
        while index < count {
            if index > 0 {
                self.out.push_str(", ");
            }
            if shown == MOST_MEMBERS || index >= known {
                self.out.push_str(LEFT_OUT);
                break;
            }
            let before = self.out.len();
            let equal = (index + 1..count.min(known)).take_while(|&other| element(other) == element(index));
            let repeats = 1 + equal.count();
            if self.value(id, element(index)?, depth + 1).is_none() {
                self.cut(before);
                self.out.push_str(LEFT_OUT);
            }
            // As gdb does by default.
            index += match repeats >= LEAST_REPEATS && !self.out.ends_with(LEFT_OUT) {
                true => {
                    self.out += &format!(" <repeats {repeats} times>");
                    repeats
                }
                false => 1,
            };
            shown += 1;
        }
        self.out.push('}');
        Some(())
    }
}

/// Whether this is a character type.
pub(super) fn is_char(found: &Type<'_>) -> bool {
    let is_char = |encoding: Encoding| encoding.format & Encoding::CHAR != 0;
    found.kind() == Kind::Integer && found.size() == 1 && found.encoding().is_ok_and(is_char)
}
