//! Rows (section 1.4).

use backtrail_wire::Bytes;

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
