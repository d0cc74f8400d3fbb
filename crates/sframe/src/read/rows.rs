//! Rows (section 1.4).

use backtrail_wire::{Bytes, Endian};

use super::Fde;
use crate::constants::{FreInfo, FreType, WordSize};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{RawFde, Words};
use crate::row::Row;

/// A row whose words are not yet looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRow {
    pub(crate) start: u32,
    pub(crate) info: FreInfo,
    /// Where the row is, in bytes from the section's start.
    pub(crate) at: usize,
    word_size: WordSize,
    /// Where the words are, in bytes from the section's start.
    words: usize,
}

/// In [`WORDS_BYTES`]: there is no such info byte.
const NO_WORDS: u8 = u8::MAX;

/// Bytes of the words behind each info byte.
static WORDS_BYTES: [u8; 256] = {
    let mut bytes = [NO_WORDS; 256];
    let mut info = 0;
    while info < 256 {
        if let Some(size) = FreInfo(info as u8).word_size() {
            bytes[info] = (FreInfo(info as u8).count() * size.bytes()) as u8;
        }
        info += 1;
    }
    bytes
};

/// Walks over the rows of a function.
#[derive(Clone, Debug)]
pub(crate) struct RawRows<'a> {
    bytes: Bytes<'a>,
    at: usize,
    left: u32,
    fre_type: FreType,
}

impl<'a> RawRows<'a> {
    #[inline]
    pub(super) fn new(bytes: Bytes<'a>, raw: &RawFde) -> Self {
        RawRows {
            bytes,
            at: raw.rows,
            left: raw.num_fres,
            fre_type: raw.fre_type,
        }
    }

    /// The next row. After an error there is none, because only a row tells where the next one begins.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<RawRow>> {
        if self.left == 0 {
            return Ok(None);
        }
        match self.read() {
            Ok(row) => {
                self.left -= 1;
                Ok(Some(row))
            }
            Err(error) => {
                self.left = 0;
                Err(error)
            }
        }
    }

    /// The last row that begins at or before `offset`, which ends the walk.
    ///
    /// Fails where a row up to the one behind it can't be read.
    #[inline]
    pub(super) fn last_until(mut self, offset: u32) -> Result<Option<RawRow>> {
        let walk = Walk {
            rest: self.bytes.data().get(self.at..).unwrap_or_default(),
            left: self.left,
        };
        let (walk, found) = match self.bytes.endian() {
            Endian::Little => walk.until(offset, self.fre_type.bytes(), |chunk, start_bits| {
                let word = u64::from_le_bytes(chunk);
                (word & !(u64::MAX << start_bits), (word >> start_bits) as u8)
            }),
            Endian::Big => walk.until(offset, self.fre_type.bytes(), |chunk, start_bits| {
                let word = u64::from_be_bytes(chunk).rotate_left(start_bits);
                (word & !(u64::MAX << start_bits), (word >> 56) as u8)
            }),
        };
        let len = self.bytes.len();
        let mut found = found.map(|found| len - found.len());
        (self.at, self.left) = (self.at.max(len - walk.rest.len()), walk.left);
        // What is left was not fit for the quick walk: a row near the end, or one that can't be read.
        while let Some(row) = self.next()? {
            if row.start > offset {
                break;
            }
            found = Some(row.at);
        }
        let Some(at) = found else {
            return Ok(None);
        };
        self.at = at;
        self.read().map(Some)
    }

    #[inline]
    fn read(&mut self) -> Result<RawRow> {
        let start = match self.fre_type {
            FreType::Addr1 => self.bytes.u8(self.at)?.into(),
            FreType::Addr2 => self.bytes.u16(self.at)?.into(),
            FreType::Addr4 => self.bytes.u32(self.at)?,
        };
        let info_at = self.at + self.fre_type.bytes();
        let info = FreInfo(self.bytes.u8(info_at)?);
        let Some(size) = info.word_size() else {
            return Err(Error::new(ErrorKind::WordSize(info.0 >> 5 & 3), info_at));
        };
        let words = info_at + 1;
        let end = words + info.count() * size.bytes();
        if end > self.bytes.len() {
            self.bytes.slice(words, end - words)?;
        }
        let at = self.at;
        self.at = end;
        Ok(RawRow {
            start,
            info,
            at,
            word_size: size,
            words,
        })
    }
}

