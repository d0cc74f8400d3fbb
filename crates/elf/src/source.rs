//! Where the bytes of an image come from.

use std::borrow::Cow;

use backtrail_wire::{Bytes, Endian};

use crate::budget::Budget;
use crate::map::{FileBytes, Missing};
use crate::{Error, ErrorKind, Result};

/// The bytes of an image: in memory, or in a file that is read part by part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Memory(&'a [u8], &'a Budget),
    File(&'a FileBytes),
}

impl<'a> Source<'a> {
    /// Bytes whose size their owner has limited.
    pub(crate) fn memory(bytes: &'a [u8]) -> Source<'a> {
        Source::Memory(bytes, Budget::unlimited())
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Source::Memory(bytes, _) => bytes.len(),
            Source::File(file) => file.len(),
        }
    }

    /// The bytes of a range.
    pub(crate) fn slice(self, offset: usize, len: usize) -> Result<&'a [u8]> {
        match self {
            // The byte order does not matter here.
            Source::Memory(bytes, _) => Ok(Bytes::new(bytes, Endian::Little).slice(offset, len)?),
            Source::File(file) => file.slice(offset, len).map_err(|missing| error(missing, offset, len)),
        }
    }

    /// The bytes of a range that is needed once; those of a file are not kept with it.
    pub(crate) fn once(self, offset: usize, len: usize) -> Result<Cow<'a, [u8]>> {
        match self {
            Source::Memory(..) => self.slice(offset, len).map(Cow::Borrowed),
            Source::File(file) => {
                let copied = file.copy(offset, len).map(Cow::Owned);
                copied.map_err(|missing| error(missing, offset, len))
            }
        }
    }

    /// The bytes from an offset on, at most this many.
    pub(crate) fn up_to(self, offset: usize, most: usize) -> Option<&'a [u8]> {
        let len = self.len().checked_sub(offset)?.min(most);
        match self {
            Source::Memory(bytes, _) => bytes.get(offset..offset + len),
            Source::File(file) => match file.slice(offset, len) {
                Err(Missing::Past(end)) => file.slice(offset, end.checked_sub(offset)?).ok(),
                bytes => bytes.ok(),
            },
        }
    }

    /// All bytes.
    pub(crate) fn whole(self) -> &'a [u8] {
        match self {
            Source::Memory(bytes, _) => bytes,
            Source::File(file) => file.bytes(),
        }
    }

    pub(crate) fn foreign_owner(self) -> Option<u32> {
        match self {
            Source::Memory(..) => None,
            Source::File(file) => file.foreign_owner(),
        }
    }

    pub(crate) fn budget(self) -> &'a Budget {
        match self {
            Source::Memory(_, budget) => budget,
            Source::File(file) => file.budget(),
        }
    }
}

fn error(missing: Missing, offset: usize, len: usize) -> Error {
    let kind = match missing {
        Missing::Past(end) => ErrorKind::Truncated {
            missing: offset.saturating_add(len).saturating_sub(end) as u64,
        },
        Missing::Limit(limit) => ErrorKind::Limit(limit),
    };
    Error::at(kind, offset as u64)
}

/// A part of a file, read when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    source: Source<'a>,
    start: usize,
    len: usize,
}

impl<'a> Stored<'a> {
    /// A part, as far as the source reaches.
    pub(crate) fn new(source: Source<'a>, start: usize, len: usize) -> Stored<'a> {
        let len = len.min(source.len().saturating_sub(start));
        Stored { source, start, len }
    }

    /// The number of its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes from an offset on, at most this many.
    pub fn up_to(&self, offset: usize, most: usize) -> Option<&'a [u8]> {
        let most = most.min(self.len.checked_sub(offset)?);
        self.source.up_to(self.start + offset, most)
    }
}

impl<'a> From<&'a [u8]> for Stored<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Stored::new(Source::memory(bytes), 0, bytes.len())
    }
}
