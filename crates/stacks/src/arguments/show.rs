//! Values as text, as C would write them.

use backtrail_ctype::{Encoding, Kind, Measures, Type, TypeId, Types};
use backtrail_wire::{Endian, read_bits, sign_extend};

/// Structs and arrays in each other.
const DEEPEST: u32 = 4;
/// Members or elements that are shown of one.
const MOST_MEMBERS: usize = 16;
/// Bytes that are shown of a text.
const LONGEST_TEXT: usize = 200;
/// Bytes of all that is shown of one value.
const LONGEST_VALUE: usize = 4096;
/// What stands for what is left out, and for what is not known.
pub(super) const LEFT_OUT: &str = "...";

/// Shows values of the types of a dict.
pub(super) struct Show<'s, 'd> {
    /// Reads memory from an address on, and tells how many bytes came.
    pub(super) read: &'s dyn Fn(u64, &mut [u8]) -> usize,
    pub(super) endian: Endian,
    pub(super) types: Types<'d>,
    pub(super) measures: Measures<'d>,
    pub(super) out: String,
}

impl Show<'_, '_> {
    /// Appends a value of this type; `None` where the type says too little, or more bytes are needed than there are.
    pub(super) fn value(&mut self, id: TypeId, bytes: &[u8], depth: u32) -> Option<()> {
        if self.out.len() > LONGEST_VALUE {
            self.out.push_str(LEFT_OUT);
            return Some(());
        }
        let found = self.types.resolve(id).ok()?;
        match found.kind() {
            Kind::Integer => {
                let encoding = found.encoding().ok()?;
                let len = usize::try_from(found.size()).ok().filter(|&len| len > 0)?;
                self.integer(encoding, bytes.get(..len)?)
            }
            Kind::Float => self.float(bytes.get(..usize::try_from(found.size()).ok()?)?),
            Kind::Pointer => self.pointer(&found, bytes.get(..8)?),
            Kind::Enum => {
                let len = usize::try_from(found.size()).ok().filter(|len| (1..=8).contains(len))?;
                let number = self.number(bytes.get(..len)?)?;
                self.enumerator(&found, sign_extend(number, len as u32 * 8))
            }
            Kind::Struct | Kind::Union => {
                let len = usize::try_from(found.size()).ok()?;
                self.members(&found, bytes.get(..len)?, depth)
            }
            Kind::Array => self.array(&found, bytes, depth),
            _ => None,
        }
    }

    /// Up to eight bytes as a number.
    fn number(&self, bytes: &[u8]) -> Option<u64> {
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
        self.scalar(encoding, number, bytes.len() as u32 * 8);
        Some(())
    }

