//! The names of functions, in the form of V8's own perf maps: `JS:name script:line:column`.
//!
//! Perf maps have a sign for the compiler after `JS:`; without it, a function's code by all
//! compilers has one name.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::published::Published;
use super::{Machine, address, integer};
use crate::process_code::ProcessCode;

/// Characters of the longest name or path that is shown.
const LONGEST_NAME: u64 = 1 << 9;
/// Characters of the longest script whose lines are counted.
const LONGEST_SCRIPT: u64 = 32 << 20;
/// Lines of all scripts that are remembered.
const MOST_LINES: usize = 4 << 20;
/// Bytes of text that are read at once.
const BLOCK: usize = 16 << 10;
/// Strings that a string may be joined from, or be a part of, one within the other.
const MOST_PARTS: usize = 64;
/// From this number on, a scope has the names of its variables in a table of their own.
const MOST_INLINE_NAMES: u64 = 75;
/// Words of a scope after its variables that may have the function's name and position.
const WORDS_AFTER: u64 = 8;
/// The first word of a scope that its kind of V8 has only since positions are in the part that all
/// scopes have, and where they are there, in words after the map.
const WITH_POSITION: u64 = 5;
const POSITION: u64 = 3;

/// Where the lines of scripts begin, by script and its text.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of_scripts: FxHashMap<(u64, u64), Rc<[u32]>>,
    count: usize,
}

impl Lines {
    fn remember(&mut self, key: (u64, u64), lines: Rc<[u32]>) {
        self.count += lines.len();
        if self.count > MOST_LINES {
            self.of_scripts.clear();
            self.count = lines.len();
        }
        self.of_scripts.insert(key, lines);
    }
}

/// What a scope says of its function.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scope {
    name: String,
    /// The first character after the name, in the script.
    position: Option<u64>,
}

impl<C: ProcessCode> Machine<'_, C> {
    /// The name of a function of the source; `None` if nothing is known of it.
    pub(super) fn name(&mut self, function: u64) -> Option<String> {
        let published = self.known.published;
        let holder = self.field(function, published.name)?;
        let scope = match self.type_of(holder) {
            Some(found) if found == published.scope => self.scope(holder)?,
            _ => Scope {
                name: self.text(holder).unwrap_or_default(),
                position: None,
            },
        };
        let script = self.field(function, published.script_of)?;
        let script = (self.type_of(script)? == published.script).then_some(script);
        let path = script.and_then(|script| {
            let path = self.field(script, published.path)?;
            self.text(path)
        });
        let place = script.zip(scope.position);
        let place = place.and_then(|(script, position)| self.line_and_column(script, position));
        written(&scope.name, &path.unwrap_or_default(), place)
    }

    /// A scope is a number of words: flags, numbers, the names of variables, and what only some
    /// scopes have. Of these, a function's name comes first, and then what it is assigned to; its
    /// position follows, if it is not among the words before, and the scope around it.
    fn scope(&mut self, scope: u64) -> Option<Scope> {
        let Published { locals, variables, .. } = self.known.published;
        let at = |index: u64| 8 * (1 + index);
        let count = self.integer(scope, at(locals))?;
        let names = match count < MOST_INLINE_NAMES {
            true => count,
            false => 1,
        };
        let first = variables.checked_add(count)?.checked_add(names)?;
        let mut found = Scope::default();
        if variables >= WITH_POSITION {
            found.position = self.integer(scope, at(POSITION));
        }
        // The numbers since the last reference.
        let mut numbers = Vec::new();
        for index in first..first.checked_add(WORDS_AFTER)? {
            let Some(word) = self.field(scope, index.checked_mul(8)?.checked_add(8)?) else {
                break;
            };
            if word as u32 == 0 {
                numbers.push(word);
                continue;
            }
            found.position = found.position.or_else(|| position(&numbers));
            numbers.clear();
            if self.type_of(word) == Some(self.known.published.scope) {
                break;
            }
            if found.name.is_empty() {
                found.name = self.text(word).unwrap_or_default();
            }
        }
        Some(found)
    }

    fn line_and_column(&mut self, script: u64, position: u64) -> Option<(u64, u64)> {
        let source = self.field(script, self.known.published.source)?;
        let lines = match self.known.lines.of_scripts.get(&(script, source)) {
            Some(lines) => Rc::clone(lines),
            None => {
                let mut starts = Starts::new();
                self.read_string(source, LONGEST_SCRIPT, |read| starts.count(read))?;
                let lines: Rc<[u32]> = starts.end()?.into();
                self.known.lines.remember((script, source), Rc::clone(&lines));
                lines
            }
        };
        let line = lines.partition_point(|start| u64::from(*start) <= position);
        let start = *lines.get(line.checked_sub(1)?)?;
        Some((line as u64, position - u64::from(start) + 1))
    }

    /// A name or a path.
    fn text(&mut self, string: u64) -> Option<String> {
        let mut characters = Vec::new();
        self.read_string(string, LONGEST_NAME, |read| characters.extend_from_slice(read))?;
        let text = String::from_utf16_lossy(&characters);
        // Names are lines of a report.
        (!text.chars().any(char::is_control)).then_some(text)
    }

    /// Passes the characters of a string on, a part at a time, if there are at most `longest`.
    fn read_string(&mut self, string: u64, longest: u64, mut take: impl FnMut(&[u16])) -> Option<()> {
        // What is still to be read, the next one last: how many characters, from which on.
        let mut parts = vec![(string, 0, None)];
        let (mut left, mut left_parts) = (longest, MOST_PARTS);
        while let Some((string, from, count)) = parts.pop() {
            left_parts = left_parts.checked_sub(1)?;
            let strings = self.known.published.strings;
            let found = self.type_of(string)?;
            if found & strings.is_other & 0xffff != 0 {
                return None;
            }
            let length = self.number(string, strings.length)?;
            let count = count.unwrap_or(length);
            if from + count > length {
                return None;
            }
            let storage = found & strings.storage;
            if storage == strings.joined {
                // Strings are made of one part before parts of them are taken.
                if (from, count) != (0, length) {
                    return None;
                }
                parts.push((self.field(string, strings.second)?, 0, None));
                parts.push((self.field(string, strings.first)?, 0, None));
            } else if storage == strings.thin {
                parts.push((self.field(string, strings.actual)?, from, Some(count)));
            } else if storage == strings.part {
                let offset = self.integer(string, strings.offset)?;
                parts.push((self.field(string, strings.parent)?, from + offset, Some(count)));
            } else {
                let begin = if storage == strings.sequential {
                    address(string)?.checked_add(strings.characters)?
                } else if storage == strings.external {
                    // The next word is where the resource has its characters.
                    self.field(string, strings.resource + 8)?
                } else {
                    return None;
                };
                left = left.checked_sub(count)?;
                let size = if found & strings.is_one_byte != 0 { 1 } else { 2 };
                self.read_characters(begin.checked_add(size * from)?, count, size, &mut take)?;
            }
        }
        Some(())
    }

    fn read_characters(&self, mut at: u64, mut count: u64, size: u64, take: &mut impl FnMut(&[u16])) -> Option<()> {
        let mut bytes = [0; BLOCK];
        let mut characters = Vec::with_capacity(BLOCK);
        while count > 0 {
            let now = count.min(BLOCK as u64 / size);
            let bytes = bytes.get_mut(..(now * size) as usize)?;
            if self.process.read(at, bytes) != bytes.len() {
                return None;
            }
            characters.clear();
            match size {
                1 => characters.extend(bytes.iter().map(|byte| u16::from(*byte))),
                _ => characters.extend(bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair))),
            }
            take(&characters);
            at = at.checked_add(now * size)?;
            count -= now;
        }
        Some(())
    }
}

