//! A process at one moment, from any source: the registers of its threads, its mappings, and pieces
//! of its memory.

use std::borrow::Cow;
use std::collections::HashMap;

use backtrail_arch::{Arch, Registers};
use backtrail_elf::Stored;
use backtrail_unwind::Memory;
use backtrail_wire::{Bytes, Endian};

use crate::sys;

/// A process at one moment.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The CPU.
    pub arch: &'static Arch,
    /// Its byte order.
    pub endian: Endian,
    /// The process number; 0 if unknown.
    pub pid: u32,
    /// A thread that has not ended, through which the memory is read: the first thread may be gone,
    /// and `/proc/PID/maps` with it. Meaningless for a core.
    pub reader: u32,
    /// The program's name, as truncated by the kernel.
    pub name: String,
    /// The path of the executable, if known.
    pub executable: Option<String>,
    /// The signal that killed it.
    pub signal: Option<u32>,
    /// Its mappings, by ascending address.
    pub mappings: Vec<Mapping>,
    /// The threads.
    pub threads: Vec<Thread>,
    /// Copied memory.
    pub pieces: Pieces<'a>,
    /// Whether the process still exists, so that the rest of its memory can be read in its current
    /// state.
    pub is_live: bool,
    /// Whether it is held until this is dropped, so that its memory is still what it was.
    pub is_held: bool,
}

/// A part of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Whether it may be written to.
    pub writable: bool,
    /// Whether code may run there.
    pub executable: bool,
    /// Offset of the first byte in the file, in bytes.
    pub file_offset: u64,
    /// Inode of the file; 0 if there is no file, or if unknown.
    pub inode: u64,
    /// Path, empty for anonymous memory; ends in ` (deleted)` if the file was gone.
    pub path: String,
}

impl Mapping {
    /// Whether the contents stay the same: nobody can write here, and a path leads to the file.
    pub fn is_constant(&self) -> bool {
        self.inode != 0 && !self.writable && !self.path.starts_with("/memfd:")
    }
}

/// A thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// Its name, if known.
    pub name: Option<String>,
    /// The signal that stopped or killed it.
    pub signal: Option<u32>,
    /// Its registers.
    pub registers: Result<Registers, NotStopped>,
    /// The set of its vector registers ([`Arch::vectors`]); empty if unknown.
    pub vectors: Vec<u8>,
}

/// Why a thread's registers are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStopped {
    /// It is in uninterruptible sleep.
    Uninterruptible,
    /// It did not stop in time.
    Late,
}

/// Pieces of memory by address.
#[derive(Debug, Default)]
pub struct Pieces<'a> {
    /// By ascending address.
    pieces: Vec<(u64, Piece<'a>)>,
}

#[derive(Debug)]
enum Piece<'a> {
    Copied(Cow<'a, [u8]>),
    Stored(Stored<'a>),
}

impl Piece<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Piece::Copied(bytes) => bytes.is_empty(),
            Piece::Stored(stored) => stored.is_empty(),
        }
    }

    fn up_to(&self, offset: usize, most: usize) -> Option<&[u8]> {
        match self {
            Piece::Copied(bytes) => bytes.get(offset..).map(|rest| &rest[..most.min(rest.len())]),
            Piece::Stored(stored) => stored.up_to(offset, most),
        }
    }
}

