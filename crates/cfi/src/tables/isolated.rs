//! Tables that a process without privileges makes, of files of other users: what is sent to it, and
//! its answer.
//!
//! The file is sent as a copy, open for reading. The request is one byte, `Wanted`. The answer
//! begins with a byte: `MADE`, then address (8), origin (1), uncovered bytes (8), damage (17),
//! and the section; or `FAILED`, then the error: its number (1), and what it is about (8 each).
//! All numbers are in little-endian.

use std::collections::BTreeMap;
use std::fs::File;

use backtrail_elf::budget::{Budget, Limit};
use backtrail_elf::isolation::{self, Job, Lost};
use backtrail_elf::{ErrorKind, FileBytes, Image};
use backtrail_sframe::Section;
use backtrail_sframe::write::WriteError;
use backtrail_wire::{Bytes, Cursor, Endian};

use super::{Error, Inputs, Source, Table, TableOrigin, abi, without_call_frames};
use crate::eh_frame;

const MADE: u8 = 1;
const FAILED: u8 = 0;

/// Which table is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Wanted {
    /// That of [`Tables::load`](super::Tables::load).
    Any = 0,
    /// That of [`without_call_frames`].
    WithoutCallFrames = 1,
}

/// Lets a worker for files of this user make the table.
pub(super) fn table(image: &Image<'_>, source: &Source<'_>, owner: u32, wanted: Wanted) -> Result<Table, Error> {
    let file = source.sealed().map_err(|_| Lost::Unavailable)?;
    let answer = isolation::ask(owner, Job::Table, &[&file], &[wanted as u8])?;
    let table = read(&answer).unwrap_or(Err(Error::Isolated(Lost::Unavailable)))?;
    // Its rows are read with the same care as those of a file.
    match table.section() {
        Ok(section) if section.abi() == abi(image) => Ok(table),
        _ => Err(Error::Isolated(Lost::Unavailable)),
    }
}

/// Answers a request, in the worker.
pub fn answer(files: Vec<File>, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    match make(files, request) {
        Ok(table) => write_table(&mut answer, &table),
        Err(error) => {
            answer.push(FAILED);
            write_error(&mut answer, &error);
        }
    }
    answer
}

fn make(files: Vec<File>, request: &[u8]) -> Result<Table, Error> {
    let file = files.into_iter().next().ok_or(Lost::Unavailable)?;
    let file = FileBytes::received(file, &Budget::new()).map_err(|_| Lost::Memory)?;
    let image = Image::of(&file)?;
    match request {
        [kind] if *kind == Wanted::WithoutCallFrames as u8 => {
            without_call_frames(&image).ok_or(Error::NoUnwindInformation)
        }
        _ => Inputs::of(&image)?.make(&image),
    }
}

fn write_table(answer: &mut Vec<u8>, table: &Table) {
    answer.push(MADE);
    answer.extend(table.address.to_le_bytes());
    answer.push(match table.origin {
        TableOrigin::Shipped => 0,
        TableOrigin::Completed => 1,
        TableOrigin::Converted | TableOrigin::Cached => 2,
    });
    answer.extend(table.uncovered_bytes.to_le_bytes());
    let (kind, value, offset) = match table.damage.map(|damage| (damage.kind, damage.offset)) {
        None => (0, 0, 0),
        Some((eh_frame::ErrorKind::Truncated, offset)) => (1, 0, offset),
        Some((eh_frame::ErrorKind::EntryLength(len), offset)) => (2, len, offset),
    };
    numbers(answer, kind, &[value, offset]);
    answer.extend(&table.bytes);
}

