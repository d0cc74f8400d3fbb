//! Prints the fields of events as JSON.

use super::bytes::{HIGHEST, Piece, below, equal};
use super::digits::{decimal, signed};
use super::level::level_name;
use crate::plan::{Field, Node, Raw, Shape};
use crate::read::{Event, Fields, PlainClass, Value, View, float};
use std::io::Write;

/// The start of a stream's lines.
pub(super) fn stream(event: &Event<'_>) -> Piece {
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

/// The next part, up to the time, which all events of a class share.
pub(super) fn name(name: &str) -> Piece {
    let mut text = b", \"name\": ".to_vec();
    string(&mut text, name.as_bytes());
    text.extend_from_slice(b", \"ts\": ");
    Piece::new(text)
}

/// How JSON prints a field.
pub(super) struct FieldJson {
    /// Text before the value of a member.
    key: Piece,
    /// Of a number, which most fields are: whether it is signed.
    signed: Option<bool>,
}

impl FieldJson {
    pub(super) fn of(field: &Field) -> FieldJson {
        let mut key = Vec::new();
        string(&mut key, field.name.as_bytes());
        key.extend_from_slice(b": ");
        FieldJson {
            key: Piece::new(key),
            signed: match &field.shape {
                Shape::Integer(class) | Shape::Enumeration(class, _) => Some(class.signed),
                _ => None,
            },
        }
    }
}

/// The fields of the packet's context, without sizes and counters; perhaps none.
pub(super) fn packet_context(context: Fields<'_>, fields: &[FieldJson]) -> Piece {
    let mut text = Vec::new();
    if context.without_roles().next().is_some() {
        text.extend_from_slice(b", \"packet\": {");
        Printer::new(&context, fields, false).members(&mut text, context.node, true);
        close(&mut text, b'}');
    }
    Piece::new(text)
}

/// The event's level and clock, and its packet's context with labels.
pub(super) fn labels(text: &mut Vec<u8>, event: &Event<'_>, fields: &[FieldJson]) {
    // Writing to memory cannot fail.
    if let Some(level) = event.class().log_level {
        _ = write!(text, ", \"level\": {{\"number\": {level}");
        if let Some(name) = level_name(level) {
            _ = write!(text, ", \"name\": \"{name}\"");
        }
        text.push(b'}');
    }
    if let Some((clock, cycles)) = event.clock().zip(event.cycles()) {
        text.extend_from_slice(b", \"clock\": {\"name\": ");
        string(text, clock.name.as_bytes());
        _ = write!(text, ", \"cycles\": {cycles}}}");
    }
    let context = event.packet_context();
    if let Some(context) = context.filter(|context| context.without_roles().next().is_some()) {
        text.extend_from_slice(b", \"packet\": {");
        Printer::new(&context, fields, true).members(text, context.node, true);
        close(text, b'}');
    }
}

/// Printed after each member and each element, and removed after the last.
const COMMA: &[u8] = b", ";

/// Ends a list or an object, and removes the comma after the last member.
pub(super) fn close(text: &mut Vec<u8>, bracket: u8) {
    if text.ends_with(COMMA) {
        text.truncate(text.len() - COMMA.len());
    }
    text.push(bracket);
}

/// Prints the fields of a struct.
pub(super) struct Printer<'a> {
    view: View<'a>,
    /// By field.
    fields: &'a [FieldJson],
    /// Whether enumerations have their labels.
    labels: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(of: &Fields<'a>, fields: &'a [FieldJson], labels: bool) -> Printer<'a> {
        let view = of.view;
        Printer { view, fields, labels }
    }

    /// Prints the members of a struct, each followed by a comma; `without_roles` leaves out those
    /// that describe the trace's structure.
    pub(super) fn members(&self, text: &mut Vec<u8>, node: usize, without_roles: bool) {
        let end = self.view.after(node);
        let mut member = node + 1;
        while member < end {
            if !(without_roles && self.view.field(member).role().is_some()) {
                let Node { field, raw } = self.view.node(member);
                let field = &self.fields[field as usize];
                field.key.append(text);
                match (field.signed, raw) {
                    (Some(signed), Raw::Bits(bits)) if !self.labels => number(text, bits, signed),
                    _ => self.value(text, member),
                }
                text.extend_from_slice(COMMA);
            }
            member = self.view.after(member);
        }
    }

    /// A value, or null.
    fn value(&self, text: &mut Vec<u8>, node: usize) {
        match self.view.value(node) {
            Some(Value::Integer(integer)) => match integer.labels().filter(|_| self.labels) {
                Some(labels) => {
                    text.extend_from_slice(b"{\"value\": ");
                    number(text, integer.bits(), integer.class().signed);
                    text.extend_from_slice(b", \"labels\": [");
                    for label in labels {
                        string(text, label.as_bytes());
                        text.extend_from_slice(COMMA);
                    }
                    close(text, b']');
                    text.push(b'}');
                }
                None => number(text, integer.bits(), integer.class().signed),
            },
            Some(Value::Text(bytes)) => string(text, bytes),
            Some(Value::WideText(wide)) => string(text, wide.chars().collect::<String>().as_bytes()),
            Some(Value::Struct(_)) => {
                text.push(b'{');
                self.members(text, node, false);
                close(text, b'}');
            }
            Some(Value::Array(elements)) => self.elements(text, node, elements.len()),
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
            Some(Value::Variant(_) | Value::Optional(Some(_))) => self.value(text, node + 1),
            Some(Value::Optional(None)) | None => text.extend_from_slice(b"null"),
        }
    }

    fn elements(&self, text: &mut Vec<u8>, node: usize, count: usize) {
        text.push(b'[');
        match self.view.plain_elements(node) {
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
                    self.value(text, element);
                    text.extend_from_slice(COMMA);
                    element = self.view.after(element);
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
        // JSON can express every string.
        let _ = serde_json::to_writer(text, &String::from_utf8_lossy(bytes));
        return;
    }
    text.push(b'"');
    text.extend_from_slice(bytes);
    text.push(b'"');
}

/// Whether all of it is ASCII that JSON does not escape.
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
                // Only quotes are added.
                let is_as_it_is = expected.len() == bytes.len() + 2 && byte < 0x80;
                assert_eq!(is_plain(&bytes), is_as_it_is, "{byte:#x} at {place}");
            }
        }
    }
}
