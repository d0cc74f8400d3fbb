//! Rules by address: what a look-up found, kept for the next sample.

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Location, Rule};

/// What a table says of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableRule {
    /// How to reach the caller.
    Caller { rule: Rule, signal_frame: bool },
    /// The kernel's own frame, which has every register.
    Signal,
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
        key: 0,
        rule: PackedRule(PackedRule::NOTHING),
    };
}

/// Set in a key that is a table's number and an address in it; a key without it is an address of the program.
const OF_TABLE: u64 = 1 << 63;
/// Bits of an address in a key, the table's number above them.
const ADDRESS_BITS: u32 = 40;

/// The table and the address in one number, where they fit.
#[inline]
fn key(table: u32, address: u64) -> Option<u64> {
    let fits = address < 1 << ADDRESS_BITS && u64::from(table) < OF_TABLE >> ADDRESS_BITS;
    fits.then_some(OF_TABLE | u64::from(table) << ADDRESS_BITS | address)
}

/// A rule in one word: kind (bits 0 to 2), mangled return address (3), saved frame pointer (4), whether the CFA's register is the frame pointer
/// (5) or one that is neither it nor the stack pointer (6), that register (8 to 15), the offsets of frame pointer (16 to 27) and return address
/// (28 to 39) from the CFA in words of 8 bytes, and the CFA's offset (40 to 63), which a walk waits for, where one shift finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedRule(u64);

impl PackedRule {
    /// No rule: what a place is that was never used.
    const NOTHING: u64 = 0;
    const NOT_COVERED: u64 = 1;
    const OUTERMOST: u64 = 2;
    const CALLER: u64 = 3;
    const SIGNAL: u64 = 4;
    const KINDS: u64 = 7;
    const MANGLED: u64 = 1 << 3;
    const HAS_FP: u64 = 1 << 4;
    const FROM_FP: u64 = 1 << 5;
    const FROM_OTHER: u64 = 1 << 6;

    #[inline]
    pub(crate) fn new(arch: &Arch, rule: TableRule) -> Option<PackedRule> {
        let rule = match rule {
            TableRule::NotCovered => return Some(PackedRule(Self::NOT_COVERED)),
            TableRule::Outermost => return Some(PackedRule(Self::OUTERMOST)),
            TableRule::Signal => return Some(PackedRule(Self::SIGNAL)),
            TableRule::Caller { signal_frame: true, .. } => return None,
            TableRule::Caller { rule, .. } => rule,
        };
        let Location {
            base: Base::Register(register),
            offset,
            deref: false,
        } = rule.cfa
        else {
            return None;
        };
        if offset << 8 >> 8 != offset {
            return None;
        }
        let base = match register {
            _ if register == arch.sp.0 => 0,
            _ if register == arch.fp.0 => Self::FROM_FP,
            _ => Self::FROM_OTHER,
        };
        let flags = if rule.mangled_ra { Self::MANGLED } else { 0 } | if rule.fp.is_some() { Self::HAS_FP } else { 0 };
        let ra = slot(rule.ra)?;
        let fp = match rule.fp {
            Some(fp) => slot(fp)?,
            None => 0,
        };
        Some(PackedRule(
            Self::CALLER | flags | base | u64::from(register) << 8 | fp << 16 | ra << 28 | (offset as u64) << 40,
        ))
    }

    pub(crate) fn unpack(self) -> TableRule {
        match self.0 & Self::KINDS {
            Self::NOTHING | Self::NOT_COVERED => return TableRule::NotCovered,
            Self::OUTERMOST => return TableRule::Outermost,
            Self::SIGNAL => return TableRule::Signal,
            _ => {}
        }
        let saved = |words: i64| Location {
            base: Base::Cfa,
            offset: words as i32 * 8,
            deref: true,
        };
        TableRule::Caller {
            rule: Rule {
                cfa: Location {
                    base: Base::Register((self.0 >> 8) as u8),
                    offset: self.cfa_offset() as i32,
                    deref: false,
                },
                ra: saved(self.ra_words()),
                fp: self.has_fp().then(|| saved(self.fp_words())),
                mangled_ra: self.0 & Self::MANGLED != 0,
            },
            signal_frame: false,
        }
    }

