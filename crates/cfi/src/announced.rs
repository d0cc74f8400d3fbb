//! Code that a program made at run time and announced to debuggers, by GDB's JIT interface ("JIT
//! Compilation Interface" in GDB's manual).
//!
//! For each piece of code, such a program keeps an ELF object in its memory, with symbols and call
//! frame information. `__jit_debug_descriptor` begins the list of all objects:
//!
//! | what | content |
//! |---|---|
//! | descriptor | version 1, action (4 bytes each); relevant entry, first entry (8 each) |
//! | entry | next entry, previous entry, address and size of the object (8 each) |
//!
//! The list may change while it is read, and the program may write anything there. So everything
//! that is read is limited, and rules from an object are only claims: whoever steps by one accepts
//! the result only if it follows a call ([`Uncovered::Rule`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;
use std::ops::Range;

use backtrail_elf::budget::Budget;
use backtrail_elf::{Image, Symbols};
use backtrail_sframe::Section;
use backtrail_unwind::Uncovered;
use backtrail_wire::{Bytes, Endian};
use rustc_hash::FxHasher;

use crate::eh_frame::debug_frame;
use crate::registers::{CallFrames, Held};

/// The object that begins the list.
pub const DESCRIPTOR: &str = "__jit_debug_descriptor";

const VERSION: u32 = 1;
const DESCRIPTOR_BYTES: usize = 24;
const ENTRY_BYTES: usize = 32;
/// Bytes of an ELF header: there is no smaller object.
const SMALLEST_OBJECT: u64 = 64;
/// Larger objects are not read; those of whole programs with debug information have some MiB.
const LARGEST_OBJECT: u64 = 16 << 20;
/// Bytes of all objects of a process that are read; the newest ones come first.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes of objects whose contents are kept, because stacks reach into their code.
const MOST_KEPT: u64 = 32 << 20;
/// Entries of a list that are read.
const MOST_ENTRIES: usize = 1 << 16;
/// Objects before the nearest one that are checked for whether they reach an address.
const MOST_NESTED: usize = 16;

/// The memory of the program.
pub struct Memory<'m> {
    /// Its byte order.
    pub endian: Endian,
    /// Copies memory from an address on, and returns how many bytes were copied.
    pub read: &'m dyn Fn(u64, &mut [u8]) -> usize,
}

impl Memory<'_> {
    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        ((self.read)(address, &mut bytes) == N).then_some(bytes)
    }

    /// The state of the list whose descriptor is at `address`: it changes with the list. `None` if
    /// there is no list.
    pub fn head(&self, address: u64) -> Option<Head> {
        let bytes = self.bytes::<DESCRIPTOR_BYTES>(address)?;
        let bytes = Bytes::new(&bytes, self.endian);
        let head = Head {
            relevant: bytes.u64(8).ok()?,
            first: bytes.u64(16).ok()?,
        };
        (bytes.u32(0) == Ok(VERSION)).then_some(head)
    }

    /// The places of the objects in a list, newest first.
    fn objects(&self, head: Head) -> impl Iterator<Item = Range<u64>> {
        let mut seen = HashSet::new();
        let mut next = head.first;
        let entries = std::iter::from_fn(move || {
            if next == 0 || !seen.insert(next) {
                return None;
            }
            let bytes = self.bytes::<ENTRY_BYTES>(next)?;
            let bytes = Bytes::new(&bytes, self.endian);
            next = bytes.u64(0).ok()?;
            let (start, size) = (bytes.u64(16).ok()?, bytes.u64(24).ok()?);
            Some(start..start.saturating_add(size))
        });
        entries.take(MOST_ENTRIES)
    }

    fn object(&self, place: &Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(place.end - place.start).ok()?];
        ((self.read)(place.start, &mut bytes) == bytes.len()).then_some(bytes)
    }
}

/// The state of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    relevant: u64,
    first: u64,
}

/// An announced object.
#[derive(Debug)]
struct Object {
    place: Range<u64>,
    /// Of its bytes: another object may have come to its place.
    hash: u64,
    contents: OnceCell<Option<Contents>>,
}

/// The end of a function, and its table, if there is one.
type EndAndTable = (u64, Option<Vec<u8>>);

/// What is kept of an object.
#[derive(Debug)]
struct Contents {
    frames: Option<CallFrames<Vec<u8>>>,
    symbols: Symbols,
    /// The ends and the tables of its functions, by their starts.
    tables: RefCell<BTreeMap<u64, EndAndTable>>,
}

