//! Prints the fields of events as babeltrace2 does.

use super::bytes::{HIGHEST, Piece, below, equal};
use super::digits::{decimal, hexadecimal, signed};
use crate::description::{Base, EnvironmentValue, Integer};
use crate::plan::{Field, Node, Raw, Shape};
use crate::read::{Fields, Flags, IntegerValue, Labels, PlainClass, Value, View, float};

/// The name of an event without one.
pub(super) const UNNAMED: &str = "<unknown>";

/// Text before the fields of an event.
pub(super) fn heading(environment: &str, name: &str) -> Piece {
    let name = if name.is_empty() { UNNAMED } else { name };
    Piece::new(format!("{environment}{name}: ").into_bytes())
}

/// How a field is printed as text.
pub(super) struct FieldText {
    /// Text before the value of a member; the first one gets a brace instead of the comma.
    label: Piece,
    form: Form,
}

/// The forms of most fields.
enum Form {
    Number(Integer),
    Text,
    Other,
}

impl FieldText {
    pub(super) fn of(field: &Field) -> FieldText {
        FieldText::labelled(field, Piece::new(format!(", {} = ", field.name).into_bytes()))
    }

    /// Without its name.
    pub(super) fn unnamed(field: &Field) -> FieldText {
        FieldText::labelled(field, Piece::new(b", ".to_vec()))
    }

    fn labelled(field: &Field, label: Piece) -> FieldText {
        FieldText {
            label,
            form: match &field.shape {
                Shape::Integer(class) => Form::Number(*class),
                Shape::String(encoding) if encoding.unit_bytes() == 1 => Form::Text,
                _ => Form::Other,
            },
        }
    }
}

/// The fields of the packet's context, without sizes and counters; perhaps none.
pub(super) fn packet_context(context: Fields<'_>, fields: &[FieldText]) -> Piece {
    let mut text = Vec::new();
    if context.without_roles().next().is_some() {
        Printer::new(&context, fields).members(&mut text, context.node, true);
    }
    Piece::new(text)
}

/// Text before the event's name.
pub(super) fn environment(environment: &[(String, EnvironmentValue)]) -> String {
    let entry = |name: &&str| environment.iter().find(|(key, _)| key == *name);
    let texts = ["hostname", "procname", "vpid"].iter().filter_map(entry);
    let texts: Vec<String> = texts
        .map(|(_, value)| match value {
            EnvironmentValue::String(value) => value.clone(),
            EnvironmentValue::Integer(value) => format!("({value})"),
        })
        .collect();
    match texts.is_empty() {
        true => String::new(),
        false => texts.join(":") + " ",
    }
}

