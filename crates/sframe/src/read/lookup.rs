//! Looking up the row of a program counter.

use core::hint::select_unpredictable;

use backtrail_wire::{Bytes, Endian};

use super::index::{Index, Known};
use super::rows::OUTERMOST;
use super::{Fde, Section};
use crate::constants::{Flags, Version};
use crate::error::Result;
use crate::layout::{Context, V1_FDE_SIZE, V2_FDE_SIZE, V3_FDE_SIZE};
use crate::row::{Function, Row};

/// The function that contains a program counter, and the row that applies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The function.
    pub function: Function,
    /// The row; its `rule` is `None` in the outermost frame.
    pub row: Row,
}

impl<'a> Section<'a> {
    /// The row that applies at `pc`; `None` if no function contains it, or the function has no row
    /// for it.
    ///
    /// Takes O(log functions + rows of the function), or O(functions) if the section isn't flagged
    /// as sorted. If functions overlap, the one with the largest start is used, and among those the
    /// last in the table; in a sorted section, a function that spans another one's whole range may
    /// be missed. Never allocates or panics, so it is safe in a signal handler.
    ///
    /// Fails if the function's FDE, or one of its rows up to the one after the result, can't be
    /// read.
    pub fn lookup(&self, pc: u64) -> Result<Option<Found>> {
        self.look_up(pc, None)
    }

    /// Like [`Section::lookup`], with an index of this section.
    ///
    /// Waits for memory three times, instead of once for each binary digit of the number of
    /// functions. With the index of another section, the results are meaningless.
    pub fn lookup_by(&self, index: &Index<'_>, pc: u64) -> Result<Option<Found>> {
        self.look_up(pc, Some(index))
    }

    // Version and byte order are resolved here, so that no read has to check them.
    #[inline]
    fn look_up(&self, pc: u64, by: Option<&Index<'_>>) -> Result<Option<Found>> {
        match (self.context.version, self.endian()) {
            (Version::V1, Endian::Little) => self.look_up_in::<V1_FDE_SIZE, false>(narrow_little, pc, by),
            (Version::V1, Endian::Big) => self.look_up_in::<V1_FDE_SIZE, true>(narrow_big, pc, by),
            (Version::V2, Endian::Little) => self.look_up_in::<V2_FDE_SIZE, false>(narrow_little, pc, by),
            (Version::V2, Endian::Big) => self.look_up_in::<V2_FDE_SIZE, true>(narrow_big, pc, by),
            (Version::V3, Endian::Little) => self.look_up_in::<V3_FDE_SIZE, false>(wide_little, pc, by),
            (Version::V3, Endian::Big) => self.look_up_in::<V3_FDE_SIZE, true>(wide_big, pc, by),
        }
    }

    // Not inlined: six copies in one function leave no registers for any of them.
    #[inline(never)]
    fn look_up_in<const N: usize, const BIG: bool>(
        &self,
        read: impl Fn(&[u8; N]) -> (i64, u32),
        pc: u64,
        by: Option<&Index<'_>>,
    ) -> Result<Option<Found>> {
        // Relative to the section, like the order of the table, even if the address space wraps in
        // between.
        let target = pc.wrapping_sub(self.address) as i64;
        let Some(table) = self.fdes.data().get(self.fdes_start..) else {
            return Ok(None);
        };
        let table = Table::new(table.as_chunks().0, self, read);
        let mut known = Known::Nothing;
        let found = if let Some(index) = by {
            let (first, last, rows) = index.range(target);
            let found = table.search_among(first, last, target);
            // The index knows only the rows of the function in which the piece begins.
            if found.is_some_and(|(index, _)| index as usize == first) {
                known = rows;
            }
            found
        } else if self.flags.contains(Flags::FDE_SORTED) {
            table.search(target)
        } else {
            table.scan(target)
        };
        let Some((index, offset)) = found else {
            return Ok(None);
        };
        match self.of_kind::<N, BIG>().plain(index, offset, known) {
            Some(found) => Ok(Some(found)),
            None => self.fde(index)?.found_at(offset),
        }
    }

    /// The same section, with a version and byte order that are known at compile time.
    #[inline(always)]
    fn of_kind<const N: usize, const BIG: bool>(&self) -> Section<'a> {
        let endian = if BIG { Endian::Big } else { Endian::Little };
        let version = match N {
            V1_FDE_SIZE => Version::V1,
            V2_FDE_SIZE => Version::V2,
            _ => Version::V3,
        };
        Section {
            context: Context {
                version,
                ..self.context
            },
            fdes: Bytes::new(self.fdes.data(), endian),
            fres: Bytes::new(self.fres.data(), endian),
            ..*self
        }
    }

    /// The result at `offset` bytes into the FDE at `index`, if the row is of the usual kind.
    /// `None` means neither that there is no row nor that there is an error.
    ///
    /// The result is assembled in one place: each copy through memory, read in other pieces than it
    /// was written in, would take as long as a cache miss.
    #[inline(always)]
    fn plain(&self, index: u32, offset: u32, known: Known) -> Option<Found> {
        let fde = self.fde(index).ok()?;
        let rows = fde.raw_rows();
        let offset = fde.offset_of_row(offset);
        let at = match known {
            Known::Row(passed) => rows.at(passed),
            Known::From(passed) => rows.clone().after(passed).quick_until(offset)??,
            Known::Nothing => rows.quick_until(offset)??,
        };
        let row = rows.read(at).ok()?;
        let words = fde.plain_words(&row)?;
        Some(Found {
            function: fde.function(),
            row: Row {
                start: row.start,
                rule: Some(fde.context.plain(row.info, words)),
            },
        })
    }
}

