//! Words of metadata.

use backtrail_wire::Endian;

/// Words that cannot name a field (CTF 1.8.3, appendix C.1.2).
pub(super) const KEYWORDS: [&str; 27] = [
    "align",
    "const",
    "char",
    "clock",
    "double",
    "enum",
    "env",
    "event",
    "callsite",
    "floating_point",
    "float",
    "integer",
    "int",
    "long",
    "short",
    "signed",
    "stream",
    "string",
    "struct",
    "trace",
    "typealias",
    "typedef",
    "unsigned",
    "variant",
    "void",
    "_Bool",
    "_Complex",
];

/// How metadata writes a byte order.
pub const fn order_name(order: Endian) -> &'static str {
    match order {
        Endian::Little => "le",
        Endian::Big => "be",
    }
}

/// Whether a name needs no quotes.
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first == '_' || first.is_ascii_alphabetic())
        && name
            .chars()
            .all(|character| character == '_' || character.is_ascii_alphanumeric())
}

/// A text in quotes, with escapes.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "two more than the length of a text in memory"
)]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            // Octal, since hexadecimal escapes of C have no end.
            control if control.is_ascii_control() => quoted.push_str(&format!("\\{:03o}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