/// Prints the fields of a struct.
pub(super) struct Printer<'a> {
    view: View<'a>,
    /// By field.
    fields: &'a [FieldText],
    /// Whether elements of arrays have their index.
    indexed: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(of: &Fields<'a>, fields: &'a [FieldText]) -> Printer<'a> {
        Printer {
            view: of.view,
            fields,
            indexed: true,
        }
    }

    /// The same without indexes, for fields without names.
    pub(super) fn unnamed(of: &Fields<'a>, fields: &'a [FieldText]) -> Printer<'a> {
        let indexed = false;
        Printer {
            indexed,
            ..Printer::new(of, fields)
        }
    }

    /// Prints a struct; `without_roles` leaves out members that describe the trace's structure.
    pub(super) fn members(&self, text: &mut Vec<u8>, node: usize, without_roles: bool) {
        let end = self.view.after(node);
        let start = text.len();
        let mut member = node + 1;
        while member < end {
            if without_roles && self.view.field(member).role().is_some() {
                member = self.view.after(member);
                continue;
            }
            let Node { field, raw } = self.view.node(member);
            let field = &self.fields[field as usize];
            field.label.append(text);
            match (&field.form, raw) {
                (Form::Number(class), Raw::Bits(bits)) => {
                    number(text, bits, class);
                    member += 1;
                    continue;
                }
                (Form::Text, Raw::Bytes { start, end }) => {
                    quoted(text, self.view.bytes(start, end));
                    member += 1;
                    continue;
                }
                _ if without_roles && matches!(self.view.field(member).shape, Shape::Struct(_)) => {
                    self.members(text, member, true);
                }
                _ => self.print(text, member),
            }
            member = self.view.after(member);
        }
        match text.get_mut(start) {
            Some(comma) => {
                *comma = b'{';
                text.extend_from_slice(b" }");
            }
            None => text.extend_from_slice(b"{ }"),
        }
    }

    fn print(&self, text: &mut Vec<u8>, node: usize) {
        let Some(value) = self.view.value(node) else { return };
        match value {
            Value::Integer(integer) => match integer.labels() {
                Some(labels) => enumeration(text, &integer, labels),
                None => number(text, integer.bits(), integer.class()),
            },
            Value::Struct(_) => self.members(text, node, false),
            Value::Text(bytes) => quoted(text, bytes),
            Value::Float(float) => general(text, float),
            Value::WideText(wide) => quoted(text, wide.chars().collect::<String>().as_bytes()),
            Value::Blob(bytes) => {
                text.extend_from_slice(b"{ ");
                for byte in bytes {
                    text.extend_from_slice(&[
                        LOWER_DIGITS[usize::from(byte >> 4)],
                        LOWER_DIGITS[usize::from(byte & 15)],
                        b' ',
                    ]);
                }
                text.push(b'}');
            }
            Value::Variant(_) => {
                text.extend_from_slice(b"{ ");
                self.print(text, node + 1);
                text.extend_from_slice(b" }");
            }
            Value::Optional(None) => text.extend_from_slice(b"<none>"),
            Value::Optional(Some(_)) => {
                text.extend_from_slice(b"{ ");
                self.print(text, node + 1);
                text.extend_from_slice(b" }");
            }
            Value::Flags(bits) => flags(text, &bits),
            Value::Boolean(is_true) => text.extend_from_slice(if is_true { b"true" } else { b"false" }),
            Value::Array(elements) => self.array(text, node, elements.len()),
        }
    }

    fn array(&self, text: &mut Vec<u8>, node: usize, count: usize) {
        text.push(b'[');
        match self.view.plain_elements(node) {
            Some((PlainClass::Integer(class), values)) => values.enumerate().for_each(|(index, bits)| {
                self.element_label(text, index);
                number(text, bits, class);
            }),
            Some((PlainClass::Float(size), values)) => values.enumerate().for_each(|(index, bits)| {
                self.element_label(text, index);
                general(text, float(size, bits));
            }),
            None => {
                let mut element = node + 1;
                for index in 0..count {
                    self.element_label(text, index);
                    self.print(text, element);
                    element = self.view.after(element);
                }
            }
        }
        text.extend_from_slice(b" ]");
    }

    #[inline]
    fn element_label(&self, text: &mut Vec<u8>, index: usize) {
        match (self.indexed, index) {
            (true, _) => element_label(text, index),
            (false, 0) => text.push(b' '),
            (false, _) => text.extend_from_slice(b", "),
        }
    }
}

/// Prints the label before an array element.
#[inline]
fn element_label(text: &mut Vec<u8>, index: usize) {
    match index {
        0 => text.extend_from_slice(b" [0] = "),
        1..=9 => text.extend_from_slice(&[b',', b' ', b'[', b'0' + index as u8, b']', b' ', b'=', b' ']),
        _ => {
            text.extend_from_slice(b", [");
            decimal(text, index as u64);
            text.extend_from_slice(b"] = ");
        }
    }
}

fn enumeration(text: &mut Vec<u8>, integer: &IntegerValue<'_>, mut labels: Labels<'_>) {
    text.extend_from_slice(b"( ");
    match (labels.next(), labels.next()) {
        (None, _) => text.extend_from_slice(b"<unknown>"),
        (Some(label), None) => quoted(text, label.as_bytes()),
        (Some(first), Some(second)) => {
            let mut separator: &[u8] = b"{ ";
            for label in [first, second].into_iter().chain(labels) {
                text.extend_from_slice(separator);
                quoted(text, label.as_bytes());
                separator = b", ";
            }
            text.extend_from_slice(b" }");
        }
    }
    text.extend_from_slice(b" : container = ");
    number(text, integer.bits(), integer.class());
    text.extend_from_slice(b" )");
}

fn flags(text: &mut Vec<u8>, flags: &Flags<'_>) {
    text.extend_from_slice(b"0x");
    hexadecimal(text, flags.bits());
    let mut separator: &[u8] = b" { ";
    for name in flags.names() {
        text.extend_from_slice(separator);
        quoted(text, name.as_bytes());
        separator = b", ";
    }
    if separator == b", " {
        text.extend_from_slice(b" }");
    }
}

