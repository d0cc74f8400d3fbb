//! Address ranges in which a later range replaces what it overlaps.

use std::collections::BTreeMap;

/// Values by address range. Ranges never overlap: an insertion cuts or removes earlier ones.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<T> {
    /// First address to (address after the last, value).
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        RangeMap {
            ranges: BTreeMap::new(),
        }
    }
}

impl<T: Copy> RangeMap<T> {
    /// Gives `start..end` the value; the parts of earlier ranges outside it stay. An empty range
    /// changes nothing.
    pub(crate) fn insert(&mut self, start: u64, end: u64, value: T) {
        if start >= end {
            return;
        }
        // The ranges are disjoint, so their ends ascend too: only the last few before `end` can
        // reach into it.
        while let Some((&old_start, &(old_end, old))) = self.ranges.range(..end).next_back() {
            if old_end <= start {
                break;
            }
            self.ranges.remove(&old_start);
            if old_end > end {
                self.ranges.insert(end, (old_end, old));
            }
            if old_start < start {
                self.ranges.insert(old_start, (start, old));
            }
        }
        self.ranges.insert(start, (end, value));
    }

    /// The range that contains `address`: its first address and its value.
    pub(crate) fn get(&self, address: u64) -> Option<(u64, T)> {
        let (&start, &(end, value)) = self.ranges.range(..=address).next_back()?;
        (address < end).then_some((start, value))
    }

    /// Whether exactly this range has the value.
    pub(crate) fn has(&self, start: u64, end: u64, value: T) -> bool
    where
        T: PartialEq,
    {
        self.ranges.get(&start) == Some(&(end, value))
    }

    /// Forgets all ranges.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a byte-by-byte table, for ranges below 64.
    fn check(insertions: &[(u64, u64)]) {
        let mut map = RangeMap::default();
        let mut bytes = [None; 64];
        for (value, &(start, end)) in insertions.iter().enumerate() {
            map.insert(start, end, value);
            for byte in &mut bytes[start as usize..end.max(start) as usize] {
                *byte = Some(value);
            }
        }
        for (address, &expected) in bytes.iter().enumerate() {
            let found = map.get(address as u64).map(|(_, value)| value);
            assert_eq!(found, expected, "at {address} after {insertions:?}");
        }
    }

    #[test]
    fn later_ranges_replace_what_they_overlap() {
        check(&[(10, 20), (15, 25)]);
        check(&[(10, 20), (5, 15)]);
        check(&[(10, 30), (15, 20)]);
        check(&[(10, 12), (14, 16), (18, 20), (11, 19)]);
        check(&[(10, 20), (20, 30), (10, 30)]);
        check(&[(10, 20), (12, 12)]);
    }

    #[test]
    fn any_sequence_agrees_with_a_table_of_bytes() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..2_000 {
            let insertions: Vec<(u64, u64)> = (0..next() % 8)
                .map(|_| {
                    let start = next() % 60;
                    (start, (start + next() % 20).min(64))
                })
                .collect();
            check(&insertions);
        }
    }

    #[test]
    fn the_last_address_can_be_covered_up_to() {
        let mut map = RangeMap::default();
        map.insert(u64::MAX - 1, u64::MAX, 'a');
        assert_eq!(map.get(u64::MAX - 1), Some((u64::MAX - 1, 'a')));
        assert_eq!(map.get(u64::MAX), None);
    }
}
