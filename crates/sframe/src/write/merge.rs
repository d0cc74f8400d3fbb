//! Neighbouring functions under one FDE, where that is smaller.
//!
//! The format asks for ranges of program counters, not for functions. A joined range saves the FDEs of all but its first
//! function, and the first rows of those that begin with the rule with which the one before ends; it costs wider starts of
//! rows, and rows that no other function can share any more. Which functions to join is the cheapest path through them in
//! the order of their addresses, where an edge is a run of at most so many. What a block of rows costs depends on how
//! many runs share it, which is known only when all are chosen: so they are chosen a few times, each time by the
//! prices of the time before, and the smallest choice counts.

use alloc::vec;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::Range;

use rustc_hash::FxBuildHasher;

use super::{Encoded, FunctionRows, Options};
use crate::constants::{FdeType, FreType, Version};
use crate::layout::{attribute_size, fde_size};
use crate::row::Row;

/// The most rows of a joined range. Readers scan the rows of an FDE one after the other, a nanosecond or two each: this
/// keeps them below what finding the FDE costs. Compilers' functions with more are common enough, but they are not made
/// more of here.
const MAX_JOINED_ROWS: u64 = 128;

/// Padding is shorter than what the next function is aligned to, and than 16 bytes, to which functions usually are: so no
/// function without a table can hide there.
const PADDING_ALIGNMENT_BITS: u32 = 4;

/// How often the runs are chosen; more has not changed totals by a thousandth.
const ROUNDS: usize = 4;

/// Prices are in such parts of a byte.
const PRICE_UNIT: u64 = 256;

/// A function as a part of a run.
struct Part<'a> {
    /// None where it can be no part of a longer run.
    rows: &'a [Row],
    /// Starts of the rows that differ from the one before, with a hash of each one's rule.
    distinct: Vec<(u32, u64)>,
    start: i64,
    end: i64,
    /// Its address is a multiple of this power of two.
    alignment_bits: u32,
    /// Bytes of these rows without their starts, and of the first one.
    body: u64,
    first_body: u64,
    /// What must be equal within a run.
    kind: (FdeType, bool),
    /// Whether it can be joined with the one before.
    follows: bool,
}

/// Some functions under one FDE.
#[derive(Clone, Copy)]
struct Run {
    /// How many.
    len: usize,
    /// Bytes of its rows, and of what version 3 has before them.
    block: u64,
    hash: u64,
    /// The number of its rows among all that are different.
    class: usize,
}

/// The runs of functions that are to be under one FDE each, in order. `barriers` are no padding; they are in order, and
/// none overlap.
pub(super) fn runs(
    functions: &[FunctionRows],
    encoded: &[Encoded],
    barriers: &[Range<i64>],
    options: &Options,
) -> Vec<Range<usize>> {
    let parts = parts(functions, encoded, barriers, options.version);
    let mut edges = Edges::new(&parts, options);
    let classes = edges.classify(options.share);
    let fde = fde_size(options.version) as u64;
    let mut users = edges.most_users(classes);
    let mut best: Option<(u64, Vec<Range<usize>>)> = None;
    for _ in 0..ROUNDS {
        let chosen = edges.cheapest(&users, fde);
        let total;
        (total, users) = edges.total(&chosen, classes, fde);
        if best.as_ref().is_none_or(|(least, _)| total < *least) {
            best = Some((total, chosen));
        }
    }
    best.map(|(_, chosen)| chosen).unwrap_or_default()
}

fn parts<'a>(
    functions: &'a [FunctionRows],
    encoded: &[Encoded],
    barriers: &[Range<i64>],
    version: Version,
) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(encoded.len());
    for encoded in encoded {
        let mut part = part(&functions[encoded.index], encoded, version);
        part.follows = parts
            .last()
            .is_some_and(|before| is_joinable(before, &part) && !is_between(barriers, before.end, part.start));
        parts.push(part);
    }
    parts
}

fn part<'a>(function: &'a FunctionRows, encoded: &Encoded, version: Version) -> Part<'a> {
    let block = &encoded.block;
    let without_body = attribute_size(version) + block.num_fres as usize * block.fre_type.bytes();
    // Rows that begin behind their function's end would come into force in the next one.
    let is_plain = function.repeat.is_none()
        && !function.signal_frame
        && function.rows.first().is_some_and(|row| row.start == 0)
        && function.rows.last().is_some_and(|row| row.start < function.size);
    let mut distinct: Vec<(u32, u64)> = Vec::with_capacity(block.num_fres as usize);
    let rows = function.rows.iter();
    distinct.extend(rows.map(|row| (row.start, FxBuildHasher.hash_one(row.rule))));
    distinct.dedup_by_key(|(_, rule)| *rule);
    Part {
        rows: if is_plain { &function.rows } else { &[] },
        distinct,
        start: encoded.start,
        end: encoded.start.saturating_add(function.size.into()),
        alignment_bits: function.start.trailing_zeros(),
        body: (block.bytes.len() - without_body) as u64,
        first_body: encoded.first_body,
        kind: (block.fde_type, function.pauth_key_b),
        follows: false,
    }
}

fn is_joinable(before: &Part<'_>, part: &Part<'_>) -> bool {
    let alignment = 1 << part.alignment_bits.min(PADDING_ALIGNMENT_BITS);
    let gap = part.start.saturating_sub(before.end);
    !before.rows.is_empty() && !part.rows.is_empty() && before.kind == part.kind && (0..alignment).contains(&gap)
}

