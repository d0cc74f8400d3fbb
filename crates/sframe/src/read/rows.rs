//! Rows (section 1.4).

use backtrail_wire::{Bytes, Endian};

use super::fde::Fde;
use crate::constants::{FreInfo, FreType, WordSize};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{PlainWords, RawFde, Words};
use crate::row::Row;

/// A row whose words have not been decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRow {
    pub(crate) start: u32,
    pub(crate) info: FreInfo,
    /// Offset of the row in bytes from the section's start.
    pub(crate) at: usize,
    word_size: WordSize,
    /// Offset of the words in bytes from the section's start.
    words: usize,
}

/// Entry of [`WORDS_BYTES`] for an invalid info byte.
const NO_WORDS: u8 = u8::MAX;

/// The size of the words after each info byte.
#[expect(
    clippy::indexing_slicing,
    reason = "the loop ends at the table; at most 15 words of 4 bytes"
)]
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

/// The rows at a function's beginning that a search can skip: the number of rows before the one
/// that applies, and that row's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    rows: u16,
    bytes: u16,
}

impl Passed {
    /// Used in place of a [`Passed::word`].
    pub(super) const UNKNOWN: u32 = u32::MAX;

    #[inline(always)]
    pub(super) fn of_word(word: u32) -> Option<Passed> {
        (word != Passed::UNKNOWN).then_some(Passed {
            rows: word as u16,
            bytes: (word >> 16) as u16,
        })
    }

    pub(super) fn word(self) -> u32 {
        u32::from(self.rows) | u32::from(self.bytes) << 16
    }
}

/// A walk over rows that stops at a sequence of ascending offsets.
pub(super) struct Walk<'a> {
    /// The rows that are not passed yet.
    rows: RawRows<'a>,
    passed: Option<Passed>,
    first: usize,
    count: u32,
}

