//! Gathers rows into functions, splits functions around code that rows cannot express, and assigns
//! each address to one FDE.

use std::ops::Range;

use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Row, Rule};

use super::converted::Converted;
use super::expression::Pattern;
use super::reason::{Error, Reason, Skipped};
use super::rule::Verdict;

/// The properties of an FDE that hold for all its rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// The code that it describes.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) signal_frame: bool,
    pub(crate) pauth_key_b: bool,
}

/// Code for which an FDE, or a part of it, gave no rows.
#[derive(Clone, Copy, Debug)]
struct Gap {
    start: u64,
    end: u64,
    reason: Reason,
    /// The FDE that it belongs to; `None` if the FDE describes no code.
    fde: Option<usize>,
}

/// The most rows that a function of SFrame version 3 can have; a longer one is split.
const MAX_ROWS: usize = 65535;

#[derive(Default)]
pub(crate) struct Collector {
    /// Functions, each with the FDE that it belongs to.
    functions: Vec<(FunctionRows, usize)>,
    gaps: Vec<Gap>,
    /// FDEs that describe code, in the section's order.
    fdes: Vec<Origin>,
    origin: Origin,
    open: Option<Open>,
    /// An empty vector with capacity for the rows of the next function.
    spare: Vec<Row>,
}

/// The final result.
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

impl Settled {
    /// The result of a conversion.
    pub(super) fn with_damage(self, damage: Option<Error>) -> Converted {
        Converted {
            functions: self.functions,
            skipped: self.skipped,
            unsaid: self.unsaid,
            damage,
        }
    }
}

impl Collector {
    /// Begins an FDE.
    pub(crate) fn begin(&mut self, origin: Origin) {
        self.end();
        self.origin = origin;
        self.fdes.push(origin);
    }

    /// Adds the verdict for the code from `start` to `end`, which follows the last addition.
    pub(crate) fn add(&mut self, start: u64, end: u64, verdict: Verdict) {
        match verdict {
            Verdict::Skip(reason) => self.skip(start, end, reason),
            Verdict::Rule(rule) => self.add_rule(start, end, rule),
            Verdict::Pattern(pattern, rule) => self.add_pattern(start, end, pattern, rule),
        }
    }

    /// Leaves a gap in the current FDE.
    pub(crate) fn skip(&mut self, start: u64, end: u64, reason: Reason) {
        self.end();
        let fde = self.fdes.len().checked_sub(1);
        match self.gaps.last_mut() {
            Some(last) if last.end == start && last.reason == reason && last.fde == fde => last.end = end,
            _ => self.gaps.push(Gap {
                start,
                end,
                reason,
                fde,
            }),
        }
    }

    /// Reports an FDE that describes no code.
    pub(crate) fn skip_fde(&mut self, start: u64, reason: Reason) {
        self.end();
        self.gaps.push(Gap {
            start,
            end: start,
            reason,
            fde: None,
        });
    }

    /// Ends an FDE.
    pub(crate) fn end(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let function = FunctionRows {
            start: open.start,
            // FDEs whose size does not fit are rejected before this.
            size: (open.end - open.start) as u32,
            // Exactly as large as needed: the rows of all functions take most of a conversion's
            // memory.
            rows: open.rows.as_slice().to_vec(),
            repeat: open.pattern.map(|(pattern, _)| pattern.block),
            signal_frame: self.origin.signal_frame,
            pauth_key_b: self.origin.pauth_key_b,
        };
        self.functions.push((function, self.fdes.len() - 1));
        open.rows.clear();
        self.spare = open.rows;
    }

