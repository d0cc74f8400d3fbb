//! Merging and cutting functions, so that one FDE describes a range of code, if that is smaller.
//!
//! The format describes ranges of program counters, not functions. So one FDE can describe several
//! neighbouring functions: that saves all FDEs but the first, and the first row of each function
//! that begins with the rule with which the previous one ends; it costs wider row starts. A
//! function can also be cut where a long stretch of code needs no rows: that costs an FDE, and
//! saves the rows of a piece, a prologue or epilogue, that others have as well.
//!
//! The best division into ranges is the cheapest path through all pieces in the order of their
//! addresses; each edge is a run that one FDE can hold. The cost of a run's rows depends on how
//! many runs share them, which is known only after all have been chosen. So the choice is repeated
//! a few times, each time with prices by what was chosen before, and the smallest result is used.

use alloc::vec;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::Range;

use rustc_hash::FxBuildHasher;

use super::encode::Encoded;
use super::function::FunctionRows;
use super::options::Options;
use crate::constants::{FdeType, FreInfo, FreType, Version, WordSize};
use crate::layout::{attribute_size, fde_size};
use crate::row::Row;

/// The most rows of a joined range. Readers scan the rows of an FDE one by one, a nanosecond or two
/// each; this limit keeps the scan cheaper than finding the FDE. Compilers often emit functions
/// with more rows, but joining never extends them.
const MAX_JOINED_ROWS: u64 = 128;

/// Padding is shorter than the alignment of the next function, and than 16 bytes, the usual
/// alignment of functions. So no function without a table can hide in it.
const PADDING_ALIGNMENT_BITS: u32 = 4;

/// A function can be cut after this many bytes in which no row begins: after its prologue, and
/// before each epilogue. Many functions have the same prologues and epilogues, but not the same
/// code between them. With 2, tables are larger: among more runs, prices find no good choice.
const LEAST_BEFORE_CUT: u32 = 6;

/// The most pieces of one function.
const MAX_PIECES: usize = 16;

/// The most parts of a run of several functions (or [`Options::merge`] if that is larger). This and
/// [`MAX_PIECES`] bound the number of runs.
const MAX_PARTS: usize = 24;

/// How often the runs are chosen; more rounds have not changed totals by a thousandth.
const ROUNDS: usize = 6;

/// Price units per byte, and units of a number of users, which is an average.
const PRICE_UNIT: u64 = 256;

/// A function, or a piece of one, as a part of a run.
struct Part<'a> {
    /// Its function's index in address order.
    function: usize,
    /// Empty if it cannot be part of a longer run.
    rows: &'a [Row],
    /// Start of its first row, in bytes from the function's start.
    offset: u32,
    /// The rows that differ from the previous one: start relative to this part, and a hash of the
    /// rule.
    distinct: Vec<(u32, u64)>,
    start: i64,
    end: i64,
    /// Size of these rows without their starts; `first_body` is that of the first row.
    body: u64,
    first_body: u64,
    /// The properties that must be equal within a run.
    kind: (FdeType, bool),
    /// Whether it can be joined with the previous part.
    follows: bool,
}

/// Consecutive parts under one FDE.
#[derive(Clone, Copy)]
struct Run {
    /// The number of parts.
    len: usize,
    /// Size of its rows, including the attribute that version 3 stores before them.
    block: u64,
    hash: u64,
    /// The index of its rows among all different blocks of rows.
    class: usize,
}

/// The contents of one FDE.
pub(super) enum Joined {
    /// An unchanged function, by its index in address order.
    Whole(usize),
    /// Several functions, or pieces of functions, as one function.
    Range(FunctionRows),
}

