//! Tables in which each value occurs once, and names that are safe to show.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Distinct values, numbered from 0.
#[derive(Debug)]
pub(crate) struct Table<T> {
    numbers: FxHashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table {
            numbers: FxHashMap::default(),
            values: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    /// The number of the value.
    pub(crate) fn of(&mut self, value: T) -> u32 {
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.values.push(value.clone());
            self.values.len() as u32 - 1
        })
    }

    /// All values by number.
    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }
}

impl Table<String> {
    /// The number of the text.
    pub(crate) fn text(&mut self, text: &str) -> u32 {
        match self.numbers.get(text) {
            Some(&number) => number,
            None => self.of(text.to_owned()),
        }
    }
}

/// Whether a character would move the cursor, or change the direction or place of text around it.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text with such characters spelled out, `<U+202E>`.
pub(crate) fn visible(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return text.into();
    }
    let mut shown = String::new();
    for c in text.chars() {
        match is_hostile(c) {
            true => shown.push_str(&format!("<U+{:04X}>", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