impl Contents {
    fn new(image: &Image<'_>) -> Contents {
        let section = image.eh_frame().ok().flatten();
        let frames = section.or_else(|| debug_frame::of_image(image)).map(|section| {
            let held = Held {
                address: section.address,
                bytes: section.data.into_owned(),
            };
            CallFrames::new(image, held, None)
        });
        Contents {
            frames,
            symbols: Symbols::new(image),
            tables: RefCell::default(),
        }
    }

    fn uncovered(&self, address: u64) -> Option<Uncovered> {
        let mut tables = self.tables.borrow_mut();
        let known = tables.range(..=address).next_back();
        if let Some((_, (_, table))) = known.filter(|(_, (end, _))| address < *end) {
            return rule(table.as_deref()?, address);
        }
        let frames = self.frames.as_ref()?;
        let function = frames.function_at(address)?;
        let table = frames.function_table(address);
        let found = table.as_deref().and_then(|table| rule(table, address));
        tables.insert(function.start, (function.end, table));
        found
    }
}

/// The rule in a function's table.
fn rule(table: &[u8], address: u64) -> Option<Uncovered> {
    let found = Section::parse(table, 0).ok()?.lookup(address).ok()??;
    let is_signal = found.function.signal_frame;
    let rule = found.row.rule.map_or(Uncovered::Outermost, Uncovered::Rule);
    (!is_signal).then_some(rule)
}

/// An announced function, or a call in it at which others were inlined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// The addresses of its code, or of the call's last byte.
    pub addresses: Range<u64>,
    /// Where it starts.
    pub start: u64,
    /// Its name, not demangled.
    pub name: String,
    /// The names of the functions that were inlined at the call, the innermost first.
    pub inlined: Vec<String>,
}

impl Function {
    /// A whole function.
    pub fn new(addresses: Range<u64>, name: String) -> Function {
        Function {
            start: addresses.start,
            addresses,
            name,
            inlined: Vec::new(),
        }
    }
}

/// A function that a run-time system has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The function.
    pub function: Function,
    /// A number that other functions made there do not have, if its calls may have others inlined.
    pub version: Option<u64>,
}

/// A function that a process was found to have announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedAt {
    /// The process.
    pub pid: u32,
    /// When a stack first reached into the function, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// The function.
    pub function: Function,
}

/// The announced code of a process.
#[derive(Debug, Default)]
pub struct AnnouncedCode {
    objects: Vec<Object>,
    /// The code of each object, by address, with the object's index.
    code: Vec<(u64, u64, usize)>,
    kept: Cell<u64>,
    budget: Budget,
}