/// Whether a barrier has a byte in common with the code from `start` to `end`.
fn is_between(barriers: &[Range<i64>], start: i64, end: i64) -> bool {
    let after = barriers.partition_point(|barrier| barrier.start < end);
    start < end && barriers[..after].last().is_some_and(|barrier| barrier.end > start)
}

/// All runs that are possible: for each function, those that begin with it, one longer than the other.
struct Edges {
    /// Where each function's begin.
    first: Vec<usize>,
    runs: Vec<Run>,
}

impl Edges {
    fn new(parts: &[Part<'_>], options: &Options) -> Edges {
        let mut edges = Edges {
            first: Vec::with_capacity(parts.len() + 1),
            runs: Vec::new(),
        };
        for index in 0..parts.len() {
            edges.first.push(edges.runs.len());
            edges.add_from(&parts[index..], options);
        }
        edges.first.push(edges.runs.len());
        edges
    }

    fn add_from(&mut self, parts: &[Part<'_>], options: &Options) {
        let origin = parts[0].start;
        let mut before: Option<&Part<'_>> = None;
        let (mut rows, mut body, mut last, mut hash) = (0, 0, 0, 0u64);
        for (index, part) in parts.iter().enumerate().take(usize::from(options.merge.max(1))) {
            if index > 0 && !part.follows {
                break;
            }
            let mut distinct = &part.distinct[..];
            body += part.body;
            if before.and_then(|before| before.rows.last()).map(|row| row.rule) == part.rows.first().map(|row| row.rule)
                && before.is_some()
            {
                distinct = distinct.get(1..).unwrap_or_default();
                body -= part.first_body;
            }
            let offset = part.start.wrapping_sub(origin) as u64;
            for (start, rule) in distinct {
                last = offset + u64::from(*start);
                hash = FxBuildHasher.hash_one((hash, last, rule));
            }
            rows += distinct.len() as u64;
            let size = part.end.wrapping_sub(origin) as u64;
            if index > 0 && (rows > MAX_JOINED_ROWS || size > u32::MAX.into()) {
                break;
            }
            let start_bytes = FreType::for_start(last as u32).bytes() as u64;
            self.runs.push(Run {
                len: index + 1,
                block: attribute_size(options.version) as u64 + rows * start_bytes + body,
                hash: FxBuildHasher.hash_one((hash, part.kind.1, part.rows.is_empty())),
                class: 0,
            });
            before = Some(part);
        }
    }

    /// Gives runs with the same rows the same class, if they can share them; how many there are. Where two hashes meet
    /// by chance, a choice is worse, and nothing is wrong.
    fn classify(&mut self, share: bool) -> usize {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        if share {
            order.sort_unstable_by_key(|&index| (self.runs[index].hash, self.runs[index].block));
        }
        let mut classes = 0;
        let mut before: Option<(u64, u64)> = None;
        for index in order {
            let run = &mut self.runs[index];
            let key = (run.hash, run.block);
            classes += usize::from(!share || before != Some(key));
            run.class = classes - 1;
            before = Some(key);
        }
        classes
    }

    /// How many may use each class at most, about: of the runs of one length that begin at neighbouring functions, only
    /// one can be chosen.
    fn most_users(&self, classes: usize) -> Vec<u64> {
        let mut users = vec![0u64; classes];
        for run in &self.runs {
            users[run.class] += PRICE_UNIT / run.len as u64;
        }
        users.iter_mut().for_each(|users| *users /= PRICE_UNIT);
        users
    }

    /// The cheapest way from the first function to the last, where the users of a block share its price.
    fn cheapest(&self, users: &[u64], fde: u64) -> Vec<Range<usize>> {
        let count = self.first.len() - 1;
        let mut costs = vec![u64::MAX; count + 1];
        let mut lens = vec![0; count + 1];
        costs[0] = 0;
        for from in 0..count {
            for run in &self.runs[self.first[from]..self.first[from + 1]] {
                let cost = costs[from] + fde * PRICE_UNIT + run.block * PRICE_UNIT / users[run.class].max(1);
                if cost < costs[from + run.len] {
                    costs[from + run.len] = cost;
                    lens[from + run.len] = run.len;
                }
            }
        }
        let mut chosen = Vec::new();
        let mut end = count;
        while end > 0 {
            chosen.push(end - lens[end]..end);
            end -= lens[end];
        }
        chosen.reverse();
        chosen
    }

    /// The bytes of a choice, and how many use each class.
    fn total(&self, chosen: &[Range<usize>], classes: usize, fde: u64) -> (u64, Vec<u64>) {
        let mut users = vec![0; classes];
        let mut total = 0;
        for range in chosen {
            let run = &self.runs[self.first[range.start] + range.len() - 1];
            total += fde + if users[run.class] == 0 { run.block } else { 0 };
            users[run.class] += 1;
        }
        (total, users)
    }
}

/// The functions of a run as one.
pub(super) fn join<'a>(mut functions: impl Iterator<Item = &'a FunctionRows>) -> Option<FunctionRows> {
    let mut joined = functions.next()?.clone();
    for function in functions {
        // A run is no longer than a function can be.
        let offset = function.start.wrapping_sub(joined.start) as u32;
        joined.size = offset + function.size;
        let rows = function.rows.iter();
        joined.rows.extend(rows.map(|row| Row {
            start: offset + row.start,
            ..*row
        }));
    }
    Some(joined)
}
