//! The types of an event's fields, and how their values are stored: one after the other, in the
//! machine's byte order, without gaps.

use crate::ring::Out;

/// The type of a field, as the table of classes has it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A number, a truth value or a text, by its name in the table: `u32`, `x64` (read in base 16),
    /// `f64`, `b`, `s`.
    Plain(&'static str),
    /// A number whose values have labels: the number's type, and each label with its value.
    Labels(&'static str, &'static [(&'static str, i128)]),
    /// A 32-bit number of elements, and these.
    Sequence(&'static Kind),
    /// This many elements.
    Array(usize, &'static Kind),
    /// A byte, 0 or 1, and if it is 1, the value.
    Optional(&'static Kind),
    /// Members.
    Struct(&'static [(&'static str, &'static Kind)]),
}

/// A type that events can have as a field.
///
/// [`labels!`](crate::labels) and [`record!`](crate::record) define enumerations and structs that
/// are. `put` must write exactly as many bytes as `bytes` says, else the event is discarded.
pub trait Field {
    /// Its type in the trace.
    const KIND: Kind;
    /// The bytes of this value.
    fn bytes(&self) -> usize;
    /// Writes the value; perhaps more than once.
    fn put(&self, out: &mut Out<'_>);
}

macro_rules! numbers {
    ($($type:ident $name:literal,)*) => {
        $(impl Field for $type {
            const KIND: Kind = Kind::Plain($name);

            #[inline]
            fn bytes(&self) -> usize {
                size_of::<$type>()
            }

            #[inline]
            fn put(&self, out: &mut Out<'_>) {
                out.put(self.to_ne_bytes());
            }
        })*
    };
}
numbers! {
    u8 "u8", u16 "u16", u32 "u32", u64 "u64", i8 "i8", i16 "i16", i32 "i32", i64 "i64", f32 "f32", f64 "f64",
}

macro_rules! as_other {
    ($($type:ty, $stored:ty, $name:literal, $value:expr;)*) => {
        $(impl Field for $type {
            const KIND: Kind = Kind::Plain($name);

            #[inline]
            fn bytes(&self) -> usize {
                size_of::<$stored>()
            }

            #[inline]
            fn put(&self, out: &mut Out<'_>) {
                let value: fn(&$type) -> $stored = $value;
                out.put(value(self).to_ne_bytes());
            }
        })*
    };
}
as_other! {
    usize, u64, "u64", |value| *value as u64;
    isize, i64, "i64", |value| *value as i64;
    bool, u8, "b", |value| u8::from(*value);
    char, u32, "u32", |value| u32::from(*value);
}

/// An address: a number that readers show in base 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub u64);

impl Field for Address {
    const KIND: Kind = Kind::Plain("x64");

    #[inline]
    fn bytes(&self) -> usize {
        8
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        out.put(self.0.to_ne_bytes());
    }
}

/// Text up to its first zero byte, which ends it in the trace.
impl Field for str {
    const KIND: Kind = Kind::Plain("s");

    #[inline]
    fn bytes(&self) -> usize {
        text(self).len() + 1
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        out.bytes(text(self));
        out.put([0]);
    }
}

#[inline]
fn text(value: &str) -> &[u8] {
    let bytes = value.as_bytes();
    match bytes.iter().position(|&byte| byte == 0) {
        Some(end) => bytes.get(..end).unwrap_or_default(),
        None => bytes,
    }
}

impl Field for String {
    const KIND: Kind = str::KIND;

    #[inline]
    fn bytes(&self) -> usize {
        self.as_str().bytes_in_trace()
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        Field::put(self.as_str(), out);
    }
}

/// `str::bytes` is another function.
trait InTrace {
    fn bytes_in_trace(&self) -> usize;
}

impl InTrace for str {
    #[inline]
    fn bytes_in_trace(&self) -> usize {
        <str as Field>::bytes(self)
    }
}

impl<T: Field + ?Sized> Field for &T {
    const KIND: Kind = T::KIND;

    #[inline]
    fn bytes(&self) -> usize {
        <T as Field>::bytes(self)
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        <T as Field>::put(self, out);
    }
}

impl<T: Field> Field for [T] {
    const KIND: Kind = Kind::Sequence(&T::KIND);

    #[inline]
    fn bytes(&self) -> usize {
        4 + self.iter().map(<T as Field>::bytes).sum::<usize>()
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        // Longer ones do not fit into a packet.
        out.put((self.len() as u32).to_ne_bytes());
        self.iter().for_each(|element| element.put(out));
    }
}

impl<T: Field> Field for Vec<T> {
    const KIND: Kind = <[T]>::KIND;

    #[inline]
    fn bytes(&self) -> usize {
        <[T] as Field>::bytes(self)
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        <[T] as Field>::put(self, out);
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    const KIND: Kind = Kind::Array(N, &T::KIND);

    #[inline]
    fn bytes(&self) -> usize {
        self.iter().map(<T as Field>::bytes).sum()
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        self.iter().for_each(|element| element.put(out));
    }
}

impl<T: Field> Field for Option<T> {
    const KIND: Kind = Kind::Optional(&T::KIND);

    #[inline]
    fn bytes(&self) -> usize {
        1 + self.as_ref().map_or(0, <T as Field>::bytes)
    }

    #[inline]
    fn put(&self, out: &mut Out<'_>) {
        out.put([u8::from(self.is_some())]);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

/// The value, converted to the field's type; what it borrows from lives as long as the caller's
/// statement.
#[doc(hidden)]
#[inline(always)]
pub fn typed<T>(value: T) -> T {
    value
}

/// Text in the table of classes, in memory of fixed size: handlers may register classes.
#[derive(Debug)]
pub struct Text<'b> {
    bytes: &'b mut [u8],
    used: usize,
}

impl<'b> Text<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> Text<'b> {
        Text { bytes, used: 0 }
    }

    /// `None` if there was more than the memory holds.
    pub(crate) fn finish(self) -> Option<&'b [u8]> {
        let Text { bytes, used } = self;
        bytes.get(..used)
    }

    pub(crate) fn str(&mut self, text: &str) {
        self.all(text.as_bytes());
    }

    /// Appends bytes.
    pub fn all(&mut self, text: &[u8]) {
        let end = self.used.saturating_add(text.len());
        if let Some(place) = self.bytes.get_mut(self.used..end) {
            place.iter_mut().zip(text).for_each(|(place, &byte)| *place = byte);
        }
        self.used = end;
    }

    /// Appends a number in base 16, after `0x`.
    pub(crate) fn hexadecimal(&mut self, value: u64) {
        self.str("0x");
        let bits = (u64::BITS - value.leading_zeros()).max(1);
        for place in (0..bits.div_ceil(4)).rev() {
            self.all(&[digit((value >> (4 * place)) as u8 & 15)]);
        }
    }

    fn number(&mut self, value: i128) {
        if value < 0 {
            self.str("-");
        }
        let (mut digits, mut rest, mut at) = ([0u8; 40], value.unsigned_abs(), 40);
        loop {
            at -= 1;
            if let Some(place) = digits.get_mut(at) {
                *place = b'0' + (rest % 10) as u8;
            }
            rest /= 10;
            if rest == 0 || at == 0 {
                break;
            }
        }
        self.all(digits.get(at..).unwrap_or_default());
    }

    pub(crate) fn members(&mut self, members: &[(&str, &Kind)]) {
        for (index, (name, kind)) in members.iter().enumerate() {
            if index > 0 {
                self.str(",");
            }
            self.str(name.strip_prefix("r#").unwrap_or(name));
            self.str(":");
            self.kind(kind);
        }
    }

    fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Plain(name) => self.str(name),
            Kind::Labels(number, labels) => {
                self.str("e(");
                self.str(number);
                for (label, value) in *labels {
                    self.str(";");
                    self.str(label.strip_prefix("r#").unwrap_or(label));
                    self.str("=");
                    self.number(*value);
                }
                self.str(")");
            }
            Kind::Sequence(element) => {
                self.str("[");
                self.kind(element);
                self.str("]");
            }
            Kind::Array(length, element) => {
                self.str("[");
                self.number(*length as i128);
                self.str("*");
                self.kind(element);
                self.str("]");
            }
            Kind::Optional(inner) => {
                self.str("?");
                self.kind(inner);
            }
            Kind::Struct(members) => {
                self.str("{");
                self.members(members);
                self.str("}");
            }
        }
    }
}

/// A digit of base 16.
pub(crate) fn digit(value: u8) -> u8 {
    let digits = b"0123456789abcdef";
    digits.get(usize::from(value)).copied().unwrap_or(b'?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_as_text() {
        let mut memory = [0; 200];
        let mut text = Text::new(&mut memory);
        text.members(&[
            ("a", &<&str>::KIND),
            ("r#type", &<Option<Vec<[i16; 3]>>>::KIND),
            ("e", &Kind::Labels("i8", &[("low", -128), ("none", 0)])),
            ("s", &Kind::Struct(&[("x", &f64::KIND)])),
        ]);
        assert_eq!(
            text.finish().unwrap(),
            b"a:s,type:?[[3*i16]],e:e(i8;low=-128;none=0),s:{x:f64}"
        );
        let mut text = Text::new(&mut memory[..3]);
        text.members(&[("a", &u32::KIND)]);
        assert_eq!(text.finish(), None);
    }
}
