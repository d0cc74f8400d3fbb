//! Rules by address: what a look-up found, kept for the next sample.

use backtrail_sframe::Rule;

/// What a table says of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableRule {
    /// How to reach the caller.
    Caller { rule: Rule, signal_frame: bool },
    /// The outermost frame.
    Outermost,
    /// The table does not cover the address.
    NotCovered,
}

/// A place in a [`RuleCache`].
#[derive(Clone, Copy, Debug)]
pub struct CacheEntry {
    address: u64,
    table: u32,
    rule: TableRule,
}

impl CacheEntry {
    /// An unused place.
    pub const EMPTY: CacheEntry = CacheEntry {
        address: 0,
        table: NO_TABLE,
        rule: TableRule::NotCovered,
    };
}

/// No table has this number.
const NO_TABLE: u32 = u32::MAX;

/// A direct-mapped cache over memory that the caller lends. It never changes an answer: an entry is used only where
/// both the table and the address are the same.
#[derive(Debug)]
pub struct RuleCache<'m> {
    entries: &'m mut [CacheEntry],
}

impl<'m> RuleCache<'m> {
    /// A cache in `entries`; only the largest power of two that fits is used, and none at all works too.
    pub fn new(entries: &'m mut [CacheEntry]) -> Self {
        let usable = match entries.len() {
            0 => 0,
            len => 1 << len.ilog2(),
        };
        RuleCache {
            entries: &mut entries[..usable],
        }
    }

    /// Forgets everything; needed before a table's number is given to another table.
    pub fn clear(&mut self) {
        self.entries.fill(CacheEntry::EMPTY);
    }

    #[inline]
    pub(crate) fn get(&self, table: u32, address: u64) -> Option<TableRule> {
        let entry = self.entries.get(self.place(table, address))?;
        (entry.address == address && entry.table == table && table != NO_TABLE).then_some(entry.rule)
    }

    #[inline]
    pub(crate) fn put(&mut self, table: u32, address: u64, rule: TableRule) {
        let place = self.place(table, address);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = CacheEntry { address, table, rule };
        }
    }

    #[inline]
    fn place(&self, table: u32, address: u64) -> usize {
        // Fibonacci hashing: neighbouring call sites spread over the whole table.
        let mixed = (address ^ u64::from(table) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & self.entries.len().wrapping_sub(1)
    }
}