/// The position that ends these numbers of a scope: a first character, and the one after the last.
/// A variable's place may come before; it may be negative.
fn position(numbers: &[u64]) -> Option<u64> {
    let [.., first, end] = *numbers else { return None };
    let (first, end) = (integer(first)?, integer(end)?);
    // A constructor that the language makes has no characters.
    (first <= end && end > 0).then_some(first)
}

/// Where lines begin (ECMA-262, "Line Terminators"), counted as the text is read.
#[derive(Debug)]
struct Starts {
    lines: Vec<u32>,
    /// Characters before.
    position: u32,
    after_cr: bool,
}

impl Starts {
    fn new() -> Starts {
        Starts {
            lines: vec![0],
            position: 0,
            after_cr: false,
        }
    }

    fn count(&mut self, text: &[u16]) {
        const LF: u16 = b'\n' as u16;
        const CR: u16 = b'\r' as u16;
        const SEPARATORS: [u16; 2] = [0x2028, 0x2029];
        for &character in text {
            // Both together are one end of a line.
            if self.after_cr && character != LF {
                self.push();
            }
            self.position += 1;
            self.after_cr = character == CR;
            if character == LF || SEPARATORS.contains(&character) {
                self.push();
            }
        }
    }

    fn push(&mut self) {
        if self.lines.len() <= MOST_LINES {
            self.lines.push(self.position);
        }
    }

    /// `None` if there are too many.
    fn end(mut self) -> Option<Vec<u32>> {
        if self.after_cr {
            self.push();
        }
        (self.lines.len() <= MOST_LINES).then_some(self.lines)
    }
}

fn written(name: &str, path: &str, place: Option<(u64, u64)>) -> Option<String> {
    let path = match place {
        Some((line, column)) => format!("{path}:{line}:{column}"),
        None => path.to_owned(),
    };
    match (name, path.as_str()) {
        ("", "") => None,
        ("", path) => Some(format!("JS:(anonymous) {path}")),
        (name, "") => Some(format!("JS:{name}")),
        (name, path) => Some(format!("JS:{name} {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_after_each_terminator() {
        let text: Vec<u16> = "a\nb\r\nc\rd\u{2028}e\r".encode_utf16().collect();
        // However it is read.
        for size in 1..=text.len() {
            let mut starts = Starts::new();
            text.chunks(size).for_each(|part| starts.count(part));
            assert_eq!(starts.end().as_deref(), Some(&[0, 2, 5, 7, 9, 11][..]), "{size}");
        }
        assert_eq!(Starts::new().end().as_deref(), Some(&[0][..]));
    }

    #[test]
    fn names_have_what_is_known() {
        let place = Some((3, 7));
        assert_eq!(written("f", "/a.js", place).as_deref(), Some("JS:f /a.js:3:7"));
        assert_eq!(written("", "/a.js", place).as_deref(), Some("JS:(anonymous) /a.js:3:7"));
        assert_eq!(written("f", "", None).as_deref(), Some("JS:f"));
        assert_eq!(written("", "", None), None);
    }
}
