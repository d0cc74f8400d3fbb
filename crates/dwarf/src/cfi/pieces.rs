//! Gathers rows into functions, splits functions around what cannot be said, and settles who owns which address.

use std::ops::Range;

use backtrail_sframe::{Row, Rule};

use super::expression::Pattern;
use super::rule::Verdict;
use super::{FunctionRows, Reason, Skipped};

/// What an FDE says of all its rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) signal_frame: bool,
    pub(crate) pauth_key_b: bool,
}

/// Code whose FDE, or a part of it, gave no rows.
#[derive(Clone, Copy, Debug)]
struct Gap {
    start: u64,
    end: u64,
    reason: Reason,
}

/// As many rows as a function of SFrame version 3 can have; a longer one is split.
const MAX_ROWS: usize = 65535;

/// The address after the last byte.
pub(crate) fn end_of(function: &FunctionRows) -> u64 {
    function.start + u64::from(function.size)
}

#[derive(Default)]
pub(crate) struct Collector {
    functions: Vec<FunctionRows>,
    gaps: Vec<Gap>,
    origin: Origin,
    open: Option<Open>,
}

/// All that was gathered.
pub(crate) struct Settled {
    pub(crate) functions: Vec<FunctionRows>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) unsaid: Vec<Range<u64>>,
}

/// The function to which rows are being added.
struct Open {
    start: u64,
    end: u64,
    rows: Vec<Row>,
    pattern: Option<(Pattern, Rule)>,
}

impl Collector {
    /// Begins an FDE.
    pub(crate) fn begin(&mut self, origin: Origin) {
        self.end();
        self.origin = origin;
    }

    /// Adds what is said of the code from `start` to `end`, which follows what was added before.
    pub(crate) fn add(&mut self, start: u64, end: u64, verdict: Verdict) {
        match verdict {
            Verdict::Skip(reason) => self.skip(start, end, reason),
            Verdict::Rule(rule) => self.add_rule(start, end, rule),
            Verdict::Pattern(pattern, rule) => self.add_pattern(start, end, pattern, rule),
        }
    }

    /// Leaves a gap.
    pub(crate) fn skip(&mut self, start: u64, end: u64, reason: Reason) {
        self.end();
        match self.gaps.last_mut() {
            Some(last) if last.end == start && last.reason == reason && start < end => last.end = end,
            _ => self.gaps.push(Gap { start, end, reason }),
        }
    }

    /// Ends an FDE.
    pub(crate) fn end(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.functions.push(FunctionRows {
            start: open.start,
            // An FDE is refused before where this does not fit.
            size: (open.end - open.start) as u32,
            rows: open.rows,
            repeat: open.pattern.map(|(pattern, _)| pattern.block),
            signal_frame: self.origin.signal_frame,
            pauth_key_b: self.origin.pauth_key_b,
        });
    }

    fn add_rule(&mut self, start: u64, end: u64, rule: Option<Rule>) {
        let full = |open: &Open| open.pattern.is_some() || open.rows.len() == MAX_ROWS;
        if self.open.as_ref().is_some_and(full) {
            self.end();
        }
        let open = self.open.get_or_insert_with(|| Open::at(start, None));
        open.end = end;
        if open.rows.last().is_none_or(|last| last.rule != rule) {
            open.rows.push(Row {
                start: (start - open.start) as u32,
                rule,
            });
        }
    }

    fn add_pattern(&mut self, start: u64, end: u64, pattern: Pattern, rule: Rule) {
        if let Some(open) = &mut self.open
            && open.pattern == Some((pattern, rule))
        {
            open.end = end;
            return;
        }
        self.end();
        let mut open = Open::at(start, Some((pattern, rule)));
        open.end = end;
        // Blocks are aligned to their size, the function need not be.
        for within in 0..u64::from(pattern.block) {
            let cfa = pattern.cfa_at(start.wrapping_add(within)).location();
            let rule = cfa.map(|cfa| Rule { cfa, ..rule });
            if open.rows.last().is_none_or(|last| last.rule != rule) {
                open.rows.push(Row {
                    start: within as u32,
                    rule,
                });
            }
        }
        self.open = Some(open);
    }

    /// Sorts, and gives every address to one function: where two begin at the same address the first in the section
    /// keeps it, otherwise a function ends where the next one begins. That is what a binary search by start finds,
    /// in `.eh_frame_hdr` as in SFrame.
    pub(crate) fn settle(mut self) -> Settled {
        self.end();
        let Collector {
            mut functions,
            mut gaps,
            ..
        } = self;
        // A stable sort: equal starts stay in the section's order.
        functions.sort_by_key(|function| function.start);
        let mut settled: Vec<FunctionRows> = Vec::with_capacity(functions.len());
        for function in functions {
            if let Some(last) = settled.last_mut().filter(|last| end_of(last) > function.start) {
                let loser = if last.start == function.start {
                    &function
                } else {
                    &*last
                };
                gaps.push(Gap {
                    start: function.start,
                    end: end_of(loser),
                    reason: Reason::Overlap,
                });
                if last.start == function.start {
                    continue;
                }
                truncate(last, (function.start - last.start) as u32);
            }
            settled.push(function);
        }
        let unsaid = gaps.iter().map(|gap| gap.start..gap.end).collect();
        let coverage = Coverage::new(&settled);
        let mut skipped: Vec<Skipped> = gaps
            .into_iter()
            .map(|gap| Skipped {
                start: gap.start,
                size: (gap.end - gap.start) - (coverage.before(gap.end) - coverage.before(gap.start)),
                reason: gap.reason,
            })
            .collect();
        skipped.sort_by_key(|skipped| (skipped.start, skipped.reason));
        Settled {
            functions: settled,
            skipped,
            unsaid,
        }
    }
}