impl<'a> Pieces<'a> {
    /// From pairs of an address and the bytes there.
    pub fn new(pieces: Vec<(u64, Cow<'a, [u8]>)>) -> Pieces<'a> {
        let pieces = pieces.into_iter().map(|(start, bytes)| (start, Piece::Copied(bytes)));
        Pieces::sorted(pieces.collect())
    }

    /// From pairs of an address and the part of a file with the bytes there.
    pub fn stored(pieces: Vec<(u64, Stored<'a>)>) -> Pieces<'a> {
        let pieces = pieces.into_iter().map(|(start, bytes)| (start, Piece::Stored(bytes)));
        Pieces::sorted(pieces.collect())
    }

    fn sorted(mut pieces: Vec<(u64, Piece<'a>)>) -> Pieces<'a> {
        pieces.retain(|(_, bytes)| !bytes.is_empty());
        pieces.sort_by_key(|(start, _)| *start);
        Pieces { pieces }
    }

    /// The bytes from `address` to the end of their piece, at most this many; `None` if no piece
    /// contains it.
    pub fn at(&self, address: u64, most: usize) -> Option<&[u8]> {
        let index = self.pieces.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.pieces.get(index.checked_sub(1)?)?;
        let offset = usize::try_from(address - start).ok()?;
        bytes.up_to(offset, most).filter(|bytes| !bytes.is_empty())
    }

    /// Copies bytes from `address` on, across adjacent pieces, and returns how many there were.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let next = address.checked_add(done as u64);
            let Some(bytes) = next.and_then(|at| self.at(at, buffer.len() - done)) else {
                break;
            };
            let len = bytes.len().min(buffer.len() - done);
            buffer[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        done
    }
}

impl<'a> Snapshot<'a> {
    /// Memory alone, without anything else about the process.
    pub fn of_memory(arch: &'static Arch, endian: Endian, pieces: Pieces<'a>) -> Snapshot<'a> {
        Snapshot {
            arch,
            endian,
            pid: 0,
            reader: 0,
            name: String::new(),
            executable: None,
            signal: None,
            mappings: Vec::new(),
            threads: Vec::new(),
            pieces,
            is_live: false,
            is_held: false,
        }
    }

    /// The mapping that contains `address`.
    pub fn mapping(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    /// Copies bytes from `address` on, and returns how many were read. Bytes outside the pieces are
    /// read from the process in its current state, if it exists: to read anything but code, the
    /// caller has to hold it.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = self.pieces.read(address, buffer);
        if self.is_live && done < buffer.len() {
            let rest = address.saturating_add(done as u64);
            done += sys::read_process(self.reader as i32, rest, &mut buffer[done..]).unwrap_or(0);
        }
        done
    }

    /// A reader of its words.
    pub fn memory(&self) -> SnapshotMemory<'_> {
        SnapshotMemory {
            snapshot: self,
            pages: Pages::default(),
            lacked: false,
        }
    }
}

const PAGE: u64 = 4096;
/// The most pages in the cache; a reader that needs more continues, but the cache is emptied.
const MOST_PAGES: usize = 4096;

/// Pages of memory, each read once: a system call costs more than copying a page.
#[derive(Debug, Default)]
pub struct Pages {
    /// The readable bytes of each page, by its address.
    pages: HashMap<u64, Vec<u8>>,
}

impl Pages {
    /// The bytes from `address` to the end of its page, as far as they can be read. `read` copies
    /// memory from an address on, and returns how many bytes it copied.
    pub fn at(&mut self, address: u64, read: impl FnOnce(u64, &mut [u8]) -> usize) -> &[u8] {
        let page = address & !(PAGE - 1);
        if self.pages.len() >= MOST_PAGES && !self.pages.contains_key(&page) {
            self.pages.clear();
        }
        let bytes = self.pages.entry(page).or_insert_with(|| {
            let mut bytes = vec![0; PAGE as usize];
            let len = read(page, &mut bytes);
            bytes.truncate(len);
            bytes
        });
        bytes.get((address - page) as usize..).unwrap_or_default()
    }
}

/// The words of a [`Snapshot`], in its own byte order.
#[derive(Debug)]
pub struct SnapshotMemory<'s> {
    snapshot: &'s Snapshot<'s>,
    /// Pages of the running process.
    pages: Pages,
    lacked: bool,
}

impl SnapshotMemory<'_> {
    /// Whether a word was requested that was not copied, from a process that has continued: its
    /// value now may not be its value then.
    pub fn lacked(&self) -> bool {
        self.lacked
    }

    /// Whether the value at an address is still that of the snapshot's moment.
    fn is_as_it_was(&self, address: u64) -> bool {
        self.snapshot.is_held || self.snapshot.mapping(address).is_some_and(Mapping::is_constant)
    }

    #[cold]
    fn live_word(&mut self, address: u64) -> Option<u64> {
        let snapshot = self.snapshot;
        let mut word = [0; 8];
        if address % PAGE > PAGE - 8 {
            let read = snapshot.read(address, &mut word);
            return (read == word.len()).then(|| self.number(word));
        }
        let bytes = self.pages.at(address, |page, bytes| snapshot.read(page, bytes));
        word = *bytes.first_chunk()?;
        Some(self.number(word))
    }

    fn number(&self, word: [u8; 8]) -> u64 {
        match self.snapshot.endian {
            Endian::Little => u64::from_le_bytes(word),
            Endian::Big => u64::from_be_bytes(word),
        }
    }
}

impl Memory for SnapshotMemory<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        address.checked_add(7)?;
        if let Some(bytes) = self.snapshot.pieces.at(address, 8)
            && let Ok(word) = Bytes::new(bytes, self.snapshot.endian).u64(0)
        {
            return Some(word);
        }
        if self.snapshot.is_live {
            if !self.is_as_it_was(address) {
                self.lacked |= self.snapshot.mapping(address).is_some();
                return None;
            }
            return self.live_word(address);
        }
        let mut word = [0; 8];
        (self.snapshot.read(address, &mut word) == word.len()).then(|| self.number(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pieces: Vec<(u64, Vec<u8>)>, endian: Endian) -> Snapshot<'static> {
        let pieces = pieces.into_iter().map(|(at, bytes)| (at, bytes.into()));
        Snapshot::of_memory(Arch::native(), endian, Pieces::new(pieces.collect()))
    }

    #[test]
    fn words_that_were_not_copied_are_not_taken_from_a_process_that_runs_on() {
        let (copied, other) = ([1_u64, 2], [3_u64]);
        let bytes: Vec<u8> = copied.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut snapshot = snapshot(vec![(copied.as_ptr().addr() as u64, bytes)], Endian::NATIVE);
        (snapshot.reader, snapshot.is_live) = (std::process::id(), true);
        let other = other.as_ptr().addr() as u64;
        snapshot.mappings = vec![Mapping {
            start: other,
            end: other + 8,
            writable: true,
            executable: false,
            file_offset: 0,
            inode: 0,
            path: String::new(),
        }];
        let mut memory = snapshot.memory();
        assert_eq!(
            (memory.word(copied.as_ptr().addr() as u64 + 8), memory.lacked()),
            (Some(2), false)
        );
        assert_eq!((memory.word(other), memory.lacked()), (None, true));
        snapshot.is_held = true;
        let mut memory = snapshot.memory();
        assert_eq!((memory.word(other), memory.lacked()), (Some(3), false));
    }

    #[test]
    fn words_are_in_the_targets_order_and_may_lie_across_pieces() {
        let bytes: Vec<u8> = (0..32).collect();
        let pieces = vec![
            (0x1010, bytes[16..].to_vec()),
            (0x1000, bytes[..16].to_vec()),
            (u64::MAX - 7, vec![7; 8]),
        ];
        let little = snapshot(pieces.clone(), Endian::Little);
        let mut memory = little.memory();
        assert_eq!(memory.word(0x1000), Some(0x0706_0504_0302_0100));
        assert_eq!(memory.word(0x100c), Some(0x1312_1110_0f0e_0d0c));
        assert_eq!(memory.word(0x1018), Some(0x1f1e_1d1c_1b1a_1918));
        assert_eq!(memory.word(0x1019), None);
        assert_eq!(memory.word(0xfff), None);
        assert_eq!(memory.word(u64::MAX - 6), None);
        assert_eq!(memory.word(u64::MAX - 7), Some(0x0707_0707_0707_0707));
        let big = snapshot(pieces, Endian::Big);
        assert_eq!(big.memory().word(0x100c), Some(0x0c0d_0e0f_1011_1213));
    }
}
