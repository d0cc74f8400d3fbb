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

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

use self::published::{LARGEST_HEADER, MOST_DATA, Published, find};
use crate::announced::{Function, Made};
use crate::libraries::Libraries;
use crate::patience::Patience;
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
const MOST_LISTED: u64 = 1 << 17;
/// Pages without code of V8's that are remembered.
const MOST_PAGES: usize = 1 << 10;
const PAGE: u64 = 4 << 10;
/// Words of a script up to its list of functions.
const SCRIPT_WORDS: u64 = 24;
/// Functions that are remembered.
const MOST_FOUND: usize = 1 << 13;

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
    /// By its first instruction, the code that was found, and its function's name; `None` for code
    /// of the baseline compiler whose function was not found yet.
    found: BTreeMap<u64, (Compiled, Option<String>)>,
    /// Pages whose code is not V8's, such as those of WebAssembly.
    others: FxHashMap<u64, Patience>,
    lines: names::Lines,
}

/// The functions of scripts, by what they lead to.
#[derive(Debug, Default)]
struct Listed {
    scripts: Vec<u64>,
    functions: FxHashMap<u64, u64>,
    /// Elements of lists that were read.
    read: u64,
    /// How soon they are read again, if what was looked up is not among them.
    patience: Patience,
}

/// A function's code. While all of this stays the same, it is the same function's.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let (compiled, name) = match machine.still_there(pc) {
            Some((compiled, Some(name))) => (compiled, name),
            Some((compiled, None)) => {
                let name = machine.name_of(&compiled, false)?;
                (compiled, name)
            }
            None => {
                let compiled = machine.compiled(pc)?;
                let name = machine.name_of(&compiled, true)?;
                (compiled, name)
            }
        };
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
            found: BTreeMap::new(),
            others: FxHashMap::default(),
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

    /// The code with the instruction at `pc`.
    fn compiled(&mut self, pc: u64) -> Option<Compiled> {
        let page = pc / PAGE;
        if let Some(patience) = self.known.others.get_mut(&page)
            && !patience.is_over()
        {
            return None;
        }
        let found = self.searched(pc);
        if found.is_some() {
            self.known.others.remove(&page);
        } else {
            if self.known.others.len() >= MOST_PAGES {
                self.known.others.clear();
            }
            self.known.others.entry(page).or_default();
        }
        found
    }

    /// The code after the nearest header before `pc`.
    fn searched(&mut self, pc: u64) -> Option<Compiled> {
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

    /// The code at `pc` that was found before, if it is still that, and what is known of its name.
    fn still_there(&mut self, pc: u64) -> Option<(Compiled, Option<String>)> {
        let (start, (compiled, name)) = self.known.found.range(..=pc).next_back()?;
        if !compiled.instructions.contains(&pc) {
            return None;
        }
        let (start, compiled, name) = (*start, compiled.clone(), name.clone());
        let Published { header, stream, .. } = self.known.published;
        let at = start.checked_sub(header)?;
        let mut words = [0; LARGEST_HEADER];
        let words = words.get_mut(..header as usize)?;
        if self.process.read(at, words) != words.len() {
            return None;
        }
        let mut words = words_in(words);
        let is_stream = words.next().and_then(|map| self.type_by(map)) == Some(stream);
        let is_described = compiled.code == at | TAG || words.any(|word| word == compiled.code);
        let is_same = is_stream && is_described && self.words(compiled.code) == Some(compiled.left);
        is_same.then_some((compiled, name))
    }

    /// The name of the function that this is the code of, which may be optimized.
    fn name_of(&mut self, compiled: &Compiled, may_be_optimized: bool) -> Option<String> {
        let optimized = if may_be_optimized {
            self.optimized(compiled)
        } else {
            None
        };
        let function = optimized.or_else(|| self.baseline(compiled));
        let name = function.and_then(|function| self.name(function));
        if name.is_some() || function.is_none() {
            self.remember(compiled, name.clone());
        }
        name
    }

    /// Whatever was there before is gone.
    fn remember(&mut self, compiled: &Compiled, name: Option<String>) {
        let found = &mut self.known.found;
        if found.len() >= MOST_FOUND {
            found.clear();
        }
        let before = found.range(..compiled.instructions.end).rev();
        let gone = before.take_while(|(_, (other, _))| other.instructions.end > compiled.instructions.start);
        for start in gone.map(|(start, _)| *start).collect::<Vec<u64>>() {
            found.remove(&start);
        }
        found.insert(compiled.instructions.start, (compiled.clone(), name));
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
        if !listed.patience.is_over() {
            return None;
        }
        listed.functions.clear();
        listed.read = 0;
        for script in listed.scripts.clone() {
            self.list(script);
        }
        let found = self.listed(compiled);
        if found.is_some() {
            // More was compiled since.
            self.known.listed.patience = Patience::default();
        }
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
            let length = self.integer(array, array_length).unwrap_or(0);
            let length = length.min(MOST_LISTED.saturating_sub(self.known.listed.read));
            self.known.listed.read += length;
            let mut bytes = vec![0; 8 * length as usize];
            let first = address(array).and_then(|at| at.checked_add(elements));
            let read = first.map(|first| self.process.read(first, &mut bytes));
            let mut block = Block::default();
            for element in words_in(&bytes[..read.unwrap_or(0)]) {
                if element & TAG_MASK == WEAK_TAG {
                    self.list_function(element & !TAG_MASK | TAG, &mut block);
                }
            }
        }
    }

    fn list_function(&mut self, function: u64, block: &mut Block) {
        let Published {
            name, function: kind, ..
        } = self.known.published;
        let Some(at) = address(function) else { return };
        // From its map on, which is the first word.
        let mut words = [0; MOST_DATA / 8];
        let Some(words) = words.get_mut(..name as usize / 8) else {
            return;
        };
        for (offset, word) in (0..).step_by(8).zip(words.iter_mut()) {
            let Some(read) = at.checked_add(offset).and_then(|at| block.word(self.process, at)) else {
                return;
            };
            *word = read;
        }
        if let [map, data @ ..] = words
            && self.type_by(*map) == Some(kind)
        {
            let led_to = data.iter().filter(|word| **word & TAG_MASK == TAG);
            let entries = led_to.map(|led_to| (*led_to, function));
            self.known.listed.functions.extend(entries);
        }
    }
}

/// The page that was read last: a script's functions are mostly beside each other.
#[derive(Debug, Default)]
struct Block {
    start: u64,
    bytes: Vec<u8>,
}

impl Block {
    fn word(&mut self, process: &impl ProcessCode, at: u64) -> Option<u64> {
        let start = at - at % PAGE;
        if self.start != start || self.bytes.is_empty() {
            self.start = start;
            self.bytes.resize(PAGE as usize, 0);
            let read = process.read(start, &mut self.bytes);
            self.bytes.truncate(read);
        }
        word_in(&self.bytes, at - start)
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