/// Start and size from an FDE of versions 1 and 2.
#[inline]
fn narrow_little<const N: usize>(raw: &[u8; N]) -> (i64, u32) {
    (
        i32::from_le_bytes(field(raw, 0)).into(),
        u32::from_le_bytes(field(raw, 4)),
    )
}

#[inline]
fn narrow_big<const N: usize>(raw: &[u8; N]) -> (i64, u32) {
    (
        i32::from_be_bytes(field(raw, 0)).into(),
        u32::from_be_bytes(field(raw, 4)),
    )
}

/// Start and size from an index entry of version 3.
#[inline]
fn wide_little<const N: usize>(raw: &[u8; N]) -> (i64, u32) {
    (i64::from_le_bytes(field(raw, 0)), u32::from_le_bytes(field(raw, 8)))
}

#[inline]
fn wide_big<const N: usize>(raw: &[u8; N]) -> (i64, u32) {
    (i64::from_be_bytes(field(raw, 0)), u32::from_be_bytes(field(raw, 8)))
}

#[inline]
fn field<const N: usize, const M: usize>(raw: &[u8; N], at: usize) -> [u8; M] {
    match raw.get(at..).and_then(|tail| tail.first_chunk()) {
        Some(bytes) => *bytes,
        None => [0; M],
    }
}

/// The FDE table as fixed-size entries, so that a probe costs one bounds check.
struct Table<'a, const N: usize, F> {
    entries: &'a [[u8; N]],
    /// Added to every start, plus `stride` for each entry before it.
    base: i64,
    stride: i64,
    read: F,
}

impl<'a, const N: usize, F: Fn(&[u8; N]) -> (i64, u32)> Table<'a, N, F> {
    #[inline]
    fn new(entries: &'a [[u8; N]], section: &Section<'_>, read: F) -> Self {
        Table {
            entries,
            base: if section.pcrel { section.fdes_start as i64 } else { 0 },
            stride: if section.pcrel { N as i64 } else { 0 },
            read,
        }
    }

    /// Start, in bytes from the section's start, and size.
    #[inline]
    fn entry(&self, index: usize) -> (i64, u32) {
        // No probe is past the end; an empty function instead of a panic proves that to the
        // compiler.
        let (start, size) = match self.entries.get(index) {
            Some(raw) => (self.read)(raw),
            None => (0, 0),
        };
        let field = self.base.wrapping_add(self.stride.wrapping_mul(index as i64));
        (start.wrapping_add(field), size)
    }

