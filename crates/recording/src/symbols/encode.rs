//! Writes names: numbers and texts in columns, compressed by LZMA.
//!
//! Neighbouring addresses share their outer calls, so an entry only has the calls in which it
//! differs from the entry before. Names are numbered by how long ago they were used, new ones are
//! appended to the texts. This takes about half of what the same columns take deflated.

use std::io::Write as _;

use lzma_rust2::{Lzma2Options, Lzma2Writer};
use rustc_hash::FxHashMap;

use super::{Call, SpaceOwner, SymbolEntry, Symbols};

/// The first byte of the columns.
pub(super) const VERSION: u8 = 1;
/// The largest window of the compression, which reading needs as memory.
pub(super) const WINDOW: u32 = 8 << 20;
/// The most calls of an address that are written: no compiler inlines this deeply.
pub(super) const MOST_CALLS: usize = 4_096;

/// The columns, in the order in which they are written.
pub(super) const COLUMNS: usize = 8;
pub(super) mod column {
    pub(crate) const HEADS: usize = 0;
    pub(crate) const ADDRESSES: usize = 1;
    pub(crate) const SHAPES: usize = 2;
    pub(crate) const FUNCTIONS: usize = 3;
    pub(crate) const FILES: usize = 4;
    pub(crate) const LINES: usize = 5;
    pub(crate) const LENGTHS: usize = 6;
    pub(crate) const TEXTS: usize = 7;
}

/// Kinds of owners.
pub(super) mod owner {
    pub(crate) const FILE: u64 = 0;
    pub(crate) const KERNEL: u64 = 1;
    pub(crate) const PROCESS: u64 = 2;
    pub(crate) const FILE_ELSEWHERE: u64 = 3;
}

/// Flags of a call.
pub(super) mod flag {
    pub(crate) const INLINED: u64 = 1;
    pub(crate) const HAS_FILE: u64 = 2;
    pub(crate) const HAS_LINE: u64 = 4;
    pub(crate) const HAS_OFFSET: u64 = 8;
    /// The same as the call at this depth of the entry before, but for the line.
    pub(crate) const SAME_PLACE: u64 = 16;
}

/// The names as bytes.
///
/// # Errors
///
/// Compression needs memory that there is not.
pub fn encode(symbols: &Symbols) -> std::io::Result<Vec<u8>> {
    let mut columns = Columns::default();
    columns.number(column::HEADS, symbols.notes.len() as u64);
    for note in &symbols.notes {
        columns.plain_text(note);
    }
    columns.number(column::HEADS, symbols.spaces.len() as u64);
    for space in &symbols.spaces {
        columns.owner(&space.owner);
        columns.number(column::HEADS, space.entries.len() as u64);
        let mut last: Option<&SymbolEntry> = None;
        for entry in &space.entries {
            columns.entry(entry, last, &space.owner);
            last = Some(entry);
        }
    }
    let mut bytes = vec![VERSION];
    for column in &columns.bytes {
        put_number(&mut bytes, column.len() as u64);
    }
    columns.bytes.iter().for_each(|column| bytes.extend(column));

    let mut options = Lzma2Options::with_preset(6);
    options.lzma_options.dict_size = (bytes.len() as u32).next_power_of_two().clamp(1 << 12, WINDOW);
    let mut writer = Lzma2Writer::new(Vec::new(), options);
    writer.write_all(&bytes)?;
    writer.finish()
}

#[derive(Default)]
struct Columns {
    bytes: [Vec<u8>; COLUMNS],
    functions: Recent,
    files: Recent,
    lines: FxHashMap<String, u32>,
}

/// Texts by how long ago they were first seen.
#[derive(Default)]
struct Recent(FxHashMap<String, u64>);

impl Recent {
    /// 0 if the text is new, 1 for the newest text.
    fn distance(&mut self, text: &str) -> u64 {
        let count = self.0.len() as u64;
        if let Some(number) = self.0.get(text) {
            return count - number;
        }
        self.0.insert(text.to_owned(), count);
        0
    }
}

impl Columns {
    fn number(&mut self, column: usize, value: u64) {
        put_number(&mut self.bytes[column], value);
    }

    fn plain_text(&mut self, text: &str) {
        self.number(column::LENGTHS, text.len() as u64);
        self.bytes[column::TEXTS].extend(text.as_bytes());
    }

    fn name(&mut self, column: usize, text: &str) {
        let recent = match column {
            column::FILES => &mut self.files,
            _ => &mut self.functions,
        };
        let distance = recent.distance(text);
        self.number(column, distance);
        if distance == 0 {
            self.plain_text(text);
        }
    }