/// The contents of each FDE, in address order. `barriers` are not padding; they are sorted and do
/// not overlap.
pub(super) fn join(
    functions: &[FunctionRows],
    encoded: &[Encoded],
    barriers: &[Range<i64>],
    arena: &[u8],
    options: &Options,
) -> Vec<Joined> {
    let parts = parts(functions, encoded, barriers, arena, options.version);
    let mut edges = Edges::new(&parts, options);
    let classes = edges.classify(options.share);
    let fde = fde_size(options.version) as u64;
    let mut users = edges.most_users(classes);
    let mut best: Option<(u64, Vec<Range<usize>>)> = None;
    for _ in 0..ROUNDS {
        let chosen = edges.cheapest(&users, fde);
        let (total, chosen_users) = edges.total(&chosen, classes, fde);
        // Prices move halfway. If rows that nobody chose cost their full price at once, none could
        // win users from others any more.
        for (users, chosen) in users.iter_mut().zip(chosen_users) {
            *users = users.midpoint(chosen * PRICE_UNIT);
        }
        if best.as_ref().is_none_or(|(least, _)| total < *least) {
            best = Some((total, chosen));
        }
    }
    let chosen = best.map(|(_, chosen)| chosen).unwrap_or_default();
    let function_of = |part: &Part<'_>| &functions[encoded[part.function].index];
    chosen
        .into_iter()
        .map(|range| joined(&parts[range], function_of))
        .collect()
}

fn joined<'f>(parts: &[Part<'_>], function_of: impl Fn(&Part<'_>) -> &'f FunctionRows) -> Joined {
    let (first, last) = (&parts[0], &parts[parts.len() - 1]);
    let function = function_of(first);
    let whole = first.function == last.function && last.end - first.start == i64::from(function.size);
    if whole {
        return Joined::Whole(first.function);
    }
    let rows = parts.iter().flat_map(|part| {
        // A run is no longer than a function can be.
        let start = (part.start - first.start) as u32;
        part.rows.iter().map(move |row| Row {
            start: row.start - part.offset + start,
            ..*row
        })
    });
    Joined::Range(FunctionRows {
        // A function may extend over the end of the address space.
        start: function.start.wrapping_add(first.offset.into()),
        size: (last.end - first.start) as u32,
        rows: rows.collect(),
        ..FunctionRows {
            rows: Vec::new(),
            ..*function
        }
    })
}

fn parts<'a>(
    functions: &'a [FunctionRows],
    encoded: &[Encoded],
    barriers: &[Range<i64>],
    arena: &[u8],
    version: Version,
) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(encoded.len());
    for (place, encoded) in encoded.iter().enumerate() {
        let function = &functions[encoded.index];
        let bytes = &arena[encoded.block.bytes.clone()][attribute_size(version)..];
        let bodies = row_bodies(bytes, encoded.block.fre_type);
        let mut from = 0;
        for to in cuts(function, bodies.len()).into_iter().chain([function.rows.len()]) {
            let mut part = part(function, encoded, place, from..to, &bodies);
            part.follows = from > 0
                || parts.last().is_some_and(|before| {
                    is_joinable(before, &part, function.start) && !touches(barriers, before.start, part.end)
                });
            parts.push(part);
            from = to;
        }
    }
    parts
}

/// The rows before which a function can be cut: those that follow a long stretch of code without
/// rows. Only functions that can be joined with others, and of which no row was left out, are cut.
fn cuts(function: &FunctionRows, distinct: usize) -> Vec<usize> {
    if !is_plain(function) || distinct != function.rows.len() {
        return Vec::new();
    }
    let mut least = LEAST_BEFORE_CUT;
    loop {
        let pairs = function.rows.windows(2).zip(1..);
        let cuts: Vec<usize> = pairs
            .filter(|(pair, _)| pair[1].start - pair[0].start >= least)
            .map(|(_, index)| index)
            .collect();
        if cuts.len() < MAX_PIECES {
            return cuts;
        }
        least = least.saturating_mul(2);
    }
}

/// The size of each row without its start.
fn row_bodies(mut bytes: &[u8], fre_type: FreType) -> Vec<u64> {
    let mut bodies = Vec::new();
    while let Some(&info) = bytes.get(fre_type.bytes()) {
        let info = FreInfo(info);
        let body = 1 + info.count() * info.word_size().map_or(0, WordSize::bytes);
        bodies.push(body as u64);
        bytes = bytes.get(fre_type.bytes() + body..).unwrap_or_default();
    }
    bodies
}