/// The bits of an info byte that tell the words' number and size.
const SHAPE: u8 = 0x7e;

/// A quick walk over rows, which looks at start and info byte only, as far as one load reads both.
struct Walk<'a> {
    /// From the next row on.
    rest: &'a [u8],
    left: u32,
}

impl<'a> Walk<'a> {
    /// What begins with the last row that begins at or before `offset`. No row is left if that is sure. `split` takes a
    /// row's start of so many bits and its info byte from eight bytes.
    // Not inlined: what is around it leaves no registers for the loop.
    #[inline(never)]
    fn until(
        mut self,
        offset: u32,
        width: usize,
        split: impl Fn([u8; 8], u32) -> (u64, u8),
    ) -> (Self, Option<&'a [u8]>) {
        let start_bits = 8 * width as u32;
        let before_words = width + 1;
        let read = |rest: &[u8]| rest.first_chunk::<8>().map(|chunk| split(*chunk, start_bits));
        let mut found = None;
        let mut row = self.rest;
        let Some((start, mut info)) = read(row).filter(|_| self.left > 0) else {
            return (self, None);
        };
        if start > u64::from(offset) {
            return (self, None);
        }
        loop {
            // Most rows are as long as the one before. As long as that is so, where the next one begins waits for no load.
            let words = WORDS_BYTES[usize::from(info)];
            let len = before_words + usize::from(words);
            if words == NO_WORDS {
                break;
            }
            let shape = info & SHAPE;
            loop {
                let Some(next) = row.get(len..) else {
                    return (self, found);
                };
                found = Some(row);
                self.rest = next;
                self.left -= 1;
                let Some((start, next_info)) = read(next).filter(|_| self.left > 0) else {
                    return (self, found);
                };
                if start > u64::from(offset) {
                    let words = WORDS_BYTES[usize::from(next_info)];
                    if words != NO_WORDS && next.len() >= before_words + usize::from(words) {
                        self.left = 0;
                    }
                    return (self, found);
                }
                row = next;
                info = next_info;
                if info & SHAPE != shape {
                    break;
                }
            }
        }
        (self, found)
    }
}

/// The rows of a function.
///
/// Ends after the first error, because only a row tells where the next one begins.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    fde: Fde<'a>,
    rows: RawRows<'a>,
    implied: bool,
}

impl<'a> Rows<'a> {
    #[inline]
    pub(super) fn new(fde: &Fde<'a>) -> Self {
        Rows {
            fde: *fde,
            rows: fde.raw_rows(),
            implied: fde.is_outermost(),
        }
    }
}

/// What a version 3 FDE without rows stands for.
pub(super) const OUTERMOST: Row = Row { start: 0, rule: None };

impl Fde<'_> {
    #[inline]
    pub(crate) fn decode(&self, row: &RawRow) -> Result<Row> {
        Ok(Row {
            start: row.start,
            rule: self.context.decode(self.raw.fde_type, row.info, &self.words(row))?,
        })
    }

    #[inline]
    pub(crate) fn words(&self, row: &RawRow) -> Words<'_> {
        Words::new(self.fres, row.words, row.word_size, row.info.count())
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.implied {
            self.implied = false;
            return Some(Ok(OUTERMOST));
        }
        let row = self.rows.next().transpose()?.and_then(|row| self.fde.decode(&row));
        if row.is_err() {
            self.rows.left = 0;
        }
        Some(row)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The number in the file may lie: a row takes two bytes at least, and where they end there is an error.
        let possible = self.rows.bytes.len().saturating_sub(self.rows.at) / 2 + 1;
        let upper = (self.rows.left as usize).min(possible) + usize::from(self.implied);
        (0, Some(upper))
    }
}