#[inline]
fn number(text: &mut Vec<u8>, bits: u64, class: &Integer) {
    if class.base == Base::Decimal {
        return match class.signed {
            true => signed(text, bits as i64),
            false => decimal(text, bits),
        };
    }
    // babeltrace2 completes the first digit of a negative number with its sign.
    let size = match (class.signed, class.base) {
        (true, Base::Hexadecimal) => class.size.next_multiple_of(4),
        (true, Base::Octal) => class.size.next_multiple_of(3),
        _ => class.size,
    };
    let bits = bits & (u64::MAX >> (64 - size.clamp(1, 64)));
    match class.base {
        Base::Hexadecimal | Base::Decimal => {
            text.extend_from_slice(b"0x");
            hexadecimal(text, bits);
        }
        Base::Octal => {
            text.push(b'0');
            digits(text, bits, 3, 1);
        }
        Base::Binary => {
            text.extend_from_slice(b"0b");
            digits(text, bits, 1, class.size);
        }
    }
}

const LOWER_DIGITS: [u8; 16] = *b"0123456789abcdef";

/// A number in base 2, 4 or 8, with at least this many digits.
fn digits(text: &mut Vec<u8>, value: u64, bits_per_digit: u32, least: u32) {
    let needed = (u64::BITS - value.leading_zeros()).div_ceil(bits_per_digit).max(least);
    let mut buffer = [0; 64];
    let mask = (1u64 << bits_per_digit) - 1;
    let mut rest = value;
    let buffer = &mut buffer[..needed.min(64) as usize];
    for digit in buffer.iter_mut().rev() {
        *digit = b'0' + (rest & mask) as u8;
        rest = rest.checked_shr(bits_per_digit).unwrap_or(0);
    }
    text.extend_from_slice(buffer);
}

/// How a byte is printed in a text: as itself, as this letter after a backslash, or in hexadecimal.
const PLAIN: u8 = 0;
const IN_HEXADECIMAL: u8 = 1;
const ESCAPES: [u8; 256] = escapes();

const fn escapes() -> [u8; 256] {
    let mut table = [PLAIN; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = IN_HEXADECIMAL;
        control += 1;
    }
    table[0x7f] = IN_HEXADECIMAL;
    let own = *b"\"\'?\\";
    let mut index = 0;
    while index < own.len() {
        table[own[index] as usize] = own[index];
        index += 1;
    }
    let letters = *b"\x07a\x08b\x0cf\nn\rr\tt\x0bv";
    let mut index = 0;
    while index < letters.len() {
        table[letters[index] as usize] = letters[index + 1];
        index += 2;
    }
    table
}

fn quoted(text: &mut Vec<u8>, bytes: &[u8]) {
    text.push(b'"');
    let mut rest = bytes;
    while let Some(special) = special(rest) {
        text.extend_from_slice(&rest[..special]);
        let byte = rest[special];
        match ESCAPES[usize::from(byte)] {
            IN_HEXADECIMAL => {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                text.extend_from_slice(&[b'\\', b'x', LOWER_DIGITS[high], LOWER_DIGITS[low]]);
            }
            letter => text.extend_from_slice(&[b'\\', letter]),
        }
        rest = &rest[special + 1..];
    }
    text.extend_from_slice(rest);
    text.push(b'"');
}

