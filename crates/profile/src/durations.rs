//! How long calls took, in recordings of finished calls.

use std::collections::BTreeMap;

use backtrail_recording::FinishedCall;
use rustc_hash::FxHashMap;

use crate::symbolize::{LocationId, Symbolizer};

/// The durations of a function's calls, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDurations {
    /// The function's name.
    pub function: String,
    /// Short name of its module.
    pub module: String,
    /// The number of calls.
    pub count: u64,
    /// The time in which threads were in at least one of these calls: a call within another one of
    /// the same function takes none in addition.
    pub total: u64,
    /// The shortest.
    pub min: u64,
    /// The duration that half of them did not exceed.
    pub median: u64,
    /// The duration that 99 % of them did not exceed.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Calls that ended before the call that they were made in.
#[derive(Debug, Default)]
struct Nesting(Vec<FinishedCall>);

impl Nesting {
    /// The nanoseconds of a call that are not in earlier ones. Calls of a thread come in the order
    /// in which they end.
    fn own(&mut self, call: FinishedCall) -> u64 {
        let mut own = call.duration;
        while let Some(inner) = self.0.pop_if(|inner| inner.begin >= call.begin) {
            own = own.saturating_sub(inner.duration);
        }
        self.0.push(call);
        own
    }
}

/// Durations by function.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    functions: FxHashMap<LocationId, OfFunction>,
    threads: FxHashMap<(u32, u32), Nesting>,
}

#[derive(Debug, Default)]
struct OfFunction {
    durations: Vec<u64>,
    total: u64,
    threads: FxHashMap<(u32, u32), Nesting>,
}

impl Durations {
    /// Notes a call, and returns the nanoseconds of it that are not in calls that it made.
    pub(crate) fn add(&mut self, thread: (u32, u32), function: Option<LocationId>, call: FinishedCall) -> u64 {
        if let Some(function) = function {
            let of_function = self.functions.entry(function).or_default();
            of_function.durations.push(call.duration);
            let own = of_function.threads.entry(thread).or_default().own(call);
            of_function.total = of_function.total.saturating_add(own);
        }
        self.threads.entry(thread).or_default().own(call)
    }

    /// All functions, those that took longest first.
    pub(crate) fn into_counts(self, symbolizer: &Symbolizer) -> Vec<CallDurations> {
        let mut named: BTreeMap<(String, String), (Vec<u64>, u64)> = BTreeMap::new();
        for (location, of_function) in self.functions {
            let location = symbolizer.location(location);
            let outermost = location.calls.last();
            let function = outermost.map_or_else(String::new, |call| call.function.clone());
            let (durations, total) = named.entry((function, location.module.clone())).or_default();
            durations.extend(of_function.durations);
            *total = total.saturating_add(of_function.total);
        }
        let counted = named
            .into_iter()
            .filter_map(|((function, module), (mut durations, total))| {
                durations.sort_unstable();
                Some(CallDurations {
                    function,
                    module,
                    count: durations.len() as u64,
                    total,
                    min: *durations.first()?,
                    median: rank(&durations, 50)?,
                    p99: rank(&durations, 99)?,
                    max: *durations.last()?,
                })
            });
        let mut all: Vec<CallDurations> = counted.collect();
        all.sort_by_key(|each| std::cmp::Reverse(each.total));
        all
    }
}

/// The smallest of the sorted numbers that this percentage of them does not exceed.
fn rank(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbers_that_occurred() {
        let numbers: Vec<u64> = (1..=100).collect();
        assert_eq!((rank(&numbers, 50), rank(&numbers, 99)), (Some(50), Some(99)));
        assert_eq!(
            (rank(&[7], 50), rank(&[7], 99), rank(&[], 50)),
            (Some(7), Some(7), None)
        );
        assert_eq!(rank(&[1, 2, 3], 50), Some(2));
    }

    #[test]
    fn nested_calls_take_time_once() {
        let call = |begin, duration| FinishedCall { begin, duration };
        let mut nesting = Nesting::default();
        // Two within a third one, then one beside it, then one around all.
        let calls = [call(10, 5), call(20, 30), call(5, 60), call(70, 10), call(0, 100)];
        assert_eq!(calls.map(|call| nesting.own(call)), [5, 30, 25, 10, 30]);
    }
}
