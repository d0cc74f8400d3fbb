//! The names of functions, in the form of V8's own perf maps: `JS:name script:line:column`.
//!
//! Perf maps have a sign for the compiler after `JS:`; without it, a function's code by all
//! compilers has one name.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::published::Published;
use super::{Machine, address, integer};
use crate::process_code::{ProcessCode, word};

/// Characters of the longest name or path that is shown.
const LONGEST_NAME: u64 = 1 << 10;
/// Characters of the longest script whose lines are counted.
const LONGEST_SCRIPT: u64 = 4 << 20;
/// Scripts whose lines are remembered.
const MOST_SCRIPTS: usize = 64;
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
pub(super) type Lines = FxHashMap<(u64, u64), Rc<[u32]>>;

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
                name: self.text(holder, LONGEST_NAME).unwrap_or_default(),
                position: None,
            },
        };
        let script = self.field(function, published.script_of)?;
        let script = (self.type_of(script)? == published.script).then_some(script);
        let path = script.and_then(|script| {
            let path = self.field(script, published.path)?;
            self.text(path, LONGEST_NAME)
        });
        let place = script.zip(scope.position);
        let place = place.and_then(|(script, position)| self.line_and_column(script, position));
        written(&scope.name, &path.unwrap_or_default(), place)
    }

    /// A scope is a number of words: flags, numbers, the names of variables, and what only some
    /// scopes have. Of these, a function's name comes first, and then what it is assigned to; the
    /// first two numbers in a row that follow are its position, if it is not among those before.
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
        let mut numbers = Vec::new();
        // The scope around it follows, and then another object.
        let mut may_be_name = true;
        for index in first..first.checked_add(WORDS_AFTER)? {
            let Some(word) = self.field(scope, index.checked_mul(8)?.checked_add(8)?) else {
                break;
            };
            // Places of variables may be negative numbers.
            if word as u32 == 0 {
                numbers.push(word);
                continue;
            }
            if numbers.len() >= 2 {
                break;
            }
            numbers.clear();
            let text = self.text(word, LONGEST_NAME).filter(|_| may_be_name);
            may_be_name = text.is_some();
            if let Some(text) = text.filter(|_| found.name.is_empty()) {
                found.name = text;
            }
        }
        found.position = match variables >= WITH_POSITION {
            true => self.integer(scope, at(POSITION)),
            // The place of a function's own name may come before.
            false => numbers.len().checked_sub(2).and_then(|at| integer(*numbers.get(at)?)),
        };
        Some(found)
    }

    fn line_and_column(&mut self, script: u64, position: u64) -> Option<(u64, u64)> {
        let source = self.field(script, self.known.published.source)?;
        let lines = match self.known.lines.get(&(script, source)) {
            Some(lines) => Rc::clone(lines),
            None => {
                let lines: Rc<[u32]> = starts_of_lines(&self.characters(source, LONGEST_SCRIPT)?).into();
                if self.known.lines.len() >= MOST_SCRIPTS {
                    self.known.lines.clear();
                }
                self.known.lines.insert((script, source), Rc::clone(&lines));
                lines
            }
        };
        let line = lines.partition_point(|start| u64::from(*start) <= position);
        let start = *lines.get(line.checked_sub(1)?)?;
        Some((line as u64, position - u64::from(start) + 1))
    }

    fn text(&mut self, string: u64, longest: u64) -> Option<String> {
        let text = String::from_utf16_lossy(&self.characters(string, longest)?);
        // Names are lines of a report.
        (!text.chars().any(char::is_control)).then_some(text)
    }

    /// The characters of a string, if there are at most `longest`.
    fn characters(&mut self, string: u64, longest: u64) -> Option<Vec<u16>> {
        let mut characters = Vec::new();
        // What is still to be read, the next one last.
        let mut parts = vec![(string, 0, None)];
        let mut left = MOST_PARTS;
        while let Some((string, from, count)) = parts.pop() {
            left = left.checked_sub(1)?;
            let strings = self.known.published.strings;
            let found = self.type_of(string)?;
            if found & strings.is_other & 0xffff != 0 {
                return None;
            }
            let length = u64::from(self.number(string, strings.length)? as u32);
            let count = count.unwrap_or(length);
            if characters.len() as u64 + count > longest || from + count > length {
                return None;
            }
            let storage = found & strings.storage;
            let size = if found & strings.is_one_byte != 0 { 1 } else { 2 };
            if storage == strings.joined {
                // Parts of such strings are made one string first.
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
                    word(self.process, address(string)?.checked_add(strings.resource + 8)?)?
                } else {
                    return None;
                };
                let mut bytes = vec![0; (size * count) as usize];
                if self.process.read(begin.checked_add(size * from)?, &mut bytes) != bytes.len() {
                    return None;
                }
                match size {
                    1 => characters.extend(bytes.into_iter().map(u16::from)),
                    _ => characters.extend(bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair))),
                }
            }
        }
        Some(characters)
    }
}

/// Where lines begin (ECMA-262, "Line Terminators").
fn starts_of_lines(text: &[u16]) -> Vec<u32> {
    const LF: u16 = b'\n' as u16;
    const CR: u16 = b'\r' as u16;
    const SEPARATORS: [u16; 2] = [0x2028, 0x2029];
    let ends = text.iter().enumerate().filter(|&(at, character)| match *character {
        LF => true,
        CR => text.get(at + 1) != Some(&LF),
        other => SEPARATORS.contains(&other),
    });
    std::iter::once(0).chain(ends.map(|(at, _)| at as u32 + 1)).collect()
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
        let text: Vec<u16> = "a\nb\r\nc\rd\u{2028}e".encode_utf16().collect();
        assert_eq!(starts_of_lines(&text), [0, 2, 5, 7, 9]);
        assert_eq!(starts_of_lines(&[]), [0]);
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
