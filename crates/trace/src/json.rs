//! Events as JSON, an object a line.

use crate::bytes::{HIGHEST, Piece, below, equal};
use crate::digits::{decimal, signed};
use crate::plan::{Raw, Shape};
use crate::read::{Event, Fields, PlainClass, Value, View, float};
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
        event.json_stream().append(text);
        event.json_name().append(text);
        match event.time() {
            Some(time) => signed(text, time),
            None => text.extend_from_slice(b"null"),
        }
        event.packet_context_json().append(text);
        let contexts = [event.stream_context(), event.context()];
        if contexts.iter().flatten().any(|fields| !fields.is_empty()) {
            text.extend_from_slice(b", \"context\": {");
            for fields in contexts.into_iter().flatten() {
                fields.view.json_members(text, fields.node, false);
            }
            close(text, b'}');
        }
        text.extend_from_slice(b", \"fields\": {");
        if let Some(fields) = event.payload() {
            fields.view.json_members(text, fields.node, false);
        }
        close(text, b'}');
        text.extend_from_slice(b"}\n");
    }
}

/// What the lines of a stream begin with.
pub(crate) fn stream(event: &Event<'_>) -> Piece {
    let mut text = Vec::new();
    match event.section() {
        Some(name) => {
            text.extend_from_slice(b"{\"section\": ");
            string(&mut text, name.as_bytes());
        }
        None => {
            text.extend_from_slice(b"{\"stream\": ");
            let file = event.path().file_name().unwrap_or_default();
            string(&mut text, file.as_encoded_bytes());
        }
    }
    Piece::new(text)
}

/// What follows in those of a class of events, up to the time.
pub(crate) fn name(name: &str) -> Piece {
    let mut text = b", \"name\": ".to_vec();
    string(&mut text, name.as_bytes());
    text.extend_from_slice(b", \"ts\": ");
    Piece::new(text)
}

/// What an object has before the value of a member.
pub(crate) fn key(name: &str) -> Piece {
    let mut text = Vec::new();
    string(&mut text, name.as_bytes());
    text.extend_from_slice(b": ");
    Piece::new(text)
}

/// What lines have of their packet's context: what says nothing of the layout, and where that is nothing, nothing.
pub(crate) fn packet_context(context: Fields<'_>) -> Piece {
    let mut text = Vec::new();
    if context.without_roles().next().is_some() {
        text.extend_from_slice(b", \"packet\": {");
        context.view.json_members(&mut text, context.node, true);
        close(&mut text, b'}');
    }
    Piece::new(text)
}

/// What follows each member and each element, until there is none.
const COMMA: &[u8] = b", ";

/// Ends a list or an object, of which the last member has a comma too many.
fn close(text: &mut Vec<u8>, bracket: u8) {
    if text.ends_with(COMMA) {
        text.truncate(text.len() - COMMA.len());
    }
    text.push(bracket);
}