    /// Whether it leads to a caller whose CFA is so far from the stack pointer or the frame pointer.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (Self::KINDS | Self::FROM_OTHER) == Self::CALLER
    }

    /// Whether the CFA is told from the frame pointer; else it is from the stack pointer, where the rule [is plain](PackedRule::is_plain).
    #[inline(always)]
    pub(crate) fn is_from_fp(self) -> bool {
        self.0 & Self::FROM_FP != 0
    }

    #[inline(always)]
    pub(crate) fn cfa_offset(self) -> i64 {
        self.0 as i64 >> 40
    }

    #[inline(always)]
    pub(crate) fn ra_words(self) -> i64 {
        (self.0 << 24) as i64 >> 52
    }

    /// Whether the caller's frame pointer was saved.
    #[inline(always)]
    pub(crate) fn has_fp(self) -> bool {
        self.0 & Self::HAS_FP != 0
    }

    #[inline(always)]
    pub(crate) fn fp_words(self) -> i64 {
        (self.0 << 36) as i64 >> 52
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

    /// Forgets everything; needed before a table's number is given to another table, and before an address whose rules are kept for good
    /// ([`Modules::is_lasting`](crate::Modules::is_lasting)) is another module's.
    pub fn clear(&mut self) {
        self.entries.fill(CacheEntry::EMPTY);
    }

    /// The rule of a return address of the program.
    #[inline(always)]
    pub(crate) fn at(&self, return_address: u64) -> Option<PackedRule> {
        let entry = self.entries.get(self.place_of_address(return_address))?;
        (entry.key == return_address).then_some(entry.rule)
    }

    #[inline]
    pub(crate) fn put_at(&mut self, return_address: u64, rule: PackedRule) {
        let place = self.place_of_address(return_address);
        if return_address & OF_TABLE == 0
            && let Some(entry) = self.entries.get_mut(place)
        {
            *entry = CacheEntry {
                key: return_address,
                rule,
            };
        }
    }

    /// The rule of an address in a table.
    #[inline(always)]
    pub(crate) fn get(&self, table: u32, address: u64) -> Option<PackedRule> {
        let key = key(table, address)?;
        let entry = self.entries.get(self.place(key))?;
        (entry.key == key).then_some(entry.rule)
    }

    #[inline]
    pub(crate) fn put(&mut self, table: u32, address: u64, rule: PackedRule) {
        let Some(key) = key(table, address) else {
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

    /// In few cycles, since the next frame waits for them.
    #[inline(always)]
    fn place_of_address(&self, address: u64) -> usize {
        (address ^ address >> 9) as usize & self.entries.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64;

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
            (TableRule::Signal, true),
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
            let packed = PackedRule::new(&x86_64::ARCH, rule);
            assert_eq!(packed.map(PackedRule::unpack), is_kept.then_some(rule), "{rule:?}");
            let Some(packed) = packed else { continue };
            cache.put(3, 0x1234, packed);
            assert_eq!(cache.get(3, 0x1234), Some(packed));
            assert_eq!(cache.get(2, 0x1234), None);
            assert_eq!(cache.get(3, 0x1235), None);
            assert_eq!(cache.at(0x1234), None);
            cache.put_at(0x1234, packed);
            assert_eq!(cache.at(0x1234), Some(packed));
            assert_eq!(cache.at(0x1235), None);
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
            cache.put(table, address, PackedRule(PackedRule::OUTERMOST));
            assert_eq!(cache.get(table, address), None);
        }
        cache.put_at(key(3, 4).unwrap(), PackedRule(PackedRule::OUTERMOST));
        assert_eq!(cache.get(3, 4), None);
        assert_eq!(cache.at(key(3, 4).unwrap()), None);
    }
}