impl AnnouncedCode {
    /// Reads the lists that begin at these descriptors.
    pub fn read(memory: &Memory<'_>, descriptors: &[u64]) -> AnnouncedCode {
        let mut announced = AnnouncedCode::default();
        let mut left = MOST_BYTES;
        let heads = descriptors.iter().filter_map(|&descriptor| memory.head(descriptor));
        for place in heads.flat_map(|head| memory.objects(head)) {
            let size = place.end - place.start;
            if !(SMALLEST_OBJECT..=LARGEST_OBJECT).contains(&size) || announced.budget.exceeded().is_some() {
                continue;
            }
            let Some(rest) = left.checked_sub(size) else { break };
            left = rest;
            announced.add(memory, place);
        }
        announced.code.sort_by_key(|&(start, ..)| start);
        announced
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Takes over what was known of objects that are still there.
    pub fn keep(&mut self, known: AnnouncedCode) {
        let known = known.objects.into_iter().map(|object| (object.place.clone(), object));
        let mut known: HashMap<Range<u64>, Object> = known.collect();
        for object in &mut self.objects {
            if let Some(known) = known.remove(&object.place)
                && known.hash == object.hash
                && known.contents.get().is_some()
            {
                let size = object.place.end - object.place.start;
                self.kept.set(self.kept.get() + size);
                object.contents = known.contents;
            }
        }
    }

    fn add(&mut self, memory: &Memory<'_>, place: Range<u64>) -> Option<()> {
        let bytes = memory.object(&place)?;
        let image = Image::parse_within(&bytes, &self.budget).ok()?;
        let index = self.objects.len();
        let code = image.code_ranges().into_iter().filter(|range| !range.is_empty());
        self.code.extend(code.map(|range| (range.start, range.end, index)));
        self.objects.push(Object {
            place,
            hash: hash(&bytes),
            contents: OnceCell::new(),
        });
        Some(())
    }

    /// How to leave the frame whose code is at `address`, if an object describes it.
    pub fn uncovered(&self, memory: &Memory<'_>, address: u64) -> Option<Uncovered> {
        let mut described = self.contents(memory, address);
        described.find_map(|contents| contents.uncovered(address))
    }

    /// The function with the code at `address`, if an object names it.
    pub fn function(&self, memory: &Memory<'_>, address: u64) -> Option<Function> {
        let mut named = self.contents(memory, address);
        let symbol = named.find_map(|contents| contents.symbols.lookup(address))?;
        let addresses = symbol.address..symbol.address.saturating_add(symbol.size);
        Some(Function::new(addresses, symbol.name.into_owned()))
    }

    /// The contents of the objects with code at `address`, newest first: it describes what is there
    /// now.
    fn contents(&self, memory: &Memory<'_>, address: u64) -> impl Iterator<Item = &Contents> {
        let after = self.code.partition_point(|&(start, ..)| start <= address);
        let near = self.code[..after].iter().rev().take(MOST_NESTED);
        let found = near.filter(|&&(_, end, _)| address < end).map(|&(.., index)| index);
        let mut found: Vec<usize> = found.collect();
        found.sort_unstable();
        found
            .into_iter()
            .filter_map(move |index| self.contents_of(memory, index))
    }

    fn contents_of(&self, memory: &Memory<'_>, index: usize) -> Option<&Contents> {
        let object = self.objects.get(index)?;
        let contents = object.contents.get_or_init(|| {
            let kept = self.kept.get() + object.place.end - object.place.start;
            let bytes = (kept <= MOST_KEPT).then(|| memory.object(&object.place)).flatten()?;
            self.kept.set(kept);
            let image = Image::parse_within(&bytes, &self.budget).ok()?;
            (hash(&bytes) == object.hash).then(|| Contents::new(&image))
        });
        contents.as_ref()
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry that leads to `next`, with an object of `size` bytes at `object`.
    fn entry(next: u64, object: u64, size: u64) -> Vec<u8> {
        [next, 0, object, size]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    fn descriptor(version: u32, first: u64) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(first.to_le_bytes());
        bytes
    }

    fn memory(pieces: &[(u64, Vec<u8>)], address: u64, bytes: &mut [u8]) -> usize {
        let Some((_, piece)) = pieces.iter().find(|(start, _)| *start == address) else {
            return 0;
        };
        let len = piece.len().min(bytes.len());
        bytes[..len].copy_from_slice(&piece[..len]);
        len
    }

    #[test]
    fn lists_end_where_they_repeat_or_cannot_be_read() {
        let pieces = [
            (0x10, descriptor(1, 0x1000)),
            (0x1000, entry(0x2000, 0x8000, 100)),
            (0x2000, entry(0x3000, u64::MAX - 10, u64::MAX)),
            (0x3000, entry(0x2000, 0, 0)),
            (0x20, descriptor(1, 0x4000)),
            (0x30, descriptor(2, 0x1000)),
        ];
        let read = |address, bytes: &mut [u8]| memory(&pieces, address, bytes);
        let memory = Memory {
            endian: Endian::Little,
            read: &read,
        };
        let objects = |at| memory.head(at).map(|head| memory.objects(head).collect::<Vec<_>>());
        assert_eq!(objects(0x10), Some(vec![0x8000..0x8064, u64::MAX - 10..u64::MAX, 0..0]));
        assert_eq!(objects(0x20), Some(vec![]));
        assert_eq!((objects(0x30), objects(0x40)), (None, None));
    }

    /// A program that writes something else between any two reads.
    #[test]
    fn memory_that_changes_all_the_time_is_read_for_a_while_only() {
        let state = Cell::new(1_u64);
        let reads = Cell::new(0);
        let read = |_: u64, bytes: &mut [u8]| {
            reads.set(reads.get() + 1);
            for byte in bytes.iter_mut().take(512) {
                state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                *byte = (state.get() >> 33) as u8;
            }
            if bytes.len() == DESCRIPTOR_BYTES {
                bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
            } else if bytes.len() == ENTRY_BYTES {
                bytes[24..].copy_from_slice(&4096_u64.to_le_bytes());
            }
            bytes.len()
        };
        let memory = Memory {
            endian: Endian::Little,
            read: &read,
        };
        let announced = AnnouncedCode::read(&memory, &[0x10, 0x20]);
        assert_eq!(announced.uncovered(&memory, 0x1000), None);
        assert_eq!(announced.function(&memory, 0x1000), None);
        // Each entry is read, and its object; of all objects, no more than a number of bytes.
        let most = 2 * (MOST_BYTES / 4096) as usize;
        assert!((most / 2..most + 10).contains(&reads.get()), "{}", reads.get());
    }
}