    fn add_rule(&mut self, start: u64, end: u64, rule: Option<Rule>) {
        let full = |open: &Open| open.pattern.is_some() || open.rows.len() == MAX_ROWS;
        if self.open.as_ref().is_some_and(full) {
            self.end();
        }
        let spare = &mut self.spare;
        let open = self
            .open
            .get_or_insert_with(|| Open::at(start, None, std::mem::take(spare)));
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
        let mut open = Open::at(start, Some((pattern, rule)), std::mem::take(&mut self.spare));
        open.end = end;
        // Blocks are aligned to their size, but the function need not be.
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

    /// Appends the result of FDEs that follow in the section.
    pub(crate) fn append(&mut self, other: Collector) {
        self.end();
        let before = self.fdes.len();
        let functions = other.functions.into_iter();
        self.functions
            .extend(functions.map(|(function, fde)| (function, fde + before)));
        self.gaps.extend(other.gaps.into_iter().map(|gap| Gap {
            fde: gap.fde.map(|fde| fde + before),
            ..gap
        }));
        self.fdes.extend(other.fdes);
    }

    /// Sorts, and assigns every address to one FDE: if two begin at the same address, the first in
    /// the section keeps it; otherwise an FDE ends where the next one begins, whatever it says. A
    /// binary search by start, in `.eh_frame_hdr` as in SFrame, finds the same FDE.
    pub(crate) fn settle(mut self) -> Settled {
        self.end();
        let Collector {
            functions, gaps, fdes, ..
        } = self;
        let owners = Owners::new(&fdes);
        let mut settled: Vec<FunctionRows> = Vec::with_capacity(functions.len());
        for (mut function, fde) in functions {
            let end = owners.end(fde);
            if function.start < end {
                let size = (end - function.start).min(function.size.into());
                truncate(&mut function, size as u32);
                settled.push(function);
            }
        }
        settled.sort_by_key(|function| function.start);
        let within = |gap: Gap| {
            let end = gap.fde.map_or(gap.end, |fde| gap.end.min(owners.end(fde)));
            (gap.start <= end).then(|| Skipped {
                start: gap.start,
                size: end - gap.start,
                reason: gap.reason,
            })
        };
        let lost = fdes.iter().enumerate().filter_map(|(fde, origin)| {
            let end = owners.end(fde);
            (end < origin.end).then(|| Skipped {
                start: end,
                size: (origin.end - end) - (owners.owned_before(origin.end) - owners.owned_before(end)),
                reason: Reason::Overlap,
            })
        });
        let losers = fdes.iter().enumerate().map(|(fde, origin)| owners.end(fde)..origin.end);
        let unsaid = gaps.iter().map(|gap| gap.start..gap.end).chain(losers);
        let unsaid = unsaid.filter(|code| !code.is_empty()).collect();
        let mut skipped: Vec<Skipped> = gaps.into_iter().filter_map(within).chain(lost).collect();
        skipped.sort_by_key(|skipped| (skipped.start, skipped.reason));
        Settled {
            functions: settled,
            skipped,
            unsaid,
        }
    }
}

impl Open {
    fn at(start: u64, pattern: Option<(Pattern, Rule)>, rows: Vec<Row>) -> Open {
        Open {
            start,
            end: start,
            rows,
            pattern,
        }
    }
}

fn truncate(function: &mut FunctionRows, size: u32) {
    if size == function.size {
        return;
    }
    function.size = size;
    if function.repeat.is_none() {
        function.rows.retain(|row| row.start < size);
    }
}

/// The FDE that owns each address.
struct Owners {
    /// End of each FDE's own code, by its index; its start if it owns none.
    ends: Vec<u64>,
    /// The code of FDEs that own some, by start, and the number of owned bytes before each.
    ranges: Vec<(u64, u64, u64)>,
}

impl Owners {
    fn new(fdes: &[Origin]) -> Owners {
        let mut order: Vec<usize> = (0..fdes.len()).collect();
        // A stable sort: equal starts stay in the section's order.
        order.sort_by_key(|&fde| fdes[fde].start);
        let mut ends: Vec<u64> = fdes.iter().map(|fde| fde.start).collect();
        order.dedup_by_key(|fde| fdes[*fde].start);
        let mut ranges = Vec::with_capacity(order.len());
        let mut sum = 0;
        for (at, &fde) in order.iter().enumerate() {
            let next = order.get(at + 1).map_or(u64::MAX, |&next| fdes[next].start);
            let (start, end) = (fdes[fde].start, fdes[fde].end.min(next));
            ends[fde] = end;
            ranges.push((start, end, sum));
            sum += end - start;
        }
        Owners { ends, ranges }
    }

    fn end(&self, fde: usize) -> u64 {
        self.ends[fde]
    }

    /// The number of owned bytes below an address.
    fn owned_before(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|(start, ..)| *start < address);
        let Some(&(start, end, sum)) = after.checked_sub(1).map(|last| &self.ranges[last]) else {
            return 0;
        };
        sum + (address.min(end) - start)
    }
}

#[cfg(test)]
mod tests {
    use super::super::converted::end_of;
    use super::*;
    use backtrail_sframe::Location;

    fn rule(offset: i32) -> Option<Rule> {
        Some(Rule::new(Location::register(7, offset), Location::saved(-8)))
    }

    fn collect(fdes: &[(u64, u64, i32)]) -> (Vec<(u64, u64, i32)>, Vec<Skipped>) {
        let mut collector = Collector::default();
        for (start, end, offset) in fdes {
            collector.begin(Origin {
                start: *start,
                end: *end,
                ..Origin::default()
            });
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
        // The same code twice: the first in the section owns it.
        assert_eq!(
            collect(&[(10, 20, 1), (10, 20, 2)]),
            (vec![(10, 20, 1)], vec![overlap(10, 0)])
        );
        // The same start, the second longer: the rest that only the second describes is reported as
        // lost.
        assert_eq!(
            collect(&[(10, 20, 1), (10, 26, 2)]),
            (vec![(10, 20, 1)], vec![overlap(10, 6)])
        );
        // One within the other, and one overlapping the end, in any order.
        for fdes in [[(10, 40, 1), (20, 30, 2)], [(20, 30, 2), (10, 40, 1)]] {
            assert_eq!(collect(&fdes), (vec![(10, 20, 1), (20, 30, 2)], vec![overlap(20, 10)]));
        }
        assert_eq!(
            collect(&[(10, 30, 1), (20, 40, 2)]),
            (vec![(10, 20, 1), (20, 40, 2)], vec![overlap(20, 0)])
        );
    }

    /// An FDE that rows cannot express still owns its code: no other FDE may describe it.
    #[test]
    fn a_gap_is_an_owner_too() {
        let mut collector = Collector::default();
        for (start, end, verdict) in [
            (10, 40, Verdict::Rule(rule(8))),
            (20, 30, Verdict::Skip(Reason::Damaged)),
            (20, 30, Verdict::Rule(rule(16))),
        ] {
            collector.begin(Origin {
                start,
                end,
                ..Origin::default()
            });
            collector.add(start, end, verdict);
        }
        let Settled { functions, skipped, .. } = collector.settle();
        assert_eq!(functions.len(), 1);
        assert_eq!((functions[0].start, end_of(&functions[0])), (10, 20));
        let told: Vec<_> = skipped
            .iter()
            .map(|skipped| (skipped.start, skipped.size, skipped.reason))
            .collect();
        assert_eq!(
            told,
            [
                (20, 10, Reason::Damaged),
                (20, 10, Reason::Overlap),
                (20, 0, Reason::Overlap)
            ]
        );
    }

    #[test]
    fn a_gap_splits_a_function_and_equal_rows_are_one() {
        let mut collector = Collector::default();
        collector.begin(Origin {
            start: 100,
            end: 140,
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
