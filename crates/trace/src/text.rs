//! Events as babeltrace2 prints them.

use crate::description::{Base, EnvironmentValue};
use crate::read::{Event, Fields, Flags, IntegerValue, Value};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::fmt::Write;

/// How times are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockFormat {
    /// The local time of day.
    #[default]
    TimeOfDay,
    /// Seconds since the clock's origin.
    Seconds,
}

/// Prints events in the form of `babeltrace2`, one line each.
#[derive(Clone, Debug)]
pub struct TextWriter {
    format: ClockFormat,
    zone: TimeZone,
    last: Option<i64>,
    /// The second that was printed last, and its text.
    second: Option<(i64, String)>,
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
    pub fn event(&mut self, text: &mut String, event: &Event<'_>) {
        // Writing to a String cannot fail.
        let _ = self.line(text, event);
    }

    fn line(&mut self, text: &mut String, event: &Event<'_>) -> std::fmt::Result {
        if let Some(time) = event.time() {
            self.time(text, time)?;
            match self.last {
                None => text.push_str("(+?.?????????) "),
                Some(last) => {
                    // As in babeltrace2, going back wraps around.
                    let step = (time as u64).wrapping_sub(last as u64);
                    write!(text, "(+{}.{:09}) ", step / 1_000_000_000, step % 1_000_000_000)?;
                }
            }
            self.last = Some(time);
        }
        let mut separator = "";
        for name in ["hostname", "procname", "vpid"] {
            let Some((_, value)) = event.environment().iter().find(|(key, _)| key == name) else {
                continue;
            };
            text.push_str(separator);
            match value {
                EnvironmentValue::String(value) => text.push_str(value),
                EnvironmentValue::Integer(value) => write!(text, "({value})")?,
            }
            separator = ":";
        }
        if !separator.is_empty() {
            text.push(' ');
        }
        write!(text, "{}: ", event.name())?;
        let mut separator = "";
        // Sizes and counters are the reader's business, and what is left may be nothing.
        if let Some(context) = event.packet_context()
            && context.without_roles().next().is_some()
        {
            fields(text, context.without_roles())?;
            separator = ", ";
        }
        for fields in [event.stream_context(), event.context(), event.payload()]
            .into_iter()
            .flatten()
        {
            text.push_str(separator);
            structure(text, &fields)?;
            separator = ", ";
        }
        text.push('\n');
        Ok(())
    }
}

impl TextWriter {
    fn time(&mut self, text: &mut String, time: i64) -> std::fmt::Result {
        if self.format == ClockFormat::Seconds {
            let (seconds, nanoseconds) = split(time);
            return write!(text, "[{seconds}.{nanoseconds:09}] ");
        }
        let second = time.div_euclid(1_000_000_000);
        if self.second.as_ref().is_none_or(|(last, _)| *last != second) {
            let clock = Timestamp::from_second(second).map(|timestamp| timestamp.to_zoned(self.zone.clone()));
            let clock = clock.map_or(String::new(), |clock| clock.strftime("%H:%M:%S").to_string());
            self.second = Some((second, clock));
        }
        let clock = self.second.as_ref().map_or("", |(_, clock)| clock);
        write!(text, "[{clock}.{:09}] ", time.rem_euclid(1_000_000_000))
    }
}

fn split(nanoseconds: i64) -> (i64, u64) {
    let seconds = nanoseconds / 1_000_000_000;
    (seconds, (nanoseconds % 1_000_000_000).unsigned_abs())
}

fn structure(text: &mut String, value: &Fields<'_>) -> std::fmt::Result {
    fields(text, value.iter())
}

fn fields<'a>(text: &mut String, fields: impl Iterator<Item = (&'a str, Value<'a>)>) -> std::fmt::Result {
    text.push('{');
    let mut separator = " ";
    for (name, field) in fields {
        write!(text, "{separator}{name} = ")?;
        value(text, &field)?;
        separator = ", ";
    }
    text.push_str(" }");
    Ok(())
}