    fn owner(&mut self, owner: &SpaceOwner) {
        match owner {
            SpaceOwner::File {
                path,
                build_id,
                elsewhere,
                base_vaddr,
            } => {
                match elsewhere {
                    0 => self.number(column::HEADS, owner::FILE),
                    _ => {
                        self.number(column::HEADS, owner::FILE_ELSEWHERE);
                        self.number(column::HEADS, (*elsewhere).into());
                    }
                }
                self.number(column::HEADS, *base_vaddr);
                self.number(column::HEADS, build_id.len() as u64);
                self.bytes[column::HEADS].extend(build_id);
                self.plain_text(path);
            }
            SpaceOwner::Kernel => self.number(column::HEADS, owner::KERNEL),
            SpaceOwner::Process(pid) => {
                self.number(column::HEADS, owner::PROCESS);
                self.number(column::HEADS, (*pid).into());
            }
        }
    }

    fn entry(&mut self, entry: &SymbolEntry, last: Option<&SymbolEntry>, owner: &SpaceOwner) {
        let last_address = last.map_or(0, |last| last.address);
        self.number(column::ADDRESSES, entry.address.wrapping_sub(last_address));
        if matches!(owner, SpaceOwner::Process(_)) {
            self.number(column::ADDRESSES, entry.time);
        }
        if !matches!(owner, SpaceOwner::File { .. }) {
            self.name(column::FILES, &entry.module);
        }
        // Outermost first, as entries share them.
        let calls = entry.calls.iter().rev().take(MOST_CALLS);
        let before = last.map_or(&[][..], |last| &last.calls);
        let is_shared = |(call, before): &(&Call, &Call)| are_same(call, before, entry.address, last_address);
        let shared = calls.clone().zip(before.iter().rev()).take_while(is_shared).count();
        let new = calls.len() - shared;
        self.number(column::SHAPES, ((shared.min(15) << 4) | new.min(15)) as u64);
        if shared >= 15 {
            self.number(column::SHAPES, shared as u64);
        }
        if new >= 15 {
            self.number(column::SHAPES, new as u64);
        }
        for (depth, call) in calls.enumerate().skip(shared) {
            let before = before.iter().rev().nth(depth).filter(|_| depth == shared);
            self.call(call, before, entry.address, last_address);
        }
    }

    fn call(&mut self, call: &Call, before: Option<&Call>, address: u64, last_address: u64) {
        let same_place = before.is_some_and(|before| {
            let line = before.line;
            let moved = Call { line, ..call.clone() };
            call.line.is_some() && line.is_some() && are_same(&moved, before, address, last_address)
        });
        let bits = [
            (call.inlined, flag::INLINED),
            (call.file.is_some(), flag::HAS_FILE),
            (call.line.is_some(), flag::HAS_LINE),
            (call.offset.is_some(), flag::HAS_OFFSET),
            (same_place, flag::SAME_PLACE),
        ];
        self.number(
            column::SHAPES,
            bits.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum(),
        );
        if !same_place {
            self.name(column::FUNCTIONS, &call.function);
            if let Some(offset) = call.offset {
                self.number(column::ADDRESSES, offset);
            }
            if let Some(file) = &call.file {
                self.name(column::FILES, file);
            }
        }
        if let Some(line) = call.line {
            let file = call.file.as_deref().unwrap_or_default();
            let last = self.lines.get(file).copied().unwrap_or(0);
            self.number(column::LINES, zigzag(i64::from(line) - i64::from(last)));
            match self.lines.get_mut(file) {
                Some(last) => *last = line,
                None => drop(self.lines.insert(file.to_owned(), line)),
            }
        }
    }
}

/// Whether two calls are the same; offsets grow with the addresses.
fn are_same(call: &Call, before: &Call, address: u64, last_address: u64) -> bool {
    let start = |call: &Call, address: u64| call.offset.map(|offset| address.wrapping_sub(offset));
    start(call, address) == start(before, last_address)
        && (&call.function, &call.file, call.line, call.inlined)
            == (&before.function, &before.file, before.line, before.inlined)
}

fn put_number(bytes: &mut Vec<u8>, value: u64) {
    let mut number = [0; backtrail_wire::MAX_LEB128_BYTES];
    let len = backtrail_wire::write_uleb128(&mut number, value).unwrap_or(0);
    bytes.extend_from_slice(&number[..len]);
}

/// Small numbers of either sign as small numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
