//! The functions of a recording, and their samples.

use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxHashMap;

use crate::report::{FunctionCount, SourceLine};
use crate::stacks::{StackFrame, Stacks};
use crate::symbolize::{Location, LocationId};
use crate::weights::weigh;

/// Numbers of functions, and of the functions at each location.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// By module and name.
    numbers: HashMap<(String, String), u32>,
    /// By location: the range in `calls`, once it was needed.
    ranges: Vec<Option<(u32, u32)>>,
    /// Numbers of functions, the outermost call of each location first.
    calls: Vec<u32>,
}

/// Samples whose stacks did not fit into the tree of stacks, or are not there as a whole.
#[derive(Debug, Default)]
pub(crate) struct Unplaced {
    /// How many.
    pub(crate) samples: u64,
    /// By innermost location.
    pub(crate) leaves: FxHashMap<LocationId, u64>,
    /// By function that is not in the part of the stack that the tree has.
    pub(crate) totals: FxHashMap<u32, u64>,
}

impl Functions {
    /// The functions at a location, the outermost call first.
    pub(crate) fn at(&mut self, id: LocationId, location: &Location) -> &[u32] {
        if self.ranges.len() <= id.index() {
            self.ranges.resize(id.index() + 1, None);
        }
        let (start, end) = match self.ranges[id.index()] {
            Some(range) => range,
            None => {
                let start = self.calls.len() as u32;
                for call in location.calls.iter().rev() {
                    let key = (location.module.clone(), call.function.clone());
                    let next = self.numbers.len() as u32;
                    self.calls.push(*self.numbers.entry(key).or_insert(next));
                }
                *self.ranges[id.index()].insert((start, self.calls.len() as u32))
            }
        };
        &self.calls[start as usize..end as usize]
    }

    /// All functions: module, name and number.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &str, u32)> {
        let numbers = self.numbers.iter();
        numbers.map(|((module, name), &number)| (module.as_str(), name.as_str(), number))
    }

    /// The functions with their samples.
    pub(crate) fn into_counts(
        mut self,
        stacks: &Stacks,
        unplaced: &Unplaced,
        locations: &[Location],
    ) -> Vec<FunctionCount> {
        let mut weights = weigh(stacks, |stack, keys| {
            if let StackFrame::Location(id) = stacks.frame(stack) {
                keys.extend_from_slice(self.at(id, &locations[id.index()]));
            }
            keys.last().copied()
        });
        let mut leaves = unplaced.leaves.clone();
        for stack in stacks.ids() {
            if let (StackFrame::Location(id), samples @ 1..) = (stacks.frame(stack), stacks.samples(stack)) {
                *leaves.entry(id).or_default() += samples;
            }
        }
        for (&id, &samples) in &unplaced.leaves {
            if let Some(&innermost) = self.at(id, &locations[id.index()]).last() {
                weights.own(innermost, samples);
            }
        }
        for (&function, &samples) in &unplaced.totals {
            weights.total(function, samples);
        }
        let mut hottest = self.hottest_lines(&leaves, locations);
        self.numbers
            .into_iter()
            .map(|((module, name), number)| FunctionCount {
                name,
                module,
                samples: weights.of(number).0,
                total: weights.of(number).1,
                hottest_line: hottest.remove(&number),
            })
            .filter(|function| function.total > 0)
            .collect()
    }

    /// The line of each function with most of its own samples.
    fn hottest_lines(
        &mut self,
        leaves: &FxHashMap<LocationId, u64>,
        locations: &[Location],
    ) -> FxHashMap<u32, SourceLine> {
        let mut lines: BTreeMap<(u32, &str, u32), u64> = BTreeMap::new();
        for (&id, &samples) in leaves {
            let location = &locations[id.index()];
            let Some(&function) = self.at(id, location).last() else {
                continue;
            };
            if let Some(call) = location.calls.first()
                && let (Some(file), Some(line)) = (&call.file, call.line)
            {
                *lines.entry((function, file, line)).or_default() += samples;
            }
        }
        let mut hottest: FxHashMap<u32, SourceLine> = FxHashMap::default();
        for ((function, file, line), samples) in lines {
            if hottest.get(&function).is_none_or(|most| samples > most.samples) {
                let file = file.to_owned();
                hottest.insert(function, SourceLine { file, line, samples });
            }
        }
        hottest
    }
}
