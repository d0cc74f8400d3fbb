//! Leaving out what the readers of a table would refuse.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;

use super::function::FunctionRows;
use super::options::Options;
use super::output::Skipped;
use crate::layout::{Context, default};
use crate::readers::{Reader, Readers};
use crate::reason::Reason;
use crate::row::Row;

/// The functions to write.
pub(super) struct Restricted<'f> {
    /// Functions, and pieces of functions that were cut.
    pub(super) functions: Cow<'f, [FunctionRows]>,
    /// The index of each in the input; empty if they are the input.
    origins: Vec<usize>,
    /// The code whose rows are refused.
    pub(super) skipped: Vec<Skipped>,
}

impl<'f> Restricted<'f> {
    /// Cuts the rows that one of the readers refuses out of their functions: a reader goes on with
    /// `.eh_frame` where a table has nothing, but not where it has a wrong answer.
    pub(super) fn new(functions: &'f [FunctionRows], options: &Options) -> Restricted<'f> {
        let mut restricted = Restricted {
            functions: Cow::Borrowed(functions),
            origins: Vec::new(),
            skipped: Vec::new(),
        };
        let rules = Rules {
            readers: options.readers,
            context: options.context(),
        };
        if functions.iter().all(|function| rules.bear(function)) {
            return restricted;
        }
        let mut pieces = Vec::with_capacity(functions.len());
        for (index, function) in functions.iter().enumerate() {
            let before = pieces.len();
            rules.cut(index, function, &mut pieces, &mut restricted.skipped);
            restricted.origins.extend((before..pieces.len()).map(|_| index));
        }
        restricted.functions = Cow::Owned(pieces);
        restricted
    }

    /// The index in the input of a function or piece.
    pub(super) fn origin(&self, index: usize) -> usize {
        self.origins.get(index).copied().unwrap_or(index)
    }
}

struct Rules {
    readers: Readers,
    context: Context,
}

impl Rules {
    fn bear(&self, function: &FunctionRows) -> bool {
        self.readers.is_empty()
            || function
                .rows
                .iter()
                .all(|row| self.refused(row).is_none() && !self.is_outside(function, row))
    }

    /// Why a reader refuses this row. What the version can't express is left to the encoder.
    fn refused(&self, row: &Row) -> Option<Reason> {
        if !self.readers.contains(Reader::Glibc2_42) {
            return None;
        }
        let Some(rule) = &row.rule else {
            return Some(Reason::Outermost);
        };
        let words = default::encode(&self.context, rule).ok()?.0.len();
        (self.context.fixed_ra == 0 && words < 2).then_some(Reason::RaInRegister)
    }

    /// Whether the kernel would refuse the function because of this row, which describes no code.
    fn is_outside(&self, function: &FunctionRows, row: &Row) -> bool {
        self.readers.contains(Reader::Kernel) && function.repeat.is_none() && row.start > function.size
    }

    fn cut(&self, index: usize, function: &FunctionRows, pieces: &mut Vec<FunctionRows>, skipped: &mut Vec<Skipped>) {
        if self.bear(function) {
            pieces.push(function.clone());
            return;
        }
        let rows = function.rows.iter().filter(|row| !self.is_outside(function, row));
        let rows: Vec<(Row, Option<Reason>)> = rows.map(|row| (*row, self.refused(row))).collect();
        let skip = |code: Range<u32>, reason| Skipped {
            index,
            start: function.start.wrapping_add(code.start.into()),
            size: u64::from(code.end.saturating_sub(code.start)),
            reason,
        };
        if let (Some(reason), true) = (rows.iter().find_map(|(_, reason)| *reason), function.repeat.is_some()) {
            // Its rows hold for each block, so there is nothing to cut at.
            skipped.push(skip(0..function.size, reason));
            return;
        }
        let mut at = 0;
        for run in rows.chunk_by(|(_, one), (_, next)| one == next) {
            at += run.len();
            let start = run.first().map_or(0, |(row, _)| row.start);
            let end = rows.get(at).map_or(function.size, |(next, _)| next.start);
            match run.first().and_then(|(_, reason)| *reason) {
                Some(reason) => skipped.push(skip(start..end, reason)),
                None => pieces.push(FunctionRows {
                    start: function.start.wrapping_add(start.into()),
                    size: end.saturating_sub(start),
                    rows: run
                        .iter()
                        .map(|(row, _)| Row {
                            start: row.start.saturating_sub(start),
                            ..*row
                        })
                        .collect(),
                    ..function.clone()
                }),
            }
        }
    }
}
