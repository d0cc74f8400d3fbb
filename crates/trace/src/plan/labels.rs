//! Finds the labels of a number among those of its enumeration.

use crate::description::Mapping;

/// Enumerations with fewer labels are searched from the first to the last.
const FEW: usize = 32;

/// The labels of an enumeration, in their order, and an index of those of large ones.
#[derive(Debug)]
pub(crate) struct LabelIndex {
    mappings: Box<[Mapping]>,
    /// All ranges by their start: a search tree whose root is in the middle.
    ranges: Box<[Ranged]>,
}

#[derive(Debug)]
struct Ranged {
    first: i128,
    last: i128,
    /// The greatest `last` in the subtree.
    reach: i128,
    mapping: u32,
}

impl LabelIndex {
    pub(crate) fn new(mappings: Box<[Mapping]>) -> LabelIndex {
        if mappings.len() < FEW {
            let ranges = Box::default();
            return LabelIndex { mappings, ranges };
        }
        let ranges = mappings.iter().zip(0..).flat_map(|(mapping, number)| {
            mapping.ranges.iter().map(move |range| Ranged {
                first: range.first,
                last: range.last,
                reach: range.last,
                mapping: number,
            })
        });
        let mut ranges: Box<[Ranged]> = ranges.collect();
        ranges.sort_by_key(|range| range.first);
        set_reach(&mut ranges);
        LabelIndex { mappings, ranges }
    }

    /// Whether there are no labels.
    pub(crate) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The labels of a number, in their order.
    pub(crate) fn labels(&self, value: i128) -> Found<'_> {
        if self.ranges.is_empty() {
            let mappings = self.mappings.iter();
            return Found::Few { mappings, value };
        }
        let mut numbers = Vec::new();
        find(&self.ranges, value, &mut numbers);
        numbers.sort_unstable();
        numbers.dedup();
        let mappings = &self.mappings;
        Found::Indexed {
            mappings,
            numbers: numbers.into_iter(),
        }
    }
}

fn set_reach(ranges: &mut [Ranged]) -> Option<i128> {
    let middle = ranges.len() / 2;
    let (before, rest) = ranges.split_at_mut(middle);
    let (root, after) = rest.split_first_mut()?;
    let below = set_reach(before).max(set_reach(after));
    root.reach = below.map_or(root.last, |below| below.max(root.last));
    Some(root.reach)
}

fn find(ranges: &[Ranged], value: i128, numbers: &mut Vec<u32>) {
    let (before, rest) = ranges.split_at(ranges.len() / 2);
    let Some((root, after)) = rest.split_first() else {
        return;
    };
    if root.reach < value {
        return;
    }
    find(before, value, numbers);
    if root.first <= value {
        if value <= root.last {
            numbers.push(root.mapping);
        }
        find(after, value, numbers);
    }
}

/// The labels of one number.
#[derive(Clone, Debug)]
pub(crate) enum Found<'a> {
    Few {
        mappings: std::slice::Iter<'a, Mapping>,
        value: i128,
    },
    Indexed {
        mappings: &'a [Mapping],
        numbers: std::vec::IntoIter<u32>,
    },
}

impl<'a> Iterator for Found<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let found = match self {
            Found::Few { mappings, value } => {
                let value = *value;
                mappings.find(|mapping| mapping.ranges.iter().any(|range| range.contains(value)))
            }
            Found::Indexed { mappings, numbers } => mappings.get(numbers.next()? as usize),
        };
        found.map(|mapping| mapping.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Range;

    #[test]
    fn large_and_small_enumerations_find_the_same_labels() {
        let mut state = 0x853c_49e6_748f_ea9bu64;
        let mut random = move |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            i128::from(state % limit)
        };
        for count in [0, 1, 31, 32, 33, 100, 1000] {
            let mapping = |number: usize| {
                let ranges = (0..1 + number % 3).map(|_| {
                    let first = random(300) - 150;
                    let last = first + random(if number.is_multiple_of(10) { 200 } else { 4 });
                    Range { first, last }
                });
                Mapping {
                    name: format!("L{number}"),
                    ranges: ranges.collect(),
                }
            };
            let mappings: Vec<Mapping> = (0..count).map(mapping).collect();
            let index = LabelIndex::new(mappings.clone().into());
            assert_eq!(index.is_empty(), count == 0);
            for value in -160..400 {
                let expected = mappings
                    .iter()
                    .filter(|mapping| mapping.ranges.iter().any(|range| range.contains(value)));
                let expected: Vec<&str> = expected.map(|mapping| mapping.name.as_str()).collect();
                assert_eq!(index.labels(value).collect::<Vec<_>>(), expected, "{count} {value}");
            }
        }
    }
}
