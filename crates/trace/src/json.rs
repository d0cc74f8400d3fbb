//! Events as JSON, an object a line.

use crate::digits::{decimal, signed};
use crate::read::{Event, Fields, Value};
use std::io::Write;

/// Prints events as JSON, one object a line: `section` (of the RFC) or `stream` (the file's name), `name`, `ts` (nanoseconds
/// from the clock's origin), where there are such `packet` (fields of the packet's context) and `context`, and `fields`.
///
/// Numbers stay numbers, those of enumerations too. Text that is not UTF-8 has replacement characters, and what JSON has no
/// number for, such as infinity, is null. Bits with names are an object, BLOBs a string of
/// hexadecimal digits.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonWriter;

impl JsonWriter {
    /// Appends the event's line to `text`.
    pub fn event(&self, text: &mut Vec<u8>, event: &Event<'_>) {
        // Writing to memory cannot fail.
        let _ = line(text, event);
    }
}

fn line(text: &mut Vec<u8>, event: &Event<'_>) -> std::io::Result<()> {
    match event.section() {
        Some(name) => {
            text.extend_from_slice(b"{\"section\": ");
            string(text, name);
        }
        None => {
            text.extend_from_slice(b"{\"stream\": ");
            let file = event.path().file_name().unwrap_or_default();
            string(text, &file.to_string_lossy());
        }
    }
    text.extend_from_slice(b", \"name\": ");
    string(text, event.name());
    text.extend_from_slice(b", \"ts\": ");
    match event.time() {
        Some(time) => signed(text, time),
        None => text.extend_from_slice(b"null"),
    }
    if let Some(context) = event.packet_context() {
        object(text, ", \"packet\": ", &mut context.without_roles(), true)?;
    }
    let contexts = [event.stream_context(), event.context()];
    let mut contexts = contexts.iter().flatten().flat_map(Fields::iter);
    object(text, ", \"context\": ", &mut contexts, true)?;
    let payload = event.payload();
    let mut fields = payload.iter().flat_map(Fields::iter);
    object(text, ", \"fields\": ", &mut fields, false)?;
    text.extend_from_slice(b"}\n");
    Ok(())
}

/// Fields as an object, or nothing where there are none and they are not `needed`.
fn object<'a>(
    text: &mut Vec<u8>,
    before: &str,
    fields: &mut dyn Iterator<Item = (&'a str, Value<'a>)>,
    only_if_any: bool,
) -> std::io::Result<()> {
    let mut separator = "";
    for (name, field) in fields {
        if separator.is_empty() {
            text.extend_from_slice(before.as_bytes());
            text.push(b'{');
        }
        text.extend_from_slice(separator.as_bytes());
        string(text, name);
        text.extend_from_slice(b": ");
        value(text, &field)?;
        separator = ", ";
    }
    match (separator, only_if_any) {
        ("", true) => {}
        ("", false) => {
            text.extend_from_slice(before.as_bytes());
            text.extend_from_slice(b"{}");
        }
        _ => text.push(b'}'),
    }
    Ok(())
}

fn value(text: &mut Vec<u8>, field: &Value<'_>) -> std::io::Result<()> {
    match field {
        Value::Integer(integer) => {
            match integer.class().signed {
                true => signed(text, integer.bits() as i64),
                false => decimal(text, integer.bits()),
            }
            Ok(())
        }
        Value::Float(float) if float.is_finite() => write!(text, "{float:?}"),
        Value::Float(_) => {
            text.extend_from_slice(b"null");
            Ok(())
        }
        Value::Text(bytes) => {
            string(text, &String::from_utf8_lossy(bytes));
            Ok(())
        }
        Value::WideText(wide) => {
            string(text, &wide.chars().collect::<String>());
            Ok(())
        }
        Value::Blob(bytes) => {
            text.push(b'"');
            bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
            text.push(b'"');
            Ok(())
        }
        Value::Boolean(is_true) => write!(text, "{is_true}"),
        Value::Flags(flags) => {
            write!(text, "{{\"bits\": {}, \"flags\": ", flags.bits())?;
            list(text, flags.names(), |text, name| {
                string(text, name);
                Ok(())
            })?;
            text.push(b'}');
            Ok(())
        }
        Value::Struct(fields) => object(text, "", &mut fields.iter(), false),
        Value::Array(elements) => list(text, elements.iter(), |text, element| value(text, &element)),
        Value::Variant(chosen) => one(text, chosen.value()),
        Value::Optional(chosen) => one(text, chosen.and_then(|chosen| chosen.value())),
    }
}

fn one(text: &mut Vec<u8>, field: Option<Value<'_>>) -> std::io::Result<()> {
    match field {
        Some(field) => value(text, &field),
        None => {
            text.extend_from_slice(b"null");
            Ok(())
        }
    }
}

fn list<T>(
    text: &mut Vec<u8>,
    elements: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T) -> std::io::Result<()>,
) -> std::io::Result<()> {
    text.push(b'[');
    for (index, element) in elements.enumerate() {
        if index > 0 {
            text.extend_from_slice(b", ");
        }
        write(text, element)?;
    }
    text.push(b']');
    Ok(())
}

fn string(text: &mut Vec<u8>, value: &str) {
    // A string has no value that JSON lacks.
    let _ = serde_json::to_writer(text, value);
}
