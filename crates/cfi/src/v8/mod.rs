//! Names of functions that V8 has compiled, from what it publishes about its own memory.
//!
//! Programs such as node export the layout of V8's objects (`v8dbg_…`), for debuggers that read
//! cores. Every object begins with a reference to its map, which contains the object's type.
//! Instructions follow an object with a known type, so going back from an address leads to it. It
//! and the object that describes the instructions (`Code`) refer to each other.
//!
//! Optimized code leads to its function by what deoptimizing it needs. The baseline compiler's code
//! does not; but the function leads to the code, and the script has a list of its functions.
//! Scripts are known from their optimized functions.

mod names;
mod published;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rustc_hash::FxHashMap;

use self::published::{Published, find};
use crate::announced::{Function, Made};
use crate::libraries::Libraries;
use crate::process_code::{ProcessCode, number, word};

/// Instructions begin at multiples of this.
const ALIGNMENT: u64 = 32;
/// Bytes that are searched backwards at once, and in all: functions are not longer.
const CHUNK: usize = 2 << 10;
const LONGEST: u64 = 512 << 10;
/// Maps whose type is remembered.
const MOST_TYPES: usize = 1 << 12;
/// Words at the beginning of a `Code` that may lead to what its compiler has left there.
const FIRST_WORDS: usize = 5;
/// Words of a `Code` that are read: with where the instructions are.
const CODE_WORDS: usize = 8;
/// Elements of the array for deoptimization, without what follows the function.
const MOST_ELEMENTS: u64 = 16;
/// Limits of scripts whose functions are listed, and of functions in such lists.
const MOST_SCRIPTS: usize = 256;
const MOST_LISTED: usize = 1 << 17;
/// Words of a function up to its name.
const MOST_DATA: usize = 8;
/// Failed lookups before lists are read again: if that helped the last time, and at most.
const FIRST_PATIENCE: u32 = 16;
const LAST_PATIENCE: u32 = 1 << 16;
/// Words of a script up to its list of functions.
const SCRIPT_WORDS: u64 = 24;
/// Functions whose names are remembered.
const MOST_NAMES: usize = 1 << 13;

/// The two lowest bits of a reference, and those of a weak one.
const TAG_MASK: u64 = 3;
const TAG: u64 = 1;
const WEAK_TAG: u64 = 3;

/// V8 in the processes that run it.
#[derive(Debug)]
pub(crate) struct V8<P> {
    libraries: Libraries<P, Known>,
}

impl<P> Default for V8<P> {
    fn default() -> Self {
        V8 {
            libraries: Libraries::default(),
        }
    }
}

/// What is known of V8 in a process.
#[derive(Debug)]
struct Known {
    published: Published,
    /// The types of objects by their maps, which are never collected for objects of these types.
    types: FxHashMap<u64, u64>,
    listed: Listed,
    /// The names of functions; `None` for code of the baseline compiler.
    names: FxHashMap<Compiled, Option<String>>,
    lines: names::Lines,
}

/// The functions of scripts, by what they lead to.
#[derive(Debug, Default)]
struct Listed {
    scripts: Vec<u64>,
    functions: FxHashMap<u64, u64>,
    /// Failed lookups; as long as reading lists again doesn't help, it is done after twice as many.
    misses: u32,
    patience: u32,
}

/// A function's code. While all of this stays the same, it is the same function's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Compiled {
    instructions: Range<u64>,
    /// The object that describes it.
    code: u64,
    /// What its compiler has left there: references to arrays, or to the function's bytecode.
    left: [u64; FIRST_WORDS],
}

impl<P: Copy + Eq> V8<P> {
    /// The function at `pc`, if V8 made its code.
    pub(crate) fn function(&mut self, process: &impl ProcessCode<Place = P>, pc: u64) -> Option<Made> {
        let known = self.libraries.of(process, |process| {
            let (address, place, published) = find(process)?;
            Some((address, place, Known::new(published)))
        })?;
        let mut machine = Machine { process, known };
        let compiled = machine.compiled(pc)?;
        let name = machine.name_of(&compiled)?;
        Some(Made {
            function: Function::new(compiled.instructions, name),
            version: None,
        })
    }
}

