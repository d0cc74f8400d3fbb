//! Rules by address: what a look-up found, kept for the next sample.

use backtrail_sframe::{Base, Location, Rule};

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

/// A place in a [`RuleCache`]: 16 bytes, since a walk waits for each entry to come from memory. What does not fit is not
/// kept, but looked up each time.
#[derive(Clone, Copy, Debug)]
pub struct CacheEntry {
    key: u64,
    rule: PackedRule,
}

impl CacheEntry {
    /// An unused place.
    pub const EMPTY: CacheEntry = CacheEntry {
        key: NO_KEY,
        rule: PackedRule(0),
    };
}

/// No table and address have this key.
const NO_KEY: u64 = u64::MAX;
/// Bits of an address in a key, the table's number above them.
const ADDRESS_BITS: u32 = 40;

/// The table and the address in one number, where they fit.
#[inline]
fn key(table: u32, address: u64) -> Option<u64> {
    let fits = address < 1 << ADDRESS_BITS && u64::from(table) < NO_KEY >> ADDRESS_BITS;
    fits.then_some(u64::from(table) << ADDRESS_BITS | address)
}

/// A rule in one word: kind (bits 0 and 1), mangled return address (2), saved frame pointer (3), the CFA's register (8 to 15) and offset (16 to 39), and
/// the offsets of return address (40 to 51) and frame pointer (52 to 63) from the CFA in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedRule(u64);

impl PackedRule {
    const NOT_COVERED: u64 = 0;
    const OUTERMOST: u64 = 1;
    const CALLER: u64 = 2;
    const MANGLED: u64 = 1 << 2;
    const HAS_FP: u64 = 1 << 3;

    #[inline]
    fn new(rule: TableRule) -> Option<PackedRule> {
        let (rule, signal_frame) = match rule {
            TableRule::NotCovered => return Some(PackedRule(Self::NOT_COVERED)),
            TableRule::Outermost => return Some(PackedRule(Self::OUTERMOST)),
            TableRule::Caller { rule, signal_frame } => (rule, signal_frame),
        };
        let Location {
            base: Base::Register(register),
            offset,
            deref: false,
        } = rule.cfa
        else {
            return None;
        };
        if signal_frame || offset << 8 >> 8 != offset {
            return None;
        }
        let flags = if rule.mangled_ra { Self::MANGLED } else { 0 } | if rule.fp.is_some() { Self::HAS_FP } else { 0 };
        let ra = slot(rule.ra)?;
        let fp = match rule.fp {
            Some(fp) => slot(fp)?,
            None => 0,
        };
        let offset = u64::from(offset as u32 & 0x00ff_ffff);
        Some(PackedRule(
            Self::CALLER | flags | u64::from(register) << 8 | offset << 16 | ra << 40 | fp << 52,
        ))
    }

    #[inline(always)]
    fn unpack(self) -> TableRule {
        match self.0 & 3 {
            Self::NOT_COVERED => return TableRule::NotCovered,
            Self::OUTERMOST => return TableRule::Outermost,
            _ => {}
        }
        let saved = |slot: u64| Location {
            base: Base::Cfa,
            offset: ((slot << 52) as i64 >> 52) as i32 * 8,
            deref: true,
        };
        TableRule::Caller {
            rule: Rule {
                cfa: Location {
                    base: Base::Register((self.0 >> 8) as u8),
                    offset: ((self.0 >> 16) as i32) << 8 >> 8,
                    deref: false,
                },
                ra: saved(self.0 >> 40),
                fp: (self.0 & Self::HAS_FP != 0).then(|| saved(self.0 >> 52)),
                mangled_ra: self.0 & Self::MANGLED != 0,
            },
            signal_frame: false,
        }
    }
}

/// The words between the CFA and where something is saved, as 12 bits.
#[inline]
fn slot(saved: Location) -> Option<u64> {
    let words = saved.offset / 8;
    let fits = saved.base == Base::Cfa && saved.deref && saved.offset % 8 == 0 && (-2048..2048).contains(&words);
    fits.then_some(u64::from(words as u32 & 0xfff))
}

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

    #[inline(always)]
    pub(crate) fn get(&self, table: u32, address: u64) -> Option<TableRule> {
        let key = key(table, address)?;
        let entry = self.entries.get(self.place(key))?;
        (entry.key == key).then(|| entry.rule.unpack())
    }

    #[inline]
    pub(crate) fn put(&mut self, table: u32, address: u64, rule: TableRule) {
        let (Some(key), Some(rule)) = (key(table, address), PackedRule::new(rule)) else {
            return;
        };
        let place = self.place(key);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = CacheEntry { key, rule };
        }
    }

    #[inline]
    fn place(&self, key: u64) -> usize {
        // Fibonacci hashing: neighbouring call sites spread over the whole table.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & self.entries.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(offset: i32) -> Location {
        Location {
            base: Base::Cfa,
            offset,
            deref: true,
        }
    }

    fn caller(cfa: i32, ra: Location, fp: Option<Location>) -> TableRule {
        TableRule::Caller {
            rule: Rule {
                cfa: Location {
                    base: Base::Register(7),
                    offset: cfa,
                    deref: false,
                },
                ra,
                fp,
                mangled_ra: fp.is_some(),
            },
            signal_frame: false,
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_the_rest_is_not_kept() {
        assert_eq!(size_of::<CacheEntry>(), 16);
        let register = Location {
            base: Base::Register(30),
            offset: 0,
            deref: false,
        };
        for (rule, is_kept) in [
            (TableRule::NotCovered, true),
            (TableRule::Outermost, true),
            (caller(16, saved(-8), None), true),
            (caller(-16, saved(-8), Some(saved(-16))), true),
            (caller((1 << 23) - 1, saved(2047 * 8), Some(saved(-2048 * 8))), true),
            (caller(-(1 << 23), saved(-8), Some(saved(0))), true),
            (caller(1 << 23, saved(-8), None), false),
            (caller(i32::MIN, saved(-8), None), false),
            (caller(16, saved(2048 * 8), None), false),
            (caller(16, saved(-4), None), false),
            (caller(16, register, None), false),
            (caller(16, saved(-8), Some(register)), false),
        ] {
            let mut entries = [CacheEntry::EMPTY; 4];
            let mut cache = RuleCache::new(&mut entries);
            cache.put(3, 0x1234, rule);
            assert_eq!(cache.get(3, 0x1234), is_kept.then_some(rule), "{rule:?}");
            assert_eq!(cache.get(2, 0x1234), None);
            assert_eq!(cache.get(3, 0x1235), None);
        }
    }

    #[test]
    fn addresses_and_tables_that_do_not_fit_are_not_kept() {
        let mut entries = [CacheEntry::EMPTY; 4];
        let mut cache = RuleCache::new(&mut entries);
        for (table, address) in [
            (0, 1 << 40),
            (1 << 24, 0),
            (u32::MAX, u64::MAX),
            (0xff_ffff, (1 << 40) - 1),
        ] {
            cache.put(table, address, TableRule::Outermost);
            assert_eq!(cache.get(table, address), None);
        }
    }
}
