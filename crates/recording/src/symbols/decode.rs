//! Reads names; see [`super::encode`] for how they are written.

use std::fmt;
use std::io::Read as _;

use backtrail_wire::{Bytes, Cursor, Endian};
use lzma_rust2::Lzma2Reader;
use rustc_hash::FxHashMap;

use super::encode::{COLUMNS, MOST_CALLS, VERSION, WINDOW, column, flag, owner};
use super::{Call, SpaceOwner, SymbolEntry, SymbolSpace, Symbols};

/// Names compress to a fifth or so; what claims to be much smaller is no list of names.
const MOST_EXPANSION: u64 = 200;
/// The most bytes of names in memory for each compressed byte: an entry in deeply inlined code may
/// repeat all calls of the one before in three bytes.
const MOST_COPIES: u64 = 4_096;
/// Memory that is always allowed, for columns and for names: small recordings compress best.
const LEAST: u64 = 16 << 20;

/// Why names cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolsError {
    /// A part is missing, or the bytes are no names.
    Damaged,
    /// A later version wrote them.
    Version(u8),
}

impl fmt::Display for SymbolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SymbolsError::Damaged => write!(f, "the recording's symbols are damaged, so they are not used"),
            SymbolsError::Version(version) => {
                write!(f, "the recording's symbols have version {version}, which is unknown")
            }
        }
    }
}

impl std::error::Error for SymbolsError {}

impl From<backtrail_wire::Error> for SymbolsError {
    fn from(_: backtrail_wire::Error) -> Self {
        SymbolsError::Damaged
    }
}

type Result<T> = std::result::Result<T, SymbolsError>;

/// The names in bytes that [`encode`](super::encode()) made.
///
/// # Errors
///
/// If they are damaged, or of a later version.
pub fn decode(compressed: &[u8]) -> Result<Symbols> {
    let most = (compressed.len() as u64)
        .saturating_mul(MOST_EXPANSION)
        .saturating_add(LEAST);
    // The writer's window is no larger than what it compressed.
    let window = u32::try_from(most).unwrap_or(WINDOW).clamp(1 << 12, WINDOW);
    let mut bytes = Vec::new();
    Lzma2Reader::new(compressed, window, None)
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|_| SymbolsError::Damaged)?;
    let mut cursor = Bytes::new(&bytes, Endian::Little).cursor(0);
    let version = cursor.u8()?;
    if version != VERSION {
        return Err(SymbolsError::Version(version));
    }
    let mut lengths = [0; COLUMNS];
    for length in &mut lengths {
        *length = usize::try_from(cursor.uleb128()?).map_err(|_| SymbolsError::Damaged)?;
    }
    let mut columns = Columns {
        cursors: [cursor; COLUMNS],
        functions: Vec::new(),
        files: Vec::new(),
        lines: FxHashMap::default(),
        room: (compressed.len() as u64)
            .saturating_mul(MOST_COPIES)
            .saturating_add(LEAST),
    };
    for (length, column) in lengths.into_iter().zip(&mut columns.cursors) {
        *column = Bytes::new(cursor.slice(length)?, Endian::Little).cursor(0);
    }
    columns.symbols()
}

struct Columns<'b> {
    cursors: [Cursor<'b>; COLUMNS],
    functions: Vec<&'b str>,
    files: Vec<&'b str>,
    lines: FxHashMap<String, u32>,
    /// Bytes of names that may still be made.
    room: u64,
}

impl<'b> Columns<'b> {
    fn symbols(&mut self) -> Result<Symbols> {
        let mut symbols = Symbols::default();
        for _ in 0..self.number(column::HEADS)? {
            symbols.notes.push(self.plain_text()?.to_owned());
        }
        for _ in 0..self.number(column::HEADS)? {
            let owner = self.owner()?;
            let mut entries: Vec<SymbolEntry> = Vec::new();
            for _ in 0..self.number(column::HEADS)? {
                let entry = self.entry(entries.last(), &owner)?;
                entries.push(entry);
            }
            symbols.spaces.push(SymbolSpace { owner, entries });
        }
        Ok(symbols)
    }

    fn number(&mut self, column: usize) -> Result<u64> {
        Ok(self.cursors[column].uleb128()?)
    }

