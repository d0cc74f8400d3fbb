//! Events as babeltrace2 prints them.

use crate::description::{Base, EnvironmentValue};
use crate::plan::Shape;
use crate::read::{Event, Fields, Flags, IntegerValue, Labels, PlainClass, Value, View, float};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// How times are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockFormat {
    /// The local time of day.
    #[default]
    TimeOfDay,
    /// Seconds since the clock's origin.
    Seconds,
}

/// Prints events in the form of `babeltrace2`, one line each. Text of events comes out in the bytes that it is stored in.
#[derive(Clone, Debug)]
pub struct TextWriter {
    format: ClockFormat,
    zone: TimeZone,
    last: Option<i64>,
    /// The second that was printed last, and its text.
    second: Option<(i64, Vec<u8>)>,
}

impl TextWriter {
    /// Before the first event.
    pub fn new(format: ClockFormat) -> TextWriter {
        TextWriter {
            format,
            zone: match format {
                ClockFormat::TimeOfDay => TimeZone::system(),
                ClockFormat::Seconds => TimeZone::UTC,
            },
            last: None,
            second: None,
        }
    }

    /// Appends the event's line to `text`.
    pub fn event(&mut self, text: &mut Vec<u8>, event: &Event<'_>) {
        self.time(text, event.time());
        TextWriter::fields(text, event);
    }

    /// Appends the part of a line that depends on the lines before: the time, and how much later it is than the last one.
    pub fn time(&mut self, text: &mut Vec<u8>, time: Option<i64>) {
        let Some(time) = time else { return };
        text.push(b'[');
        self.clock(text, time);
        match self.last.replace(time) {
            None => text.extend_from_slice(b"] (+?.?????????) "),
            Some(last) => {
                text.extend_from_slice(b"] (+");
                // As in babeltrace2, going back wraps around.
                let step = (time as u64).wrapping_sub(last as u64);
                decimal(text, step / PER_SECOND);
                fraction(text, step % PER_SECOND);
                text.extend_from_slice(b") ");
            }
        }
    }

    /// Appends the rest of the line, from the environment on.
    pub fn fields(text: &mut Vec<u8>, event: &Event<'_>) {
        text.extend_from_slice(event.heading());
        let context = event.packet_context_text();
        text.extend_from_slice(context);
        let mut separator: &[u8] = if context.is_empty() { b"" } else { b", " };
        for fields in [event.stream_context(), event.context(), event.payload()]
            .into_iter()
            .flatten()
        {
            text.extend_from_slice(separator);
            fields.view.members(text, fields.node, false);
            separator = b", ";
        }
        text.push(b'\n');
    }

    fn clock(&mut self, text: &mut Vec<u8>, time: i64) {
        if self.format == ClockFormat::Seconds {
            let seconds = time / PER_SECOND as i64;
            text.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
            return fraction(text, (time % PER_SECOND as i64).unsigned_abs());
        }
        let second = time.div_euclid(PER_SECOND as i64);
        if self.second.as_ref().is_none_or(|(last, _)| *last != second) {
            let clock = Timestamp::from_second(second).map(|timestamp| timestamp.to_zoned(self.zone.clone()));
            let clock = clock.map_or(String::new(), |clock| clock.strftime("%H:%M:%S").to_string());
            self.second = Some((second, clock.into_bytes()));
        }
        text.extend_from_slice(self.second.as_ref().map_or(&[], |(_, clock)| clock));
        fraction(text, time.rem_euclid(PER_SECOND as i64).unsigned_abs());
    }
}

const PER_SECOND: u64 = 1_000_000_000;

/// What lines have of their packet's context. Sizes and counters are the reader's business, and what is left may be nothing.
pub(crate) fn packet_context(context: Fields<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    if context.without_roles().next().is_some() {
        context.view.members(&mut text, context.node, true);
    }
    text
}

