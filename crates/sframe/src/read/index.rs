//! An index of a section's functions and rows, for frequent look-ups.

use super::rows::{Passed, Walk};
use super::{Fde, Section};
use crate::constants::Flags;
use crate::error::Result;

/// An index of a section's functions and, with more memory, of their rows.
///
/// It divides the address range into pieces, and stores where the functions of each piece begin in
/// the table. A binary search waits for memory again and again; with the index, the function is
/// usually one step away, and with rows, the row is one or two more. The index is built once, in
/// memory that the caller provides. It is then as safe in a signal handler as [`Section::lookup`],
/// and never changes its results.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Start of the first function, in bytes from the section's start.
    first: i64,
    /// Each piece has `1 << shift` bytes.
    shift: u32,
    /// For each piece, the last function that begins at or before its first byte; after these, the
    /// last function of the table.
    pieces: &'a [u32],
    /// For each piece, the rows of that function that a search can skip ([`Passed::word`]); empty
    /// for an index without rows.
    rows: &'a [u32],
}

impl<'a> Index<'a> {
    /// The number of words that [`Index::build`] needs for an index of functions: at most four for
    /// each function, plus two.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "four pieces for each of fewer than 2^32 functions"
    )]
    pub fn words(section: &Section<'_>) -> usize {
        Extent::of_functions(section).map_or(0, |extent| extent.pieces() + 1)
    }

    /// The number of words that [`Index::build`] needs for an index of functions and rows: four to
    /// eight for each row, several times their size in the section. Reads every function's number
    /// of rows.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "eight words at most for each row, of which two bytes are in memory"
    )]
    pub fn words_with_rows(section: &Section<'_>) -> usize {
        Extent::of_rows(section).map_or(0, |extent| 2 * extent.pieces() + 1)
    }

    /// Builds the index of a section in `words`. It includes the rows if `words` has the length
    /// [`Index::words_with_rows`] or more.
    ///
    /// Returns `None` if the section has no functions, they are not sorted, or `words` is shorter
    /// than [`Index::words`]. Use [`Section::lookup`] then.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "as many pieces as `words` and `words_with_rows` count"
    )]
    pub fn build(section: &Section<'_>, words: &'a mut [u32]) -> Option<Index<'a>> {
        let of_rows = Extent::of_rows(section).filter(|extent| words.len() > 2 * extent.pieces());
        let (extent, with_rows) = match of_rows {
            Some(extent) => (extent, true),
            None => (Extent::of_functions(section)?, false),
        };
        let (pieces, words) = words.split_at_mut_checked(extent.pieces() + 1)?;
        extent.place_functions(section, pieces)?;
        let rows = words.get_mut(..if with_rows { extent.pieces() } else { 0 })?;
        extent.place_rows(section, pieces, rows);
        Some(Index {
            first: extent.first,
            shift: extent.shift,
            pieces,
            rows,
        })
    }

    /// The first and last function to search: the last function that begins at or before `target`
    /// is in this range, unless all begin later. Also what is known of the first one's rows.
    #[inline(always)]
    pub(super) fn range(&self, target: i64) -> (usize, usize, Known) {
        if target < self.first {
            return (0, 0, Known::Nothing);
        }
        let piece = (target.wrapping_sub(self.first) as u64 >> self.shift) as usize;
        let next = piece.wrapping_add(1);
        if let (Some(&first), Some(&last)) = (self.pieces.get(piece), self.pieces.get(next)) {
            let rows = (self.rows.get(piece), self.rows.get(next));
            let known = match rows {
                (Some(&here), Some(&then)) => Known::of(here, here == then && first == last),
                (Some(&here), None) => Known::of(here, false),
                (None, _) => Known::Nothing,
            };
            return (first as usize, last as usize, known);
        }
        let last = self.pieces.last().copied().unwrap_or(0) as usize;
        (last, last, Known::Nothing)
    }
}

/// What an index knows about the row of an address.
#[derive(Clone, Copy)]
pub(super) enum Known {
    Nothing,
    /// The row is this one or a later one.
    From(Passed),
    /// The row is this one, and the next row can be read.
    Row(Passed),
}