fn numbers(answer: &mut Vec<u8>, kind: u8, values: &[u64]) {
    answer.push(kind);
    answer.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn write_error(answer: &mut Vec<u8>, error: &Error) {
    match *error {
        Error::NoUnwindInformation => numbers(answer, 0, &[]),
        Error::NoEhFrame => numbers(answer, 1, &[]),
        Error::Cfi(error) => match error.kind {
            eh_frame::ErrorKind::Truncated => numbers(answer, 2, &[error.offset]),
            eh_frame::ErrorKind::EntryLength(len) => numbers(answer, 3, &[error.offset, len]),
        },
        Error::Write(WriteError::TooLarge(size)) => numbers(answer, 5, &[size]),
        Error::Write(_) => numbers(answer, 4, &[]),
        Error::Isolated(Lost::Memory) => numbers(answer, 6, &[]),
        Error::Isolated(_) => numbers(answer, 7, &[]),
        Error::Elf(error) => match error.kind {
            ErrorKind::Truncated { missing } => numbers(answer, 8, &[error.offset, missing]),
            ErrorKind::CompressedSize(size) => numbers(answer, 9, &[error.offset, size]),
            ErrorKind::Compression(kind) => numbers(answer, 10, &[error.offset, kind.into()]),
            ErrorKind::Limit(limit) => numbers(answer, 11, &[error.offset, limit.number().into()]),
            // The headers were read before the file was sent.
            _ => numbers(answer, 12, &[error.offset]),
        },
    }
}

/// `None` if no worker of this program has written it.
fn read(answer: &[u8]) -> Option<Result<Table, Error>> {
    let mut cursor = Bytes::new(answer, Endian::Little).cursor(0);
    match cursor.u8().ok()? {
        MADE => Some(Ok(read_table(&mut cursor, answer)?)),
        _ => Some(Err(read_error(&mut cursor)?)),
    }
}

fn read_table(cursor: &mut Cursor<'_>, answer: &[u8]) -> Option<Table> {
    let address = cursor.u64().ok()?;
    let origin = match cursor.u8().ok()? {
        0 => TableOrigin::Shipped,
        1 => TableOrigin::Completed,
        _ => TableOrigin::Converted,
    };
    let uncovered_bytes = cursor.u64().ok()?;
    let (kind, value, offset) = (cursor.u8().ok()?, cursor.u64().ok()?, cursor.u64().ok()?);
    let kind = match kind {
        0 => None,
        1 => Some(eh_frame::ErrorKind::Truncated),
        _ => Some(eh_frame::ErrorKind::EntryLength(value)),
    };
    let bytes = answer.get(35..)?.to_vec();
    Section::parse(&bytes, address).ok()?;
    Some(Table {
        address,
        origin,
        uncovered_bytes,
        damage: kind.map(|kind| eh_frame::Error { kind, offset }),
        skipped: BTreeMap::new(),
        bytes,
    })
}

fn read_error(cursor: &mut Cursor<'_>) -> Option<Error> {
    let kind = cursor.u8().ok()?;
    let mut number = || cursor.u64().ok();
    let mut elf = |kind: fn(u64) -> ErrorKind| {
        let (offset, value) = (number()?, number().unwrap_or(0));
        let kind = kind(value);
        Some(Error::Elf(backtrail_elf::Error { kind, offset }))
    };
    match kind {
        8 => return elf(|missing| ErrorKind::Truncated { missing }),
        9 => return elf(ErrorKind::CompressedSize),
        10 => return elf(|kind| ErrorKind::Compression(kind as u32)),
        11 => return elf(|limit| ErrorKind::Limit(Limit::of_number(limit as u8).unwrap_or(Limit::Steps))),
        12 => return elf(|_| ErrorKind::Decompress),
        _ => {}
    }
    let damage = |kind, offset| Error::Cfi(eh_frame::Error { kind, offset });
    Some(match kind {
        0 => Error::NoUnwindInformation,
        1 => Error::NoEhFrame,
        2 => damage(eh_frame::ErrorKind::Truncated, number()?),
        3 => {
            let offset = number()?;
            damage(eh_frame::ErrorKind::EntryLength(number()?), offset)
        }
        4 => Error::Write(WriteError::PcrelInV1),
        5 => Error::Write(WriteError::TooLarge(number()?)),
        6 => Error::Isolated(Lost::Memory),
        _ => Error::Isolated(Lost::Unavailable),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_as_they_were() {
        let elf = |kind| Error::Elf(backtrail_elf::Error { kind, offset: 7 });
        let damage = |kind| Error::Cfi(eh_frame::Error { kind, offset: 9 });
        for error in [
            Error::NoUnwindInformation,
            Error::NoEhFrame,
            damage(eh_frame::ErrorKind::Truncated),
            damage(eh_frame::ErrorKind::EntryLength(3)),
            Error::Write(WriteError::TooLarge(1 << 40)),
            Error::Isolated(Lost::Memory),
            elf(ErrorKind::Truncated { missing: 4 }),
            elf(ErrorKind::CompressedSize(5)),
            elf(ErrorKind::Compression(6)),
            elf(ErrorKind::Limit(Limit::Unpacked)),
            elf(ErrorKind::Decompress),
        ] {
            let mut answer = vec![FAILED];
            write_error(&mut answer, &error);
            assert_eq!(read(&answer).map(|read| read.err()), Some(Some(error)));
        }
        assert!(read(&[]).is_none() && read(&[MADE, 1, 2]).is_none());
    }
}
