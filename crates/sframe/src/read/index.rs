//! An index of a section's functions, and of its rows, for those who look up often.

use super::rows::{Passed, Walk};
use super::{Fde, Section};
use crate::constants::Flags;
use crate::error::Result;

/// Where in a section's table the functions of each piece of the address range begin; with more
/// memory, the rows too.
///
/// A search by halves waits for memory again and again; from here it is one step to the function,
/// in most cases, and with rows it is one or two from there to the row. Built once, in memory that
/// the caller lends; from then on as safe in a signal handler as [`Section::lookup`], whose answers
/// it never changes.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Where the first function begins, in bytes from the section's start.
    first: i64,
    /// Each piece has `1 << shift` bytes.
    shift: u32,
    /// For each piece the last function that begins at or before its first byte; and behind them
    /// the last one of all.
    pieces: &'a [u32],
    /// For each piece the rows of that function that are passed by then ([`Passed::word`]); empty
    /// without rows.
    rows: &'a [u32],
}

impl<'a> Index<'a> {
    /// Words of memory that [`Index::build`] wants for the functions: two more than four for each,
    /// at most.
    pub fn words(section: &Section<'_>) -> usize {
        Extent::of_functions(section).map_or(0, |extent| extent.pieces() + 1)
    }

    /// Words of memory that [`Index::build`] wants for the rows too: four to eight for each, which
    /// is some times what they take in the section. Asks each function how many rows it has.
    pub fn words_with_rows(section: &Section<'_>) -> usize {
        Extent::of_rows(section).map_or(0, |extent| 2 * extent.pieces() + 1)
    }

    /// Makes the index of a section in `words`: of functions and rows where these are as many as
    /// [`Index::words_with_rows`] says, and else of functions alone.
    ///
    /// `None` where the functions are not sorted, or there are none, or the memory is less than
    /// [`Index::words`] says: [`Section::lookup`] has to do.
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

    /// The functions, first and last, of which one is the last that begins at or before `target`,
    /// unless all begin later; and what is known of the rows of the first.
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

/// What an index tells of the row that is looked for.
#[derive(Clone, Copy)]
pub(super) enum Known {
    Nothing,
    /// It is not before this one.
    From(Passed),
    /// It is this one, and the one behind it can be read.
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

/// What is divided into pieces.
struct Extent {
    first: i64,
    /// Bytes from the first function's start to the last one's.
    len: u64,
    shift: u32,
}

impl Extent {
    /// In two to four times as many pieces as functions: most have one or none.
    fn of_functions(section: &Section<'_>) -> Option<Extent> {
        Extent::of(section, section.held_fdes.into(), 1)
    }

    /// In two to four times as many pieces as rows: for most pieces it is known which row it is.
    fn of_rows(section: &Section<'_>) -> Option<Extent> {
        let rows = |fde: Result<Fde<'_>>| fde.map_or(0, |fde| u64::from(fde.raw().num_fres));
        // A row takes two bytes at least, whatever the functions say.
        let rows = section
            .functions()
            .map(rows)
            .sum::<u64>()
            .min(section.fres.len() as u64 / 2);
        Extent::of(section, rows.max(section.held_fdes.into()), 1)
    }

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

    fn pieces(&self) -> usize {
        (self.len >> self.shift) as usize + 1
    }

    /// How many pieces begin before this start.
    fn pieces_before(&self, start: i64) -> usize {
        let len = start.wrapping_sub(self.first) as u64;
        (len >> self.shift) as usize + usize::from(len & ((1 << self.shift) - 1) != 0)
    }

    /// `None` where functions are not sorted.
    fn place_functions(&self, section: &Section<'_>, pieces: &mut [u32]) -> Option<()> {
        let mut before = self.first;
        let mut next = 0;
        for index in 0..section.held_fdes {
            let start = section.start(index)?;
            if start < before {
                return None;
            }
            before = start;
            // A piece that has begun by now begins in the function before this one.
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

    /// Of functions that can't be read, and of rows that are for a repeated pattern, nothing is
    /// known.
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
    /// Where a function begins, in bytes from the section's start, and the walk over its rows.
    fn walk(&self, function: u32) -> Option<(i64, Walk<'a>)> {
        let fde = self.fde(function).ok().filter(|fde| !fde.raw().info.pcmask())?;
        Some((self.start(function)?, fde.raw_rows().passed()))
    }
}
