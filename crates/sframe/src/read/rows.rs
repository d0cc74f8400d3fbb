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
        let mut found = None;
        self.skip_until(offset, &mut found);
        // What is left was not fit for the quick walk: a row near the end, or one that can't be read.
        while let Some(row) = self.next()? {
            if row.start > offset {
                break;
            }
            found = Some((row.start, row.info, row.at));
        }
        let Some((start, info, at)) = found else {
            return Ok(None);
        };
        self.row(start, info, at).map(Some)
    }

    /// Walks without looking at more than start and info byte of each row, and as far as both can be read with one
    /// load; `found` becomes the last row that begins at or before `offset`. Nothing is left if that is sure.
    #[inline]
    fn skip_until(&mut self, offset: u32, found: &mut Option<(u32, FreInfo, usize)>) {
        let width = self.fre_type.bytes();
        let big = self.bytes.endian() == Endian::Big;
        let start_bits = 8 * width as u32;
        let data = self.bytes.data();
        while self.left > 0 {
            let Some(chunk) = data.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) else {
                return;
            };
            // The start in the lowest bits, and the info byte above it.
            let (start, info) = if big {
                let word = u64::from_be_bytes(*chunk).rotate_left(start_bits);
                (word & !(u64::MAX << start_bits), word >> 56)
            } else {
                let word = u64::from_le_bytes(*chunk);
                (word & !(u64::MAX << start_bits), word >> start_bits)
            };
            let words = usize::from(WORDS_BYTES[usize::from(info as u8)]);
            let end = self.at + width + 1 + words;
            if words == usize::from(NO_WORDS) || end > data.len() {
                return;
            }
            if start > u64::from(offset) {
                self.left = 0;
                return;
            }
            *found = Some((start as u32, FreInfo(info as u8), self.at));
            self.at = end;
            self.left -= 1;
        }
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
        self.row(start, info, self.at)
    }

    /// The row at `at`, of which start and info byte are known; the next one follows it.
    #[inline]
    fn row(&mut self, start: u32, info: FreInfo, at: usize) -> Result<RawRow> {
        let info_at = at + self.fre_type.bytes();
        let Some(size) = info.word_size() else {
            return Err(Error::new(ErrorKind::WordSize(info.0 >> 5 & 3), info_at));
        };
        let words = info_at + 1;
        let end = words + info.count() * size.bytes();
        if end > self.bytes.len() {
            self.bytes.slice(words, end - words)?;
        }
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