/// Whether the function may be joined with others. Rows that begin after their function's end would
/// take effect in the next function.
fn is_plain(function: &FunctionRows) -> bool {
    function.repeat.is_none()
        && !function.signal_frame
        && function.rows.first().is_some_and(|row| row.start == 0)
        && function.rows.last().is_some_and(|row| row.start < function.size)
}

fn part<'a>(
    function: &'a FunctionRows,
    encoded: &Encoded,
    place: usize,
    range: Range<usize>,
    bodies: &[u64],
) -> Part<'a> {
    let rows = &function.rows[range.clone()];
    let offset = if range.start == 0 { 0 } else { rows[0].start };
    let end = function.rows.get(range.end).map_or(function.size, |next| next.start);
    let mut distinct: Vec<(u32, u64)> = Vec::with_capacity(rows.len());
    distinct.extend(
        rows.iter()
            .map(|row| (row.start - offset, FxBuildHasher.hash_one(row.rule))),
    );
    distinct.dedup_by_key(|(_, rule)| *rule);
    // If rows were left out, the function is one part.
    let bodies = bodies.get(range).unwrap_or(bodies);
    Part {
        function: place,
        rows: if is_plain(function) { rows } else { &[] },
        offset,
        distinct,
        start: encoded.start.saturating_add(offset.into()),
        end: encoded.start.saturating_add(end.into()),
        body: bodies.iter().sum(),
        first_body: bodies.first().copied().unwrap_or(0),
        kind: (encoded.block.fde_type, function.pauth_key_b),
        follows: false,
    }
}

/// Whether a function at `address` can be joined with the previous one.
fn is_joinable(before: &Part<'_>, part: &Part<'_>, address: u64) -> bool {
    let alignment = 1 << address.trailing_zeros().min(PADDING_ALIGNMENT_BITS);
    let gap = part.start.saturating_sub(before.end);
    !before.rows.is_empty() && !part.rows.is_empty() && before.kind == part.kind && (0..alignment).contains(&gap)
}

/// Whether a barrier overlaps the code from `start` to `end`.
fn touches(barriers: &[Range<i64>], start: i64, end: i64) -> bool {
    let after = barriers.partition_point(|barrier| barrier.start < end);
    start < end && barriers[..after].last().is_some_and(|barrier| barrier.end > start)
}

/// All possible runs: for each part, the runs that begin with it, in ascending length.
struct Edges {
    /// The index in `runs` of each part's first run.
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
        let most_parts = MAX_PARTS.max(options.merge.into());
        let mut functions = 0u32;
        for (index, part) in parts.iter().enumerate() {
            let is_new = before.is_none_or(|before| before.function != part.function);
            functions += u32::from(is_new);
            if index > 0 && (!part.follows || functions > options.merge.max(1).into()) {
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
            if functions > 1 && (rows > MAX_JOINED_ROWS || index >= most_parts || size > u32::MAX.into()) {
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

    /// Gives runs with the same rows the same class, if they can share them, and returns the number
    /// of classes. A hash collision only makes the choice worse, not the result wrong.
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

    /// Roughly the largest number of users of each class, in units of [`PRICE_UNIT`]: of
    /// overlapping runs of one length, only one can be chosen.
    fn most_users(&self, classes: usize) -> Vec<u64> {
        let mut users = vec![0u64; classes];
        for run in &self.runs {
            users[run.class] += PRICE_UNIT / run.len as u64;
        }
        users
    }

    /// The cheapest path from the first part to the last; the users of a block, in units of
    /// [`PRICE_UNIT`], share its price.
    fn cheapest(&self, users: &[u64], fde: u64) -> Vec<Range<usize>> {
        let count = self.first.len() - 1;
        let mut costs = vec![u64::MAX; count + 1];
        let mut lens = vec![0; count + 1];
        costs[0] = 0;
        for from in 0..count {
            for run in &self.runs[self.first[from]..self.first[from + 1]] {
                let users = users[run.class].max(PRICE_UNIT);
                let cost = costs[from] + fde * PRICE_UNIT + run.block * PRICE_UNIT * PRICE_UNIT / users;
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

    /// The size of a choice in bytes, and the number of users of each class.
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