/// What a line has before the event's name.
pub(crate) fn environment(environment: &[(String, EnvironmentValue)]) -> String {
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

fn decimal(text: &mut Vec<u8>, value: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A point and nine digits.
fn fraction(text: &mut Vec<u8>, nanoseconds: u64) {
    let start = text.len();
    decimal(text, PER_SECOND + nanoseconds);
    // The one before the nine digits.
    text[start] = b'.';
}

impl View<'_> {
    /// Prints a struct; `without_roles` leaves out what describes the trace's structure.
    fn members(&self, text: &mut Vec<u8>, node: usize, without_roles: bool) {
        let end = self.after(node);
        let mut member = node + 1;
        let mut separator: &[u8] = b"{ ";
        while member < end {
            let field = self.field(member);
            if without_roles && field.role().is_some() {
                member = self.after(member);
                continue;
            }
            text.extend_from_slice(separator);
            text.extend_from_slice(&field.label);
            separator = b", ";
            match (&field.shape, self.bits(member)) {
                // What there is most of.
                (Shape::Integer(class), Some(bits)) => {
                    number(text, &IntegerValue::plain(bits, class));
                    member += 1;
                    continue;
                }
                (Shape::Struct(_), _) if without_roles => self.members(text, member, true),
                _ => self.print(text, member),
            }
            member = self.after(member);
        }
        text.extend_from_slice(if separator == b"{ " { b"{ }" } else { b" }" });
    }

    fn print(&self, text: &mut Vec<u8>, node: usize) {
        let Some(value) = self.value(node) else { return };
        match value {
            Value::Integer(integer) => match integer.labels() {
                Some(labels) => enumeration(text, &integer, labels),
                None => number(text, &integer),
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
        let mut separator: &[u8] = b" [";
        let mut label = |text: &mut Vec<u8>, index: usize| {
            text.extend_from_slice(separator);
            decimal(text, index as u64);
            text.extend_from_slice(b"] = ");
            separator = b", [";
        };
        match self.plain_elements(node) {
            Some((class, values)) => values.enumerate().for_each(|(index, bits)| {
                label(text, index);
                match class {
                    PlainClass::Integer(class) => number(text, &IntegerValue::plain(bits, class)),
                    PlainClass::Float(size) => general(text, float(size, bits)),
                }
            }),
            None => {
                let mut element = node + 1;
                for index in 0..count {
                    label(text, index);
                    self.print(text, element);
                    element = self.after(element);
                }
            }
        }
        text.extend_from_slice(b" ]");
    }
}

fn enumeration(text: &mut Vec<u8>, integer: &IntegerValue<'_>, labels: Labels<'_>) {
    text.extend_from_slice(b"( ");
    let labels: Vec<&str> = labels.collect();
    match labels.as_slice() {
        [] => text.extend_from_slice(b"<unknown>"),
        [label] => quoted(text, label.as_bytes()),
        several => {
            let mut separator: &[u8] = b"{ ";
            for label in several {
                text.extend_from_slice(separator);
                quoted(text, label.as_bytes());
                separator = b", ";
            }
            text.extend_from_slice(b" }");
        }
    }
    text.extend_from_slice(b" : container = ");
    number(text, integer);
    text.extend_from_slice(b" )");
}

fn flags(text: &mut Vec<u8>, flags: &Flags<'_>) {
    text.extend_from_slice(b"0x");
    digits(text, flags.bits(), 4, 1);
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

fn number(text: &mut Vec<u8>, integer: &IntegerValue<'_>) {
    let class = integer.class();
    if class.base == Base::Decimal {
        let mut buffer = itoa::Buffer::new();
        let digits = match class.signed {
            true => buffer.format(integer.bits() as i64),
            false => buffer.format(integer.bits()),
        };
        return text.extend_from_slice(digits.as_bytes());
    }
    let bits = integer.bits() & (u64::MAX >> (64 - class.size.clamp(1, 64)));
    let (prefix, bits_per_digit, least): (&[u8], u32, u32) = match class.base {
        Base::Octal => (b"0", 3, 1),
        Base::Binary => (b"0b", 1, class.size),
        Base::Hexadecimal | Base::Decimal => (b"0x", 4, 1),
    };
    text.extend_from_slice(prefix);
    digits(text, bits, bits_per_digit, least);
}

const UPPER_DIGITS: [u8; 16] = *b"0123456789ABCDEF";
const LOWER_DIGITS: [u8; 16] = *b"0123456789abcdef";

/// A number in a base that is a power of two, with at least so many digits.
fn digits(text: &mut Vec<u8>, value: u64, bits_per_digit: u32, least: u32) {
    let needed = (u64::BITS - value.leading_zeros()).div_ceil(bits_per_digit).max(least);
    let mut buffer = [0; 64];
    let mask = (1u64 << bits_per_digit) - 1;
    let mut rest = value;
    let buffer = &mut buffer[..needed.min(64) as usize];
    for digit in buffer.iter_mut().rev() {
        *digit = UPPER_DIGITS[(rest & mask) as usize];
        rest = rest.checked_shr(bits_per_digit).unwrap_or(0);
    }
    text.extend_from_slice(buffer);
}

/// How a byte is written in a text: as itself, behind a backslash with this letter, or in hexadecimal.
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
    while let Some(special) = rest.iter().position(|&byte| ESCAPES[usize::from(byte)] != PLAIN) {
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

/// C's `%g`: six significant digits, no zeros at the end.
fn general(text: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        let sign: &[u8] = if value.is_sign_negative() { b"-" } else { b"" };
        text.extend_from_slice(sign);
        text.extend_from_slice(if value.is_nan() { b"nan" } else { b"inf" });
        return;
    }
    // Short whole numbers need no rounding.
    if value.abs() < 1e6 && value.trunc() == value && !(value == 0.0 && value.is_sign_negative()) {
        return text.extend_from_slice(itoa::Buffer::new().format(value as i64).as_bytes());
    }
    if six_digits(text, value).is_some() {
        return;
    }
    // Rust's own exponent form rounds to the digits that decide which form C takes.
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

/// The same for numbers from 0.0001 to a million, where the digits can be had by one exact factor and do not hang on a tie; `None`
/// for all others.
fn six_digits(text: &mut Vec<u8>, value: f64) -> Option<()> {
    const POWERS: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
    /// Far more than a product of six digits is off.
    const DOUBT: f64 = 1e-6;
    let size = value.abs();
    if !(1e-4..1e6).contains(&size) {
        return None;
    }
    let factor = POWERS.iter().position(|power| size * power >= 1e5)?;
    let scaled = size * POWERS[factor];
    let below = scaled.floor();
    if (scaled - below - 0.5).abs() < DOUBT || (1e6 - scaled).abs() < 1.0 || (scaled - 1e5).abs() < DOUBT {
        return None;
    }
    let mut digits = (scaled + 0.5) as u64;
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
        // With a one before them, zeros are not lost.
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
            // Six significant digits of the exact number, read back: the same number as the shorter text.
            let exact: f64 = format!("{value:.5e}").parse().unwrap();
            let ours: f64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
            assert_eq!(ours, exact, "{value}");
        }
        assert!(short_ones > 10_000, "{short_ones}");
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