    #[inline]
    fn search(&self, target: i64) -> Option<(u32, u32)> {
        if self.entries.is_empty() {
            return None;
        }
        let (first, len) = self.narrow(target);
        self.found(self.last_from(target, first, len), target)
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "indexes of fewer than 2^32 entries")]
    fn search_among(&self, first: usize, last: usize, target: i64) -> Option<(u32, u32)> {
        if first == last {
            return self.found(first, target);
        }
        if last.saturating_sub(first) > 3 {
            return self.found(self.last_from(target, first, last - first + 1), target);
        }
        // No branch depends on the entries, and all loads wait for memory together. Entries past
        // the last one are replaced by it.
        let begun = |nth: usize| usize::from(self.entry((first + nth).min(last)).0 <= target);
        let ahead = (begun(1) + begun(2) + begun(3)).min(last.saturating_sub(first));
        self.found(first + ahead, target)
    }

    /// The function that contains `target`, given the last one that begins at or before it.
    #[inline]
    fn found(&self, last: usize, target: i64) -> Option<(u32, u32)> {
        let (start, size) = self.entry(last);
        if let Some(offset) = offset_in(target, start, size) {
            return Some((last as u32, offset));
        }
        self.search_before(last, target)
    }

    /// The last of `len` entries from `first` on that starts at or before `target`, or the first of
    /// them. No branch depends on the entries. The search splits distant entries into quarters,
    /// because the three probes of a step wait for memory together, and then into halves.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "indexes of fewer than 2^32 entries")]
    fn last_from(&self, target: i64, mut first: usize, mut len: usize) -> usize {
        const FAR: usize = 16;
        let target = target.wrapping_sub(self.base);
        let is_below = |raw: &[u8; N], index: usize| {
            (self.read)(raw).0 <= target.wrapping_sub(self.stride.wrapping_mul(index as i64))
        };
        while len > FAR {
            let quarter = len / 4;
            let [one, two, three] = [1, 2, 3].map(|nth| first + nth * quarter);
            let probes = (self.entries.get(one), self.entries.get(two), self.entries.get(three));
            let (Some(at_one), Some(at_two), Some(at_three)) = probes else {
                break;
            };
            first = select_unpredictable(is_below(at_one, one), one, first);
            first = select_unpredictable(is_below(at_two, two), two, first);
            first = select_unpredictable(is_below(at_three, three), three, first);
            // The last quarter is the longest.
            len -= 3 * quarter;
        }
        while len > 1 {
            let half = len / 2;
            let middle = first + half;
            let Some(raw) = self.entries.get(middle) else {
                break;
            };
            first = select_unpredictable(is_below(raw, middle), middle, first);
            len -= half;
        }
        first
    }

    /// First index and length of the part of the table to search.
    ///
    /// If functions are spread evenly, their index can be guessed from the address, to within the
    /// square root of their number. In a large table, that saves the steps that miss the cache. Two
    /// probes check the guess. In a small table, searching is faster than guessing.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "less than the number of entries")]
    fn narrow(&self, target: i64) -> (usize, usize) {
        const WORTH_GUESSING: usize = 1 << 13;
        let whole = (0, self.entries.len());
        let last = self.entries.len().saturating_sub(1);
        if last < WORTH_GUESSING {
            return whole;
        }
        let (low, high) = (self.entry(0).0, self.entry(last).0);
        if !(low..high).contains(&target) {
            return whole;
        }
        let guess = share(target.wrapping_sub(low) as u64, high.wrapping_sub(low) as u64, last);
        let margin = 1 << (last.ilog2() / 2);
        let (below, above) = (guess.saturating_sub(margin), guess.saturating_add(margin));
        if above <= last && self.entry(below).0 <= target && target < self.entry(above).0 {
            // The same number of steps for every target.
            (below, 2 * margin)
        } else {
            whole
        }
    }

    /// Searches backwards from `last`: the function that contains `target` may be followed by
    /// functions of size 0, at the same start or inside it, and by others with the same start.
    #[cold]
    fn search_before(&self, last: usize, target: i64) -> Option<(u32, u32)> {
        let (mut start, mut size) = self.entry(last);
        for index in (0..last).rev() {
            let before = self.entry(index);
            if size != 0 && before.0 != start {
                return None;
            }
            (start, size) = before;
            if let Some(offset) = offset_in(target, start, size) {
                return Some((index as u32, offset));
            }
        }
        None
    }

    #[inline]
    fn scan(&self, target: i64) -> Option<(u32, u32)> {
        let mut best: Option<(i64, u32, u32)> = None;
        for index in 0..self.entries.len() {
            let (start, size) = self.entry(index);
            if let Some(offset) = offset_in(target, start, size)
                && best.is_none_or(|(best_start, ..)| start >= best_start)
            {
                best = Some((start, index as u32, offset));
            }
        }
        best.map(|(_, index, offset)| (index, offset))
    }
}

/// Roughly `steps * part / whole`; less than `steps` because `part` is less than `whole`.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "both factors have 32 bits; the divisor is not 0"
)]
fn share(part: u64, whole: u64, steps: usize) -> usize {
    // A table has fewer than 2^32 entries: with 32 bits for the part, the product fits into 64.
    let excess = 32u32.saturating_sub(whole.leading_zeros());
    let (part, whole) = (part >> excess, whole >> excess);
    (part * (steps as u64) / whole.max(1)) as usize
}

/// The offset of `target` in the function, if it is inside.
#[inline]
fn offset_in(target: i64, start: i64, size: u32) -> Option<u32> {
    let offset = target.wrapping_sub(start) as u64;
    (target >= start && offset < u64::from(size)).then_some(offset as u32)
}

impl Fde<'_> {
    /// The function, and the row that applies at `offset` bytes into it.
    #[inline(never)]
    fn found_at(&self, offset: u32) -> Result<Option<Found>> {
        let function = self.function();
        if self.is_outermost() {
            return Ok(Some(Found {
                function,
                row: OUTERMOST,
            }));
        }
        let rows = self.raw_rows();
        let Some(at) = rows.last_until(self.offset_of_row(offset))? else {
            return Ok(None);
        };
        let row = self.decode(&rows.read(at)?)?;
        Ok(Some(Found { function, row }))
    }

    /// The offset to compare with row starts: relative to the repeated block in PCMASK FDEs.
    #[inline(always)]
    fn offset_of_row(&self, offset: u32) -> u32 {
        // Reading the FDE rejects a repeat size of 0.
        match self.raw.info.pcmask() {
            true => offset.checked_rem(self.raw.rep_size.into()).unwrap_or(offset),
            false => offset,
        }
    }
}