impl Walk<'_> {
    /// The last row that begins at or before this offset. `None` if [`RawRows::last_until`] would
    /// not find it, because that row or the next one can't be read, or if it is more than 64 KiB
    /// from the first.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the walk only goes forward, and on by at most `count` rows"
    )]
    pub(super) fn until(&mut self, offset: u32) -> Option<Passed> {
        loop {
            let (at, left) = (self.rows.at, self.rows.left);
            let mut next = self.rows.clone();
            match next.next() {
                Ok(Some(row)) if row.start <= offset => {}
                Ok(_) => return self.passed,
                Err(_) => return None,
            }
            let passed = (u16::try_from(self.count - left), u16::try_from(at - self.first));
            self.passed = match passed {
                (Ok(rows), Ok(bytes)) => Some(Passed { rows, bytes }).filter(|passed| passed.word() != Passed::UNKNOWN),
                _ => None,
            };
            self.rows = next;
        }
    }
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

    /// The next row. An error ends the walk, because only a row determines where the next one
    /// begins.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the row and its words are in the section, and `left` is not 0"
    )]
    pub(crate) fn next(&mut self) -> Result<Option<RawRow>> {
        if self.left == 0 {
            return Ok(None);
        }
        match self.read(self.at) {
            Ok(row) => {
                self.at = row.words + row.info.count() * row.word_size.bytes();
                self.left -= 1;
                Ok(Some(row))
            }
            Err(error) => {
                self.left = 0;
                Err(error)
            }
        }
    }

    /// The rows after the passed ones.
    #[inline(always)]
    pub(super) fn after(self, passed: Passed) -> Self {
        RawRows {
            at: self.at.saturating_add(passed.bytes.into()),
            left: self.left.saturating_sub(passed.rows.into()),
            ..self
        }
    }

    /// Offset of the first row after the passed ones, in bytes from the section's start.
    #[inline(always)]
    pub(super) fn at(&self, passed: Passed) -> usize {
        self.at.saturating_add(passed.bytes.into())
    }

    pub(super) fn passed(self) -> Walk<'a> {
        Walk {
            first: self.at,
            count: self.left,
            rows: self,
            passed: None,
        }
    }

    /// The position of the last row that begins at or before `offset`.
    ///
    /// Fails if a row up to the next one after it can't be read.
    #[inline]
    pub(super) fn last_until(&self, offset: u32) -> Result<Option<usize>> {
        match self.quick_until(offset) {
            Some(found) => Ok(found),
            None => self.clone().slow_until(offset),
        }
    }

    /// Like [`RawRows::last_until`]; `None` if start and info bytes alone don't suffice.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`width` is at most 4; what is found is in the section"
    )]
    pub(super) fn quick_until(&self, offset: u32) -> Option<Option<usize>> {
        let rows = self.bytes.data().get(self.at..)?;
        let width = self.fre_type.bytes();
        let bits = 8 * width as u32;
        let found = match self.bytes.endian() {
            Endian::Little => until(rows, self.left, offset, width, bits, u64::from_le_bytes),
            Endian::Big => until(rows, self.left, offset, width, BIG_INFO_AT, |chunk| {
                big_head(chunk, bits)
            }),
        }?;
        Some(found.map(|at| self.at + at))
    }

    #[cold]
    #[inline(never)]
    fn slow_until(mut self, offset: u32) -> Result<Option<usize>> {
        let mut found = None;
        while let Some(row) = self.next()? {
            if row.start > offset {
                break;
            }
            found = Some(row.at);
        }
        Ok(found)
    }

    #[inline(always)]
    fn start(&self, at: usize) -> Result<u32> {
        Ok(match self.fre_type {
            FreType::Addr1 => self.bytes.u8(at)?.into(),
            FreType::Addr2 => self.bytes.u16(at)?.into(),
            FreType::Addr4 => self.bytes.u32(at)?,
        })
    }

    /// Reads the row at byte `at` of the section.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the head was read, so that it is in the section; 60 bytes of words at most"
    )]
    pub(super) fn read(&self, at: usize) -> Result<RawRow> {
        let (start, info) = match self.quick_head(at) {
            Some(head) => head,
            None => (self.start(at)?, FreInfo(self.bytes.u8(at + self.fre_type.bytes())?)),
        };
        let info_at = at + self.fre_type.bytes();
        let Some(word_size) = info.word_size() else {
            return Err(Error::new(ErrorKind::WordSize(info.0 >> 5 & 3), info_at));
        };
        let words = info_at + 1;
        let len = info.count() * word_size.bytes();
        if words + len > self.bytes.len() {
            self.bytes.slice(words, len)?;
        }
        Ok(RawRow {
            start,
            info,
            at,
            word_size,
            words,
        })
    }

    /// Reads start and info byte with one load for all widths; `None` near the data's end.
    #[inline(always)]
    #[expect(clippy::arithmetic_side_effects, reason = "a start has at most 4 bytes")]
    fn quick_head(&self, at: usize) -> Option<(u32, FreInfo)> {
        let chunk = *self.bytes.data().get(at..)?.first_chunk()?;
        let bits = 8 * self.fre_type.bytes() as u32;
        let (head, info) = match self.bytes.endian() {
            Endian::Little => (u64::from_le_bytes(chunk), u64::from_le_bytes(chunk) >> bits),
            Endian::Big => (big_head(chunk, bits), big_head(chunk, bits) >> BIG_INFO_AT),
        };
        Some(((head & !(u64::MAX << bits)) as u32, FreInfo(info as u8)))
    }
}

/// The bit at which [`big_head`] puts the info byte.
const BIG_INFO_AT: u32 = 56;

/// The first eight bytes of a big-endian row with a start of `bits` bits, rotated to put the start
/// into the lowest bits.
#[inline(always)]
fn big_head(chunk: [u8; 8], bits: u32) -> u64 {
    u64::from_be_bytes(chunk).rotate_left(bits)
}

/// The bits of an info byte that hold the number and size of the words.
const SHAPE: u64 = 0x7e;