    /// An integer of so many bits.
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
        if encoding.format & Encoding::CHAR != 0 && bits == 8 {
            self.out.push_str(" '");
            self.byte(number as u8, b'\'');
            self.out.push('\'');
        }
    }

    fn float(&mut self, bytes: &[u8]) -> Option<()> {
        let number = self.number(bytes)?;
        self.out += &match bytes.len() {
            4 => f32::from_bits(number as u32).to_string(),
            8 => f64::from_bits(number).to_string(),
            _ => return None,
        };
        Some(())
    }

    fn pointer(&mut self, pointer: &Type<'_>, bytes: &[u8]) -> Option<()> {
        let address = self.number(bytes)?;
        self.out += &format!("{address:#x}");
        let to = pointer.reference().ok().and_then(|to| self.types.resolve(to).ok());
        if to.is_some_and(|to| is_char(&to)) && address != 0 {
            self.text_at(address);
        }
        Some(())
    }

    /// The text at an address, up to its zero. Nothing, where none can be read.
    fn text_at(&mut self, address: u64) {
        let mut text = [0; LONGEST_TEXT];
        // A page at a time: what lies behind the text need not be there.
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
            self.quoted(&text[..len], true);
        }
    }

    fn quoted(&mut self, text: &[u8], is_cut: bool) {
        self.out.push('"');
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c.is_ascii() || c.is_control() {
                    true => c.to_string().bytes().for_each(|byte| self.byte(byte, b'"')),
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

    /// A byte between quotes of this sort.
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

    fn enumerator(&mut self, found: &Type<'_>, number: i64) -> Option<()> {
        for value in found.enumerators().ok()? {
            let value = value.ok()?;
            // Those beyond 31 bits are the same bits with another sign.
            if i64::from(value.value) == number || value.value as u32 as i64 == number && found.size() == 4 {
                self.out += &String::from_utf8_lossy(value.name);
                return Some(());
            }
        }
        self.out += &number.to_string();
        Some(())
    }

    fn members(&mut self, found: &Type<'_>, bytes: &[u8], depth: u32) -> Option<()> {
        if depth >= DEEPEST {
            self.out.push_str("{...}");
            return Some(());
        }
        self.out.push('{');
        for (index, member) in found.members().ok()?.enumerate() {
            let member = member.ok()?;
            if index > 0 {
                self.out.push_str(", ");
            }
            if index == MOST_MEMBERS {
                self.out.push_str(LEFT_OUT);
                break;
            }
            if !member.name.is_empty() {
                self.out += &format!("{} = ", String::from_utf8_lossy(member.name));
            }
            let before = self.out.len();
            if self.member(member.id, member.offset, bytes, depth).is_none() {
                self.out.truncate(before);
                self.out.push_str(LEFT_OUT);
            }
        }
        self.out.push('}');
        Some(())
    }

    fn member(&mut self, id: TypeId, offset: u64, bytes: &[u8], depth: u32) -> Option<()> {
        let found = self.types.get(id).ok()?;
        if found.kind() != Kind::Slice {
            let at = usize::try_from(offset / 8).ok().filter(|_| offset.is_multiple_of(8))?;
            return self.value(id, bytes.get(at..)?, depth + 1);
        }
        let slice = found.slice().ok()?;
        let bits = u32::from(slice.bits);
        let first = offset.checked_add(slice.offset.into())?;
        let number = read_bits(bytes, first, bits, self.endian).ok()?;
        let of = self.types.resolve(slice.of).ok()?;
        match of.kind() {
            Kind::Enum => {
                // Enums have no sign unless a value needs one.
                let is_negative = |value: backtrail_ctype::Enumerator<'_>| value.value < 0;
                let is_signed = of.enumerators().ok()?.flatten().any(is_negative);
                let number = if is_signed {
                    sign_extend(number, bits)
                } else {
                    number as i64
                };
                self.enumerator(&of, number)
            }
            Kind::Integer => {
                self.scalar(of.encoding().ok()?, number, bits);
                Some(())
            }
            _ => None,
        }
    }

    fn array(&mut self, found: &Type<'_>, bytes: &[u8], depth: u32) -> Option<()> {
        let array = found.array().ok()?;
        let element = self.types.resolve(array.contents).ok()?;
        let count = array.count as usize;
        if is_char(&element) && count > 0 {
            let text = bytes.get(..count)?;
            let end = text.iter().position(|&byte| byte == 0);
            let shown = &text[..end.unwrap_or(count).min(LONGEST_TEXT)];
            self.quoted(shown, shown.len() < end.unwrap_or(count));
            return Some(());
        }
        if depth >= DEEPEST {
            self.out.push_str("{...}");
            return Some(());
        }
        let size = self.measures.size(array.contents).ok()?;
        let size = usize::try_from(size).ok().filter(|&size| size > 0)?;
        self.out.push('{');
        for index in 0..count.min(MOST_MEMBERS + 1) {
            if index > 0 {
                self.out.push_str(", ");
            }
            if index == MOST_MEMBERS {
                self.out.push_str(LEFT_OUT);
                break;
            }
            self.value(array.contents, bytes.get(index.checked_mul(size)?..)?, depth + 1)?;
        }
        self.out.push('}');
        Some(())
    }
}

/// Whether values of this type are bytes of texts.
fn is_char(found: &Type<'_>) -> bool {
    let is_char = |encoding: Encoding| encoding.format & Encoding::CHAR != 0;
    found.kind() == Kind::Integer && found.size() == 1 && found.encoding().is_ok_and(is_char)
}