    fn plain_text(&mut self) -> Result<&'b str> {
        let length = usize::try_from(self.number(column::LENGTHS)?).map_err(|_| SymbolsError::Damaged)?;
        let bytes = self.cursors[column::TEXTS].slice(length)?;
        std::str::from_utf8(bytes).map_err(|_| SymbolsError::Damaged)
    }

    fn name(&mut self, column: usize) -> Result<String> {
        let distance = self.number(column)?;
        if distance == 0 {
            let text = self.plain_text()?;
            self.recent(column).push(text);
        }
        let recent = self.recent(column);
        let index = (recent.len() as u64).checked_sub(distance.max(1));
        let text = index.and_then(|index| recent.get(index as usize));
        let text = *text.ok_or(SymbolsError::Damaged)?;
        self.spend(text.len())?;
        Ok(text.to_owned())
    }

    fn recent(&mut self, column: usize) -> &mut Vec<&'b str> {
        match column {
            column::FILES => &mut self.files,
            _ => &mut self.functions,
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        let cost = bytes as u64 + size_of::<Call>() as u64;
        self.room = self.room.checked_sub(cost).ok_or(SymbolsError::Damaged)?;
        Ok(())
    }

    fn owner(&mut self) -> Result<SpaceOwner> {
        match self.number(column::HEADS)? {
            kind @ (owner::FILE | owner::FILE_ELSEWHERE) => {
                let elsewhere = match kind {
                    owner::FILE => 0,
                    _ => u32::try_from(self.number(column::HEADS)?).map_err(|_| SymbolsError::Damaged)?,
                };
                let base_vaddr = self.number(column::HEADS)?;
                let length = usize::try_from(self.number(column::HEADS)?).map_err(|_| SymbolsError::Damaged)?;
                let build_id = self.cursors[column::HEADS].slice(length)?.to_vec();
                let path = self.plain_text()?.to_owned();
                Ok(SpaceOwner::File {
                    path,
                    build_id,
                    elsewhere,
                    base_vaddr,
                })
            }
            owner::KERNEL => Ok(SpaceOwner::Kernel),
            owner::PROCESS => {
                let pid = u32::try_from(self.number(column::HEADS)?).map_err(|_| SymbolsError::Damaged)?;
                Ok(SpaceOwner::Process(pid))
            }
            _ => Err(SymbolsError::Damaged),
        }
    }

    fn entry(&mut self, last: Option<&SymbolEntry>, owner: &SpaceOwner) -> Result<SymbolEntry> {
        let last_address = last.map_or(0, |last| last.address);
        let address = last_address.wrapping_add(self.number(column::ADDRESSES)?);
        let time = match owner {
            SpaceOwner::Process(_) => self.number(column::ADDRESSES)?,
            SpaceOwner::File { .. } | SpaceOwner::Kernel => 0,
        };
        let module = match owner {
            SpaceOwner::File { .. } => String::new(),
            SpaceOwner::Kernel | SpaceOwner::Process(_) => self.name(column::FILES)?,
        };
        let shape = self.number(column::SHAPES)?;
        let (mut shared, mut new) = (shape >> 4, shape & 15);
        if shared >= 15 {
            shared = self.number(column::SHAPES)?;
        }
        if new >= 15 {
            new = self.number(column::SHAPES)?;
        }
        let before = last.map_or(&[][..], |last| &last.calls);
        let count = shared
            .checked_add(new)
            .filter(|&count| (1..=MOST_CALLS as u64).contains(&count));
        if count.is_none() || shared > before.len() as u64 {
            return Err(SymbolsError::Damaged);
        }
        let mut calls = Vec::new();
        for call in before.iter().rev().take(shared as usize) {
            self.spend(call.function.len() + call.file.as_ref().map_or(0, String::len))?;
            calls.push(moved(call, address, last_address));
        }
        for depth in shared..shared + new {
            let same = before.iter().rev().nth(depth as usize).filter(|_| depth == shared);
            let call = self.call(same, address, last_address)?;
            calls.push(call);
        }
        calls.reverse();
        Ok(SymbolEntry {
            address,
            time,
            module,
            calls,
        })
    }

    fn call(&mut self, before: Option<&Call>, address: u64, last_address: u64) -> Result<Call> {
        let flags = self.number(column::SHAPES)?;
        let has = |bit: u64| flags & bit != 0;
        let mut call = if has(flag::SAME_PLACE) {
            let before = before.ok_or(SymbolsError::Damaged)?;
            self.spend(before.function.len() + before.file.as_ref().map_or(0, String::len))?;
            moved(before, address, last_address)
        } else {
            let function = self.name(column::FUNCTIONS)?;
            if function.is_empty() {
                return Err(SymbolsError::Damaged);
            }
            let mut call = Call {
                function,
                inlined: has(flag::INLINED),
                ..Call::default()
            };
            if has(flag::HAS_OFFSET) {
                call.offset = Some(self.number(column::ADDRESSES)?);
            }
            if has(flag::HAS_FILE) {
                call.file = Some(self.name(column::FILES)?);
            }
            call
        };
        if has(flag::HAS_LINE) {
            let file = call.file.as_deref().unwrap_or_default();
            let last = self.lines.get(file).copied().unwrap_or(0);
            let line = i64::from(last).wrapping_add(unzigzag(self.cursors[column::LINES].uleb128()?));
            let line = u32::try_from(line).map_err(|_| SymbolsError::Damaged)?;
            match self.lines.get_mut(file) {
                Some(last) => *last = line,
                None => drop(self.lines.insert(file.to_owned(), line)),
            }
            call.line = Some(line);
        }
        Ok(call)
    }
}