/// The position of the last of `left` rows that begins at or before `offset`, if there is one.
///
/// Reads only start and info byte, with one load for both: `load` puts the start, `width` bytes
/// wide, into the lowest bits, and the info byte at bit `info_at`. The outer `None` means that this
/// does not suffice: for rows near the end of the data, and rows that can't be read.
// Not inlined: the surrounding code leaves no registers for the loop.
#[inline(never)]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`at` is in the rows, a row has less than 70 bytes, and `left` is not 0; the table has all bytes"
)]
fn until(
    rows: &[u8],
    mut left: u32,
    offset: u32,
    width: usize,
    info_at: u32,
    load: impl Fn([u8; 8]) -> u64,
) -> Option<Option<usize>> {
    let start = !(u64::MAX << (8 * width as u32));
    // Clamped, so that bits above a start are greater than the offset.
    let offset = u64::from(offset).min(start);
    let end = |at: usize, row: u64| match WORDS_BYTES[usize::from((row >> info_at) as u8)] {
        NO_WORDS => None,
        words => Some(at + width + 1 + usize::from(words)),
    };
    let readable = |at: usize, row: u64| end(at, row).is_some_and(|end| end <= rows.len());
    if left == 0 {
        return Some(None);
    }
    let mut row = load(*rows.first_chunk()?);
    if row & start > offset {
        return readable(0, row).then_some(None);
    }
    let (start_and_shape, shape) = (start | SHAPE << info_at, SHAPE << info_at);
    let mut at = 0;
    loop {
        // Most rows are as long as the previous one. While that is so, the position of the next row
        // does not wait for a load. One comparison checks both, because another shape sets bits
        // above any offset.
        let len = end(at, row)? - at;
        let same = row & shape;
        loop {
            left -= 1;
            if left == 0 {
                return (at + len <= rows.len()).then_some(Some(at));
            }
            row = load(*rows.get(at + len..)?.first_chunk()?);
            if (row & start_and_shape) ^ same > offset {
                break;
            }
            at += len;
        }
        if row & start > offset {
            return readable(at + len, row).then_some(Some(at));
        }
        at += len;
    }
}

/// The rows of a function.
///
/// Ends after the first error, because only a row determines where the next one begins.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    fde: Fde<'a>,
    rows: RawRows<'a>,
    implied: bool,
}

/// The implied row of a version 3 FDE without rows.
pub(super) const OUTERMOST: Row = Row { start: 0, rule: None };

impl<'a> Fde<'a> {
    /// The function's rows in stored order. A version 3 FDE without rows that marks the outermost
    /// frame yields one row that marks it.
    #[inline]
    pub fn rows(&self) -> Rows<'a> {
        Rows {
            fde: *self,
            rows: self.raw_rows(),
            implied: self.is_outermost(),
        }
    }

    #[inline]
    pub(crate) fn raw_rows(&self) -> RawRows<'a> {
        RawRows::new(self.fres, &self.raw)
    }

    #[inline]
    pub(crate) fn decode(&self, row: &RawRow) -> Result<Row> {
        Ok(Row {
            start: row.start,
            rule: self.context.decode(self.raw.fde_type, row.info, &self.words(row))?,
        })
    }

    /// The words of a row for [`Context::plain`](crate::layout::Context::plain), if the row is of
    /// that kind.
    #[inline(always)]
    pub(super) fn plain_words(&self, row: &RawRow) -> Option<PlainWords> {
        self.context.plain_words(self.raw.fde_type, &self.words(row))
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

    #[expect(clippy::arithmetic_side_effects, reason = "half of a length, and two")]
    fn size_hint(&self) -> (usize, Option<usize>) {
        // The number in the file may be wrong: a row takes at least two bytes, and an error follows
        // the last one.
        let possible = self.rows.bytes.len().saturating_sub(self.rows.at) / 2 + 1;
        let upper = (self.rows.left as usize).min(possible) + usize::from(self.implied);
        (0, Some(upper))
    }
}
