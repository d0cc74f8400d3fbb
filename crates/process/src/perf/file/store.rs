//! Where the bytes of a file are, and those of records that were unpacked.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::{FileError, Result};

/// Bytes that are read at a time while records are passed in their order.
const WINDOW: usize = 1 << 20;
/// Unpacked bytes that are written together.
const PIECE: usize = 1 << 20;
/// The most unpacked bytes for each byte of the file. Copies of stacks that are nearly empty take
/// a hundredth; a file that claims more is no recording.
const MOST_EXPANSION: u64 = 2_000;

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum Store<'b> {
    Memory(&'b [u8]),
    File { file: &'b File, len: u64 },
}

impl<'b> Store<'b> {
    pub(super) fn of_file(file: &'b File) -> Result<Store<'b>> {
        let len = file.metadata().map_err(|error| FileError::Io(error.kind()))?.len();
        Ok(Store::File { file, len })
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Store::Memory(bytes) => bytes.len() as u64,
            Store::File { len, .. } => *len,
        }
    }

    /// Fills `out` from an offset on, as far as the file goes, and returns how far.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<usize> {
        match self {
            Store::Memory(bytes) => Ok(copy(bytes, at, out)),
            Store::File { file, .. } => read_file(file, at, out),
        }
    }

    /// The bytes of a part.
    pub(super) fn part(&self, at: u64, size: u64) -> Result<Vec<u8>> {
        let end = at.checked_add(size).filter(|&end| end <= self.len());
        end.ok_or(FileError::Damaged(at))?;
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| FileError::Damaged(at))?];
        match self.read(at, &mut bytes)? == bytes.len() {
            true => Ok(bytes),
            false => Err(FileError::Damaged(at)),
        }
    }
}

fn copy(from: &[u8], at: u64, out: &mut [u8]) -> usize {
    let from = usize::try_from(at)
        .ok()
        .and_then(|at| from.get(at..))
        .unwrap_or_default();
    let len = from.len().min(out.len());
    out[..len].copy_from_slice(&from[..len]);
    len
}

fn read_file(file: &File, at: u64, out: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError::Io(error.kind())),
        }
    }
    Ok(done)
}

/// A part of a file, which moves on.
#[derive(Debug, Default)]
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Bytes of the file; `None` if it ends before.
    pub(super) fn bytes(&mut self, store: &Store<'_>, at: u64, len: usize) -> Result<Option<&[u8]>> {
        let is_in = |window: &Window| {
            let from = usize::try_from(at.checked_sub(window.start)?).ok()?;
            let range = from..from.checked_add(len)?;
            (range.end <= window.bytes.len()).then_some(range)
        };
        if is_in(self).is_none() {
            self.bytes.resize(WINDOW.max(len), 0);
            let read = store.read(at, &mut self.bytes)?;
            self.bytes.truncate(read);
            self.start = at;
        }
        Ok(is_in(self).map(|range| &self.bytes[range]))
    }
}

/// Unpacked records, one after another: in a file without a name, or in memory.
#[derive(Debug)]
pub(super) struct Spool {
    /// What is not in the file yet; all if there is no file.
    bytes: Vec<u8>,
    file: Option<File>,
    written: u64,
    most: u64,
}

impl Spool {
    /// For a recording of this length.
    pub(super) fn new(file: Option<File>, packed: u64) -> Spool {
        Spool {
            bytes: Vec::new(),
            file,
            written: 0,
            most: packed.saturating_mul(MOST_EXPANSION),
        }
    }

    /// Appends bytes, and returns their offset.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let offset = self.written + self.bytes.len() as u64;
        if offset + bytes.len() as u64 > self.most {
            return Err(FileError::Expansion);
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= PIECE {
            self.write()?;
        }
        Ok(offset)
    }

    /// Writes what is not in the file yet.
    pub(super) fn write(&mut self) -> Result<()> {
        if let Some(file) = &self.file {
            let written = file.write_all_at(&self.bytes, self.written);
            written.map_err(|error| FileError::Scratch(error.kind()))?;
            self.written += self.bytes.len() as u64;
            self.bytes.clear();
        }
        Ok(())
    }

    /// Fills `out` from an offset on, after all was written.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<usize> {
        match &self.file {
            Some(file) => read_file(file, at, out),
            None => Ok(copy(&self.bytes, at, out)),
        }
    }
}