/// A call of the entry before, whose function starts where it did.
fn moved(call: &Call, address: u64, last_address: u64) -> Call {
    let offset = call
        .offset
        .map(|offset| offset.wrapping_add(address.wrapping_sub(last_address)));
    Call { offset, ..call.clone() }
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    fn call(function: &str, offset: Option<u64>, place: Option<(&str, u32)>, inlined: bool) -> Call {
        Call {
            function: function.to_owned(),
            offset,
            file: place.map(|(file, _)| file.to_owned()),
            line: place.map(|(_, line)| line),
            inlined,
        }
    }

    fn entry(address: u64, calls: Vec<Call>) -> SymbolEntry {
        SymbolEntry {
            address,
            time: 0,
            module: String::new(),
            calls,
        }
    }

    fn symbols() -> Symbols {
        let file = SpaceOwner::File {
            path: "/usr/bin/a\nb".to_owned(),
            build_id: vec![1, 2, 3],
            elsewhere: 300,
            base_vaddr: 0x40_0000,
        };
        let outer = |offset, line| call("outer(int)", Some(offset), Some(("a.cc", line)), false);
        let deep: Vec<Call> = (0..40)
            .map(|n| call(&format!("f{}", n % 7), None, Some(("b.h", 100 - n)), true))
            .chain([outer(0x300, 9)])
            .collect();
        let mut named = entry(0xffff_ffff_8100_0000, vec![call("do_syscall_64", Some(3), None, false)]);
        named.module = "[kernel]".to_owned();
        let jitted = |time, name| SymbolEntry {
            time,
            module: "[jit]".to_owned(),
            ..entry(0x7f00, vec![call(name, Some(0), Some(("x.js", 3)), false)])
        };
        Symbols {
            spaces: vec![
                SymbolSpace {
                    owner: file,
                    entries: vec![
                        entry(0x40_1000, vec![outer(0, 5)]),
                        entry(0x40_1004, vec![outer(4, 5)]),
                        entry(
                            0x40_1010,
                            vec![call("inner", None, Some(("b.h", 7)), true), outer(16, 6)],
                        ),
                        entry(
                            0x40_1018,
                            vec![call("inner", None, Some(("b.h", 8)), true), outer(24, 6)],
                        ),
                        entry(0x40_1300, deep.clone()),
                        entry(
                            0x40_1301,
                            deep.iter()
                                .cloned()
                                .map(|mut call| {
                                    call.offset = call.offset.map(|offset| offset + 1);
                                    call
                                })
                                .collect(),
                        ),
                        entry(0x40_2000, vec![call("a+0x2000", None, None, false)]),
                        entry(u64::MAX, vec![call("end", Some(u64::MAX), None, false)]),
                    ],
                },
                SymbolSpace {
                    owner: SpaceOwner::Kernel,
                    entries: vec![named],
                },
                SymbolSpace {
                    owner: SpaceOwner::Process(17),
                    entries: vec![jitted(5, "old"), jitted(9, "new")],
                },
            ],
            notes: vec!["not found: é".to_owned()],
        }
    }

    #[test]
    fn names_come_back() {
        let encoded = encode(&symbols()).unwrap();
        assert_eq!(decode(&encoded), Ok(symbols()));
        assert_eq!(decode(&encode(&Symbols::default()).unwrap()), Ok(Symbols::default()));
        assert_eq!(decode(&[]), Err(SymbolsError::Damaged));
    }

    #[test]
    fn truncated_names_are_an_error() {
        let encoded = encode(&symbols()).unwrap();
        for at in 0..encoded.len() {
            assert!(decode(&encoded[..at]).is_err(), "{at} bytes");
        }
    }
}
