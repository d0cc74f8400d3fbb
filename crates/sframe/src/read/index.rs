//! A coarse index of a section's functions, for those who look up often.

use super::Section;
use super::lookup::Found;
use crate::constants::Flags;
use crate::error::Result;

/// Where in a section's table the functions of each piece of the address range begin.
///
/// A search by halves waits for memory again and again; from here it is one step to the function, in most cases. Built once,
/// in memory that the caller lends; from then on as safe in a signal handler as [`Section::lookup`], whose answers it
/// never changes.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Where the first function begins, in bytes from the section's start.
    first: i64,
    /// Each piece has `1 << shift` bytes.
    shift: u32,
    /// For each piece the last function that begins at or before its first byte; and behind them the last one of all.
    pieces: &'a [u32],
}

impl<'a> Index<'a> {
    /// Words of memory that [`Index::build`] wants for this section: two more than four for each function, at most.
    pub fn words(section: &Section<'_>) -> usize {
        Extent::of(section).map_or(0, |extent| extent.pieces() + 1)
    }

    /// Makes the index of a section in `words`, of which it takes as many as [`Index::words`] says.
    ///
    /// `None` where the functions are not sorted, or there are none, or the memory is too small: [`Section::lookup`]
    /// has to do.
    pub fn build(section: &Section<'_>, words: &'a mut [u32]) -> Option<Index<'a>> {
        let extent = Extent::of(section)?;
        let pieces = words.get_mut(..extent.pieces() + 1)?;
        let mut before = extent.first;
        let mut next = 0;
        for index in 0..section.held_fdes {
            let start = section.start(index)?;
            if start < before {
                return None;
            }
            before = start;
            // A piece that has begun by now begins in the function before this one.
            let begun = extent.pieces_before(start);
            for piece in pieces.get_mut(next..begun).unwrap_or_default() {
                *piece = index.saturating_sub(1);
            }
            next = next.max(begun);
        }
        for piece in pieces.get_mut(next..).unwrap_or_default() {
            *piece = section.held_fdes.saturating_sub(1);
        }
        Some(Index {
            first: extent.first,
            shift: extent.shift,
            pieces,
        })
    }

    /// The functions, first and last, of which one is the last that begins at or before `target`, unless all begin later.
    #[inline(always)]
    pub(super) fn range(&self, target: i64) -> (usize, usize) {
        if target < self.first {
            return (0, 0);
        }
        let piece = (target.wrapping_sub(self.first) as u64 >> self.shift) as usize;
        let pieces = (self.pieces.get(piece), self.pieces.get(piece.wrapping_add(1)));
        if let (Some(&first), Some(&last)) = pieces {
            return (first as usize, last as usize);
        }
        let last = self.pieces.last().copied().unwrap_or(0) as usize;
        (last, last)
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
    fn of(section: &Section<'_>) -> Option<Extent> {
        if !section.flags.contains(Flags::FDE_SORTED) {
            return None;
        }
        let last = section.held_fdes.checked_sub(1)?;
        let first = section.start(0)?;
        let len = u64::try_from(section.start(last)?.checked_sub(first)?).ok()?;
        // Two to four times as many pieces as functions: most have one or none.
        let of_function = len.checked_div(section.held_fdes.into())?;
        let shift = of_function.max(4).ilog2() - 1;
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
}

impl Section<'_> {
    /// As [`Section::lookup`], with the index of this section: three steps that wait for memory instead of as many as the
    /// number of functions has binary digits. The index of another section gives the answers of neither.
    pub fn lookup_by(&self, index: &Index<'_>, pc: u64) -> Result<Option<Found>> {
        let target = pc.wrapping_sub(self.address) as i64;
        self.found(self.find(target, Some(index)))
    }
}