impl Open {
    fn at(start: u64, pattern: Option<(Pattern, Rule)>) -> Open {
        Open {
            start,
            end: start,
            rows: Vec::new(),
            pattern,
        }
    }
}

fn truncate(function: &mut FunctionRows, size: u32) {
    function.size = size;
    if function.repeat.is_none() {
        function.rows.retain(|row| row.start < size);
    }
}

/// How many bytes below an address have rows.
struct Coverage<'a> {
    functions: &'a [FunctionRows],
    /// Bytes of all functions before each.
    sums: Vec<u64>,
}

impl<'a> Coverage<'a> {
    fn new(functions: &'a [FunctionRows]) -> Self {
        let sums = functions.iter().scan(0u64, |sum, function| {
            let before = *sum;
            *sum += u64::from(function.size);
            Some(before)
        });
        Coverage {
            functions,
            sums: sums.collect(),
        }
    }

    fn before(&self, address: u64) -> u64 {
        let after = self.functions.partition_point(|function| function.start < address);
        let Some(last) = after.checked_sub(1) else {
            return 0;
        };
        let function = &self.functions[last];
        self.sums[last] + (address - function.start).min(u64::from(function.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_sframe::{Base, Location};

    fn rule(offset: i32) -> Option<Rule> {
        let location = |base, offset, deref| Location { base, offset, deref };
        Some(Rule {
            cfa: location(Base::Register(7), offset, false),
            ra: location(Base::Cfa, -8, true),
            fp: None,
            mangled_ra: false,
        })
    }

    fn collect(fdes: &[(u64, u64, i32)]) -> (Vec<(u64, u64, i32)>, Vec<Skipped>) {
        let mut collector = Collector::default();
        for (start, end, offset) in fdes {
            collector.begin(Origin::default());
            collector.add(*start, *end, Verdict::Rule(rule(*offset)));
            collector.end();
        }
        let Settled { functions, skipped, .. } = collector.settle();
        let short = functions
            .iter()
            .map(|function| {
                let offset = function.rows[0].rule.map_or(0, |rule| rule.cfa.offset);
                (function.start, end_of(function), offset)
            })
            .collect();
        (short, skipped)
    }

    #[test]
    fn every_address_has_one_owner() {
        let overlap = |start, size| Skipped {
            start,
            size,
            reason: Reason::Overlap,
        };
        // The same twice: the first in the section.
        assert_eq!(
            collect(&[(10, 20, 1), (10, 20, 2)]),
            (vec![(10, 20, 1)], vec![overlap(10, 0)])
        );
        // The same start, the second longer: what only it describes is lost and told.
        assert_eq!(
            collect(&[(10, 20, 1), (10, 26, 2)]),
            (vec![(10, 20, 1)], vec![overlap(10, 6)])
        );
        // One within the other, and one across the end, in any order.
        for fdes in [[(10, 40, 1), (20, 30, 2)], [(20, 30, 2), (10, 40, 1)]] {
            assert_eq!(collect(&fdes), (vec![(10, 20, 1), (20, 30, 2)], vec![overlap(20, 10)]));
        }
        assert_eq!(
            collect(&[(10, 30, 1), (20, 40, 2)]),
            (vec![(10, 20, 1), (20, 40, 2)], vec![overlap(20, 0)])
        );
    }

    #[test]
    fn a_gap_splits_a_function_and_equal_rows_are_one() {
        let mut collector = Collector::default();
        collector.begin(Origin {
            signal_frame: true,
            pauth_key_b: false,
        });
        for (start, end, verdict) in [
            (100, 104, Verdict::Rule(rule(8))),
            (104, 110, Verdict::Rule(rule(8))),
            (110, 120, Verdict::Rule(rule(16))),
            (120, 125, Verdict::Skip(Reason::CfaExpression)),
            (125, 130, Verdict::Skip(Reason::CfaExpression)),
            (130, 140, Verdict::Rule(rule(8))),
        ] {
            collector.add(start, end, verdict);
        }
        let Settled { functions, skipped, .. } = collector.settle();
        let starts = |function: &FunctionRows| function.rows.iter().map(|row| row.start).collect::<Vec<_>>();
        assert_eq!(functions.len(), 2);
        assert_eq!(
            (functions[0].start, functions[0].size, starts(&functions[0])),
            (100, 20, vec![0, 10])
        );
        assert_eq!(
            (functions[1].start, functions[1].size, starts(&functions[1])),
            (130, 10, vec![0])
        );
        assert!(functions.iter().all(|function| function.signal_frame));
        assert_eq!(
            skipped,
            [Skipped {
                start: 120,
                size: 10,
                reason: Reason::CfaExpression
            }]
        );
    }
}