fn value(text: &mut String, field: &Value<'_>) -> std::fmt::Result {
    match field {
        Value::Integer(integer) => match integer.labels() {
            Some(labels) => {
                text.push_str("( ");
                let labels: Vec<&str> = labels.collect();
                match labels.as_slice() {
                    [] => text.push_str("<unknown>"),
                    [label] => quoted(text, label.as_bytes()),
                    several => {
                        text.push_str("{ ");
                        for (index, label) in several.iter().enumerate() {
                            if index > 0 {
                                text.push_str(", ");
                            }
                            quoted(text, label.as_bytes());
                        }
                        text.push_str(" }");
                    }
                }
                text.push_str(" : container = ");
                number(text, integer)?;
                text.push_str(" )");
                Ok(())
            }
            None => number(text, integer),
        },
        Value::Float(float) => {
            general(text, *float);
            Ok(())
        }
        Value::Text(bytes) => {
            quoted(text, bytes);
            Ok(())
        }
        Value::WideText(wide) => {
            quoted(text, wide.chars().collect::<String>().as_bytes());
            Ok(())
        }
        Value::Blob(bytes) => {
            text.push_str("{ ");
            bytes.iter().try_for_each(|byte| write!(text, "{byte:02x} "))?;
            text.push('}');
            Ok(())
        }
        Value::Struct(fields) => structure(text, fields),
        Value::Variant(chosen) => {
            text.push_str("{ ");
            if let Some(chosen) = chosen.value() {
                value(text, &chosen)?;
            }
            text.push_str(" }");
            Ok(())
        }
        Value::Optional(chosen) => match chosen.and_then(|chosen| chosen.value()) {
            Some(chosen) => {
                text.push_str("{ ");
                value(text, &chosen)?;
                text.push_str(" }");
                Ok(())
            }
            None => {
                text.push_str("<none>");
                Ok(())
            }
        },
        Value::Flags(bits) => flags(text, bits),
        Value::Boolean(is_true) => write!(text, "{is_true}"),
        Value::Array(elements) => {
            text.push('[');
            let mut separator = " ";
            for (index, element) in elements.iter().enumerate() {
                write!(text, "{separator}[{index}] = ")?;
                value(text, &element)?;
                separator = ", ";
            }
            text.push_str(" ]");
            Ok(())
        }
    }
}

fn flags(text: &mut String, flags: &Flags<'_>) -> std::fmt::Result {
    write!(text, "0x{:X}", flags.bits())?;
    let mut separator = " { ";
    for name in flags.names() {
        text.push_str(separator);
        quoted(text, name.as_bytes());
        separator = ", ";
    }
    if separator == ", " {
        text.push_str(" }");
    }
    Ok(())
}

fn number(text: &mut String, integer: &IntegerValue<'_>) -> std::fmt::Result {
    let class = integer.class();
    let mask = if class.size >= 64 {
        u64::MAX
    } else {
        (1 << class.size) - 1
    };
    let bits = integer.value() as u64 & mask;
    match class.base {
        Base::Decimal => write!(text, "{integer}"),
        Base::Hexadecimal => write!(text, "0x{bits:X}"),
        Base::Octal => write!(text, "0{bits:o}"),
        Base::Binary => write!(text, "0b{bits:0width$b}", width = class.size as usize),
    }
}

fn quoted(text: &mut String, bytes: &[u8]) {
    text.push('"');
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '"' | '\'' | '?' | '\\' => {
                text.push('\\');
                text.push(character);
            }
            '\x07' => text.push_str("\\a"),
            '\x08' => text.push_str("\\b"),
            '\x0c' => text.push_str("\\f"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\x0b' => text.push_str("\\v"),
            control if control.is_ascii_control() => {
                let _ = write!(text, "\\x{:02x}", control as u32);
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

/// C's `%g`: six significant digits, no zeros at the end.
fn general(text: &mut String, value: f64) {
    if !value.is_finite() {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        text.push_str(sign);
        text.push_str(if value.is_nan() { "nan" } else { "inf" });
        return;
    }
    // Rust's own exponent form rounds to the digits that decide which form C takes.
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let decimals = (5 - exponent) as usize;
        text.push_str(without_zeros(&format!("{value:.decimals$}")));
    } else {
        text.push_str(without_zeros(mantissa));
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(text, "e{sign}{:02}", exponent.unsigned_abs());
    }
}

fn without_zeros(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn like_the_format_g_of_c() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (1e6, "1e+06"),
            (123_456.7, "123457"),
            (999_999.5, "1e+06"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (-2.5e-100, "-2.5e-100"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let mut text = String::new();
            super::general(&mut text, value);
            assert_eq!(text, expected);
        }
    }
}