impl Known {
    #[inline(always)]
    fn of(word: u32, whole_piece: bool) -> Known {
        match Passed::of_word(word) {
            None => Known::Nothing,
            Some(passed) if whole_piece => Known::Row(passed),
            Some(passed) => Known::From(passed),
        }
    }
}

/// The address range that is divided into pieces.
struct Extent {
    first: i64,
    /// The distance from the first function's start to that of the last, in bytes.
    len: u64,
    shift: u32,
}

impl Extent {
    /// With two to four times as many pieces as functions, most pieces have at most one function.
    fn of_functions(section: &Section<'_>) -> Option<Extent> {
        Extent::of(section, section.held_fdes.into(), 1)
    }

    /// With two to four times as many pieces as rows, the row is known for most pieces.
    fn of_rows(section: &Section<'_>) -> Option<Extent> {
        let rows = |fde: Result<Fde<'_>>| fde.map_or(0, |fde| u64::from(fde.raw().num_fres));
        // A row takes at least two bytes, whatever number the functions claim.
        let rows = section
            .functions()
            .map(rows)
            .sum::<u64>()
            .min(section.fres.len() as u64 / 2);
        Extent::of(section, rows.max(section.held_fdes.into()), 1)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`finer` is 1, and the logarithm at least 2"
    )]
    fn of(section: &Section<'_>, parts: u64, finer: u32) -> Option<Extent> {
        if !section.flags.contains(Flags::FDE_SORTED) {
            return None;
        }
        let last = section.held_fdes.checked_sub(1)?;
        let first = section.start(0)?;
        let len = u64::try_from(section.start(last)?.checked_sub(first)?).ok()?;
        let of_part = len.checked_div(parts)?;
        let shift = of_part.max(4).ilog2() - finer;
        Some(Extent { first, len, shift })
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the shift is at least 1")]
    fn pieces(&self) -> usize {
        (self.len >> self.shift) as usize + 1
    }

    /// The number of pieces that begin before this start.
    #[expect(clippy::arithmetic_side_effects, reason = "the shift is from 1 to 63")]
    fn pieces_before(&self, start: i64) -> usize {
        let len = start.wrapping_sub(self.first) as u64;
        (len >> self.shift) as usize + usize::from(len & ((1 << self.shift) - 1) != 0)
    }

    /// Returns `None` if the functions are not sorted.
    fn place_functions(&self, section: &Section<'_>, pieces: &mut [u32]) -> Option<()> {
        let mut before = self.first;
        let mut next = 0;
        for index in 0..section.held_fdes {
            let start = section.start(index)?;
            if start < before {
                return None;
            }
            before = start;
            // Pieces that begin before this function begin in the previous one.
            let begun = self.pieces_before(start);
            for piece in pieces.get_mut(next..begun).unwrap_or_default() {
                *piece = index.saturating_sub(1);
            }
            next = next.max(begun);
        }
        for piece in pieces.get_mut(next..).unwrap_or_default() {
            *piece = section.held_fdes.saturating_sub(1);
        }
        Some(())
    }

    /// Leaves functions that can't be read, and functions with a repeated pattern, unknown.
    fn place_rows(&self, section: &Section<'_>, pieces: &[u32], rows: &mut [u32]) {
        rows.fill(Passed::UNKNOWN);
        let mut walked = None;
        for (nth, (&function, word)) in pieces.iter().zip(rows).enumerate() {
            if walked.as_ref().is_none_or(|(before, _)| *before != function) {
                walked = Some((function, section.walk(function)));
            }
            let Some((_, Some((start, walk)))) = &mut walked else {
                continue;
            };
            let begin = self.first.wrapping_add((nth as i64) << self.shift);
            if let Some(passed) = u32::try_from(begin.wrapping_sub(*start))
                .ok()
                .and_then(|offset| walk.until(offset))
            {
                *word = passed.word();
            }
        }
    }
}

impl<'a> Section<'a> {
    /// A function's start, in bytes from the section's start, and the walk over its rows.
    fn walk(&self, function: u32) -> Option<(i64, Walk<'a>)> {
        let fde = self.fde(function).ok().filter(|fde| !fde.raw().info.pcmask())?;
        Some((self.start(function)?, fde.raw_rows().passed()))
    }
}