/// Position of the first byte that is not printed as itself.
#[inline]
fn special(bytes: &[u8]) -> Option<usize> {
    let (eights, rest) = bytes.as_chunks();
    for (index, &eight) in eights.iter().enumerate() {
        let found = specials(u64::from_le_bytes(eight));
        if found != 0 {
            return Some(index * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let place = rest.iter().position(|&byte| ESCAPES[usize::from(byte)] != PLAIN)?;
    Some(eights.len() * 8 + place)
}

/// Whether one of eight bytes is special: then the lowest set bit is the highest bit of the first
/// such byte.
#[inline]
const fn specials(bytes: u64) -> u64 {
    let quotes = equal(bytes, b'"') | equal(bytes, b'\'') | equal(bytes, b'?') | equal(bytes, b'\\');
    (quotes | below(bytes, 0x20) | equal(bytes, 0x7f)) & HIGHEST
}

/// C's `%g`: six significant digits, no zeros at the end.
fn general(text: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        let sign: &[u8] = if value.is_sign_negative() { b"-" } else { b"" };
        text.extend_from_slice(sign);
        text.extend_from_slice(if value.is_nan() { b"nan" } else { b"inf" });
        return;
    }
    // Short whole numbers need no rounding.
    if value.abs() < 1e6 && (value as i64) as f64 == value && !(value == 0.0 && value.is_sign_negative()) {
        return signed(text, value as i64);
    }
    if six_digits(text, value).is_some() {
        return;
    }
    // Rust's own exponent form rounds to the digits that decide between C's two forms.
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let decimals = (5 - exponent) as usize;
        text.extend_from_slice(without_zeros(&format!("{value:.decimals$}")).as_bytes());
    } else {
        text.extend_from_slice(without_zeros(mantissa).as_bytes());
        let sign = if exponent < 0 { '-' } else { '+' };
        text.extend_from_slice(format!("e{sign}{:02}", exponent.unsigned_abs()).as_bytes());
    }
}

/// The same for numbers from 0.0001 to a million, if one exact factor yields the digits and
/// rounding does not depend on a tie; `None` for all others.
fn six_digits(text: &mut Vec<u8>, value: f64) -> Option<()> {
    const POWERS: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
    /// Far more than the error of a product of six digits.
    const DOUBT: f64 = 1e-6;
    let size = value.abs();
    if !(1e-4..1e6).contains(&size) {
        return None;
    }
    let factor = POWERS.iter().position(|power| size * power >= 1e5)?;
    let scaled = size * POWERS[factor];
    let below = (scaled as u64) as f64;
    let behind = scaled - below;
    if (1e6 - scaled).abs() < 1.0 || (scaled - 1e5).abs() < DOUBT {
        return None;
    }
    let is_tie = (behind - 0.5).abs() < DOUBT;
    // An exact tie goes to the even digit.
    if is_tie && (behind != 0.5 || size.mul_add(POWERS[factor], -scaled) != 0.0) {
        return None;
    }
    let mut digits = below as u64;
    if behind > 0.5 || (is_tie && !digits.is_multiple_of(2)) {
        digits += 1;
    }
    let mut decimals = factor;
    while decimals > 0 && digits.is_multiple_of(10) {
        (digits, decimals) = (digits / 10, decimals - 1);
    }
    if value < 0.0 {
        text.push(b'-');
    }
    let one = 10u64.pow(decimals as u32);
    decimal(text, digits / one);
    if decimals > 0 {
        let start = text.len();
        // A one in front preserves leading zeros.
        decimal(text, one + digits % one);
        text[start] = b'.';
    }
    Some(())
}

fn without_zeros(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

#[cfg(test)]
mod tests {
    /// Both ways of rounding agree, also near ties and powers of ten.
    #[test]
    fn the_short_way_to_six_digits_is_right() {
        let mut state = 1u64;
        let mut values = vec![
            0.00099999949,
            0.0001,
            999_999.49,
            100_000.5,
            100_001.5,
            20_000.25,
            20_000.75,
            0.1484375,
            99_999.95,
            0.5,
            1.5,
            123.4565,
            1e5,
            100_000.5,
        ];
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let digits = (state >> 40) as f64;
            values.push(digits / 10f64.powi((state >> 8) as i32 & 15));
            // Many ties.
            values.push(digits / f64::from(1u32 << ((state >> 8) & 15)));
            values.push(f64::from_bits(
                0x3f00_0000_0000_0000 + (state >> 4) % 0x0120_0000_0000_0000,
            ));
        }
        let mut short_ones = 0;
        for value in values.iter().flat_map(|&value| [value, -value]) {
            let mut text = Vec::new();
            if super::six_digits(&mut text, value).is_none() {
                continue;
            }
            short_ones += 1;
            // Six significant digits of the exact number, parsed again, must equal the shorter
            // text's number.
            let exact: f64 = format!("{value:.5e}").parse().unwrap();
            let ours: f64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
            assert_eq!(ours, exact, "{value}");
        }
        let mut tie = Vec::new();
        assert!(super::six_digits(&mut tie, 100_002.5).is_some());
        assert_eq!(tie, b"100002");
        assert!(short_ones > 10_000, "{short_ones}");
    }

    #[test]
    fn special_bytes_are_found_wherever_they_are() {
        use super::{ESCAPES, PLAIN, special};
        for byte in 0..=u8::MAX {
            for other in [b'a', 0x80, 0xff, b'!', b'~'] {
                for place in 0..20 {
                    let mut bytes = [other; 20];
                    bytes[place] = byte;
                    let is_special = ESCAPES[usize::from(byte)] != PLAIN;
                    assert_eq!(special(&bytes), is_special.then_some(place), "{byte:#x} at {place}");
                    // The first one counts.
                    bytes[19] = b'\n';
                    assert_eq!(special(&bytes), Some(if is_special { place } else { 19 }));
                }
            }
        }
    }

    #[test]
    fn like_the_format_g_of_c() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (0.5, "0.5"),
            (-17.0, "-17"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (123_456.7, "123457"),
            (999_999.5, "1e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (-2.5e-100, "-2.5e-100"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let mut text = Vec::new();
            super::general(&mut text, value);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