impl View<'_> {
    /// The members of a struct, each with a comma behind; `without_roles` leaves out what describes the trace's structure.
    fn json_members(&self, text: &mut Vec<u8>, node: usize, without_roles: bool) {
        let end = self.after(node);
        let mut member = node + 1;
        while member < end {
            let field = self.field(member);
            if !(without_roles && field.role().is_some()) {
                field.key.append(text);
                match (&field.shape, self.raw(member)) {
                    // What there is most of.
                    (Shape::Integer(class) | Shape::Enumeration(class, _), Raw::Bits(bits)) => {
                        number(text, bits, class.signed);
                    }
                    _ => self.json(text, member),
                }
                text.extend_from_slice(COMMA);
            }
            member = self.after(member);
        }
    }

    /// A value; null where there is none.
    fn json(&self, text: &mut Vec<u8>, node: usize) {
        match self.value(node) {
            Some(Value::Integer(integer)) => number(text, integer.bits(), integer.class().signed),
            Some(Value::Text(bytes)) => string(text, bytes),
            Some(Value::WideText(wide)) => string(text, wide.chars().collect::<String>().as_bytes()),
            Some(Value::Struct(_)) => {
                text.push(b'{');
                self.json_members(text, node, false);
                close(text, b'}');
            }
            Some(Value::Array(elements)) => self.json_elements(text, node, elements.len()),
            Some(Value::Float(value)) => real(text, value),
            // Writing to memory cannot fail.
            Some(Value::Blob(bytes)) => {
                text.push(b'"');
                bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
                text.push(b'"');
            }
            Some(Value::Boolean(is_true)) => _ = write!(text, "{is_true}"),
            Some(Value::Flags(flags)) => {
                _ = write!(text, "{{\"bits\": {}, \"flags\": [", flags.bits());
                for name in flags.names() {
                    string(text, name.as_bytes());
                    text.extend_from_slice(COMMA);
                }
                close(text, b']');
                text.push(b'}');
            }
            Some(Value::Variant(_) | Value::Optional(Some(_))) => self.json(text, node + 1),
            Some(Value::Optional(None)) | None => text.extend_from_slice(b"null"),
        }
    }

    fn json_elements(&self, text: &mut Vec<u8>, node: usize, count: usize) {
        text.push(b'[');
        match self.plain_elements(node) {
            Some((PlainClass::Integer(class), values)) => values.for_each(|bits| {
                number(text, bits, class.signed);
                text.extend_from_slice(COMMA);
            }),
            Some((PlainClass::Float(size), values)) => values.for_each(|bits| {
                real(text, float(size, bits));
                text.extend_from_slice(COMMA);
            }),
            None => {
                let mut element = node + 1;
                for _ in 0..count {
                    self.json(text, element);
                    text.extend_from_slice(COMMA);
                    element = self.after(element);
                }
            }
        }
        close(text, b']');
    }
}

#[inline]
fn number(text: &mut Vec<u8>, bits: u64, is_signed: bool) {
    match is_signed {
        true => signed(text, bits as i64),
        false => decimal(text, bits),
    }
}

fn real(text: &mut Vec<u8>, value: f64) {
    match value.is_finite() {
        // Writing to memory cannot fail.
        true => _ = write!(text, "{value:?}"),
        false => text.extend_from_slice(b"null"),
    }
}

#[inline]
fn string(text: &mut Vec<u8>, bytes: &[u8]) {
    if !is_plain(bytes) {
        // A string has no value that JSON lacks.
        let _ = serde_json::to_writer(text, &String::from_utf8_lossy(bytes));
        return;
    }
    text.push(b'"');
    text.extend_from_slice(bytes);
    text.push(b'"');
}

/// Whether all of it is ASCII that JSON has as it is.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let (eights, rest) = bytes.as_chunks();
    let are_plain = |bytes: u64| {
        let own = equal(bytes, b'"') | equal(bytes, b'\\') | below(bytes, 0x20) | bytes;
        own & HIGHEST == 0
    };
    let is_plain = |byte: &u8| (0x20..0x80).contains(byte) && *byte != b'"' && *byte != b'\\';
    eights.iter().all(|&eight| are_plain(u64::from_le_bytes(eight))) && rest.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_what_serde_json_leaves_as_it_is() {
        for byte in 0..=u8::MAX {
            for place in 0..20 {
                let mut bytes = [b'a'; 20];
                bytes[place] = byte;
                let mut text = Vec::new();
                string(&mut text, &bytes);
                let expected = serde_json::to_string(&String::from_utf8_lossy(&bytes)).unwrap();
                assert_eq!(text, expected.as_bytes(), "{byte:#x} at {place}");
                // Quotes around it, and no more.
                let is_as_it_is = expected.len() == bytes.len() + 2 && byte < 0x80;
                assert_eq!(is_plain(&bytes), is_as_it_is, "{byte:#x} at {place}");
            }
        }
    }
}