impl Known {
    fn new(published: Published) -> Known {
        Known {
            published,
            types: FxHashMap::default(),
            listed: Listed::default(),
            names: FxHashMap::default(),
            lines: names::Lines::default(),
        }
    }
}

/// One process's V8.
struct Machine<'m, C> {
    process: &'m C,
    known: &'m mut Known,
}

impl<C: ProcessCode> Machine<'_, C> {
    /// Reads a word of an object.
    fn field(&self, object: u64, offset: u64) -> Option<u64> {
        word(self.process, address(object)?.checked_add(offset)?)
    }

    /// Reads a small integer of an object.
    fn integer(&self, object: u64, offset: u64) -> Option<u64> {
        integer(self.field(object, offset)?)
    }

    /// The type of an object.
    fn type_of(&mut self, object: u64) -> Option<u64> {
        let map = self.field(object, 0)?;
        self.type_by(map)
    }

    /// The type of the objects with this map.
    fn type_by(&mut self, map: u64) -> Option<u64> {
        if let Some(known) = self.known.types.get(&map) {
            return Some(*known);
        }
        let at = address(map)?.checked_add(self.known.published.instance_type)?;
        let found = number(self.process, at, 2)?;
        if self.known.types.len() >= MOST_TYPES {
            self.known.types.clear();
        }
        self.known.types.insert(map, found);
        Some(found)
    }

    /// The code with the instruction at `pc`: after the nearest header before it.
    fn compiled(&mut self, pc: u64) -> Option<Compiled> {
        let header = self.known.published.header;
        let highest = (pc - pc % ALIGNMENT).checked_sub(header)?;
        let lowest = pc.saturating_sub(LONGEST);
        let mut end = highest;
        while end > lowest {
            let mut chunk = [0; CHUNK];
            let begin = end.checked_sub(CHUNK as u64 - ALIGNMENT)?;
            let is_whole = self.process.read(begin, &mut chunk) == CHUNK;
            for at in (begin..=end).rev().step_by(ALIGNMENT as usize) {
                let map = match is_whole {
                    true => word_in(&chunk, at - begin)?,
                    // The memory may begin here.
                    false => word(self.process, at)?,
                };
                if map & TAG_MASK == TAG
                    && self.type_of(at | TAG) == Some(self.known.published.stream)
                    && let Some(compiled) = self.described(at)
                {
                    return compiled.instructions.contains(&pc).then_some(compiled);
                }
            }
            end = begin.checked_sub(ALIGNMENT)?;
        }
        None
    }

    /// The code after the object at `at`, if what describes it agrees.
    fn described(&mut self, at: u64) -> Option<Compiled> {
        let published = self.known.published;
        let start = at.checked_add(published.header)?;
        let stream = at | TAG;
        if published.stream == published.code {
            let size = self.number(stream, published.size?)?;
            return Some(Compiled {
                instructions: start..start.checked_add(size)?,
                code: stream,
                left: self.words(stream)?,
            });
        }
        for offset in (8..published.header).step_by(8) {
            let code = self.field(stream, offset)?;
            if code & TAG_MASK != TAG || self.type_of(code) != Some(published.code) {
                continue;
            }
            let words: [u64; CODE_WORDS] = self.words(code)?;
            let position = words.iter().position(|word| *word == start)?;
            if !words.contains(&stream) {
                return None;
            }
            let left = *words.first_chunk()?;
            let size = match published.size {
                Some(size) => self.number(code, size)?,
                // V8 11 has it two words after where the instructions are.
                None => self.number(code, 8 * (position as u64 + 3))?,
            };
            let end = start.checked_add(size)?;
            return Some(Compiled {
                instructions: start..self.next(at, end).unwrap_or(end),
                code,
                left,
            });
        }
        None
    }

    /// Where the instructions of the object at `at` must have ended, if another such object begins
    /// before `end`.
    fn next(&self, at: u64, end: u64) -> Option<u64> {
        let header = self.known.published.header;
        let length = end.checked_sub(at)?.min(LONGEST);
        let mut bytes = vec![0; length as usize];
        let read = self.process.read(at, &mut bytes) as u64;
        let map = word_in(&bytes, 0)?;
        let mut others = (at..at + read).step_by(ALIGNMENT as usize).skip(1);
        others.find(|other| *other >= at + header && word_in(&bytes, other - at) == Some(map))
    }

    fn number(&self, object: u64, offset: u64) -> Option<u64> {
        number(self.process, address(object)?.checked_add(offset)?, 4)
    }

    /// The words of an object after its map.
    fn words<const N: usize>(&self, object: u64) -> Option<[u64; N]> {
        let mut words = [[0; 8]; N];
        let bytes = words.as_flattened_mut();
        let whole = self.process.read(address(object)?.checked_add(8)?, bytes) == bytes.len();
        whole.then(|| words.map(u64::from_le_bytes))
    }

    /// The name of the function that this is the code of.
    fn name_of(&mut self, compiled: &Compiled) -> Option<String> {
        let function = match self.known.names.get(compiled) {
            Some(Some(name)) => return Some(name.clone()),
            Some(None) => None,
            None => self.optimized(compiled),
        };
        let function = function.or_else(|| self.baseline(compiled));
        let name = function.and_then(|function| self.name(function));
        if self.known.names.len() >= MOST_NAMES {
            self.known.names.clear();
        }
        if name.is_some() || function.is_none() {
            self.known.names.insert(compiled.clone(), name.clone());
        }
        name
    }

    /// The function of optimized code: the only one in the array that its deoptimization needs.
    fn optimized(&mut self, compiled: &Compiled) -> Option<u64> {
        let function = compiled
            .left
            .into_iter()
            .filter(|array| array & TAG_MASK == TAG)
            .find_map(|array| self.only_function(array))?;
        self.note_script(function);
        Some(function)
    }

    fn only_function(&mut self, array: u64) -> Option<u64> {
        let Published {
            arrays,
            array_length,
            elements,
            ..
        } = self.known.published;
        let found = self.type_of(array)?;
        if !arrays.contains(&Some(found)) {
            return None;
        }
        let length = self.integer(array, array_length)?.min(MOST_ELEMENTS);
        let mut only = None;
        for index in 0..length {
            let element = self.field(array, elements + 8 * index)?;
            if let Some(function) = self.as_function(element) {
                if only.is_some() {
                    return None;
                }
                only = Some(function);
            }
        }
        only
    }

    /// The function that a reference leads to, also by a wrapper.
    fn as_function(&mut self, element: u64) -> Option<u64> {
        if element & TAG_MASK != TAG {
            return None;
        }
        let found = self.type_of(element)?;
        if found == self.known.published.function {
            return Some(element);
        }
        if Some(found) != self.known.published.wrapper {
            return None;
        }
        let inner = self.field(element, 8)?;
        (self.type_of(inner)? == self.known.published.function).then_some(inner)
    }

    /// Lists the functions of a function's script, from now on.
    fn note_script(&mut self, function: u64) {
        let published = self.known.published;
        let Some(script) = self.field(function, published.script_of) else {
            return;
        };
        let listed = &self.known.listed;
        if listed.scripts.len() < MOST_SCRIPTS
            && !listed.scripts.contains(&script)
            && self.type_of(script) == Some(published.script)
        {
            self.known.listed.scripts.push(script);
            self.list(script);
        }
    }

    /// The function that leads to the baseline compiler's code, in the lists of scripts.
    fn baseline(&mut self, compiled: &Compiled) -> Option<u64> {
        let found = self.listed(compiled);
        let listed = &mut self.known.listed;
        if found.is_some() || listed.scripts.is_empty() {
            return found;
        }
        listed.misses = listed.misses.saturating_add(1);
        if listed.misses <= listed.patience {
            return None;
        }
        listed.misses = 0;
        listed.functions.clear();
        for script in listed.scripts.clone() {
            self.list(script);
        }
        let found = self.listed(compiled);
        let listed = &mut self.known.listed;
        listed.patience = match found {
            Some(_) => FIRST_PATIENCE,
            None => listed.patience.saturating_mul(2).clamp(FIRST_PATIENCE, LAST_PATIENCE),
        };
        found
    }

    fn listed(&mut self, compiled: &Compiled) -> Option<u64> {
        // Up to V8 10, functions may lead to an object that the code leads to.
        let last = match self.known.published.stream == self.known.published.code {
            true => compiled.left.get(FIRST_WORDS - 2).copied(),
            false => None,
        };
        [Some(compiled.code), last].into_iter().flatten().find_map(|led_to| {
            let function = *self.known.listed.functions.get(&led_to)?;
            let is_still = self.type_of(function) == Some(self.known.published.function)
                && self.data(function).any(|data| data == led_to);
            is_still.then_some(function)
        })
    }

    /// What a function leads to before its name: its code or bytecode.
    fn data(&self, function: u64) -> impl Iterator<Item = u64> {
        let offsets = (8..self.known.published.name).step_by(8);
        offsets.filter_map(move |offset| self.field(function, offset))
    }

    /// Lists the functions of a script, which has weak references to them.
    fn list(&mut self, script: u64) {
        let Published {
            array_length,
            elements,
            weak_array,
            ..
        } = self.known.published;
        if self.type_of(script) != Some(self.known.published.script) {
            return;
        }
        for offset in (1..SCRIPT_WORDS).map(|word| 8 * word) {
            let Some(array) = self.field(script, offset).filter(|array| array & TAG_MASK == TAG) else {
                continue;
            };
            if self.type_of(array) != Some(weak_array) {
                continue;
            }
            let left = MOST_LISTED.saturating_sub(self.known.listed.functions.len());
            let length = self.integer(array, array_length).unwrap_or(0).min(left as u64);
            let mut bytes = vec![0; 8 * length as usize];
            let first = address(array).and_then(|at| at.checked_add(elements));
            let read = first.map(|first| self.process.read(first, &mut bytes));
            for element in words_in(&bytes[..read.unwrap_or(0)]) {
                if element & TAG_MASK == WEAK_TAG {
                    self.list_function(element & !TAG_MASK | TAG);
                }
            }
        }
    }

    fn list_function(&mut self, function: u64) {
        // From its map on, which is the first word.
        let mut bytes = [0; 8 * MOST_DATA];
        let Published {
            name, function: kind, ..
        } = self.known.published;
        let (Some(bytes), Some(at)) = (bytes.get_mut(..name as usize), address(function)) else {
            return;
        };
        if self.process.read(at, bytes) != bytes.len() {
            return;
        }
        let mut words = words_in(bytes);
        if words.next().and_then(|map| self.type_by(map)) == Some(kind) {
            let led_to = words.filter(|word| word & TAG_MASK == TAG);
            let entries = led_to.map(|led_to| (led_to, function));
            self.known.listed.functions.extend(entries);
        }
    }
}

/// The address that a reference leads to.
fn address(reference: u64) -> Option<u64> {
    (reference & TAG_MASK == TAG).then(|| reference - TAG)
}

/// The value of a small integer, unless it is negative.
fn integer(word: u64) -> Option<u64> {
    (word as u32 == 0 && word >> 63 == 0).then_some(word >> 32)
}

fn words_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

fn word_in(bytes: &[u8], at: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(at).ok()?..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
