//! Rules by address: look-ups' results, kept for the next sample.

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Location, Rule};

/// What a table says about an address.
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

/// An entry of a [`RuleCache`]: 16 bytes, since a walk waits for each entry to come from memory.
/// Rules that do not fit are not kept, but looked up each time.
#[derive(Clone, Copy, Debug)]
pub struct CacheEntry {
    rule: PackedRule,
    key: u64,
}

impl CacheEntry {
    /// An unused entry.
    pub const EMPTY: CacheEntry = CacheEntry {
        key: 0,
        rule: PackedRule(PackedRule::NOTHING),
    };
}

/// Set in keys that combine a table's number and an address in it; other keys are addresses of the
/// program.
const OF_TABLE: u64 = 1 << 63;
/// Number of address bits in a key; the table's number is above them.
const ADDRESS_BITS: u32 = 40;

/// The table and the address in one number, if they fit.
#[inline]
fn key(table: u32, address: u64) -> Option<u64> {
    let fits = address < 1 << ADDRESS_BITS && u64::from(table) < OF_TABLE >> ADDRESS_BITS;
    fits.then_some(OF_TABLE | u64::from(table) << ADDRESS_BITS | address)
}

/// A rule in one word: kind (bits 0 to 2), mangled return address (3), saved frame pointer (4),
/// whether the CFA is relative to the frame pointer rather than the stack pointer (5), frame
/// pointer just below the return address (6), return address just below the CFA (7), flags of
/// [`MemoStep`](crate::MemoStep) (8 to 15), the offsets of return address (16 to 29) and frame
/// pointer (30 to 43) from the CFA in words of 8 bytes, and the CFA's in bytes (44 to 63).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedRule(u64);

impl PackedRule {
    /// No rule: the content of an unused entry.
    const NOTHING: u64 = 0;
    const NOT_COVERED: u64 = 1;
    const OUTERMOST: u64 = 2;
    pub(crate) const CALLER: u64 = 3;
    const SIGNAL: u64 = 4;
    pub(crate) const KINDS: u64 = 7;
    const MANGLED: u64 = 1 << 3;
    pub(crate) const HAS_FP: u64 = 1 << 4;
    pub(crate) const FROM_FP: u64 = 1 << 5;
    pub(crate) const PAIR: u64 = 1 << 6;
    /// The return address is just below the CFA.
    const ON_TOP: u64 = 1 << 7;
    /// The flags that a plain step's [`MemoStep`](crate::MemoStep) has.
    pub(crate) const PLAIN_STEP: u64 = 0x3f << 8;

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
        let base = match register {
            _ if register == arch.sp.0 => 0,
            _ if register == arch.fp.0 => Self::FROM_FP,
            _ => return None,
        };
        let flags = if rule.mangled_ra { Self::MANGLED } else { 0 } | if rule.fp.is_some() { Self::HAS_FP } else { 0 };
        let ra = slot(rule.ra)?;
        let fp = match rule.fp {
            Some(fp) => slot(fp)?,
            None => Slot(0),
        };
        let cfa = i64::from(offset) << Self::CFA >> Self::CFA;
        if cfa != i64::from(offset) {
            return None;
        }
        let on_top = if ra == Slot::ON_TOP { Self::ON_TOP } else { 0 };
        let is_pair = rule.fp.is_some_and(|fp| fp.offset + 8 == rule.ra.offset);
        let pair = if is_pair { Self::PAIR } else { 0 };
        Some(PackedRule(
            Self::CALLER
                | Self::PLAIN_STEP
                | flags
                | pair
                | on_top
                | base
                | Self::slots(ra, fp)
                | (cfa as u64) << Self::CFA,
        ))
    }

    pub(crate) fn unpack(self, arch: &Arch) -> TableRule {
        match self.0 & Self::KINDS {
            Self::NOTHING | Self::NOT_COVERED => return TableRule::NotCovered,
            Self::OUTERMOST => return TableRule::Outermost,
            Self::SIGNAL => return TableRule::Signal,
            _ => {}
        }
        let saved = |offset: i64| Location {
            base: Base::Cfa,
            offset: offset as i32,
            deref: true,
        };
        TableRule::Caller {
            rule: Rule {
                cfa: Location {
                    base: Base::Register(if self.is_from_fp() { arch.fp.0 } else { arch.sp.0 }),
                    offset: self.cfa_offset() as i32,
                    deref: false,
                },
                ra: saved(self.ra_offset()),
                fp: self.has_fp().then(|| saved(self.fp_offset())),
                mangled_ra: self.0 & Self::MANGLED != 0,
            },
            signal_frame: false,
        }
    }

    /// Whether it leads to a caller whose CFA is at an offset from the stack pointer or the frame
    /// pointer. [Those](RuleCache::at) of return addresses do.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & Self::KINDS == Self::CALLER
    }

    #[inline(always)]
    pub(crate) fn is_outermost(self) -> bool {
        self.0 & Self::KINDS == Self::OUTERMOST
    }

    /// Whether the CFA is relative to the frame pointer; otherwise it is relative to the stack
    /// pointer.
    #[inline(always)]
    pub(crate) fn is_from_fp(self) -> bool {
        self.0 & Self::FROM_FP != 0
    }

    #[inline(always)]
    pub(crate) fn cfa_offset(self) -> i64 {
        self.0 as i64 >> Self::CFA
    }

    #[inline(always)]
    pub(crate) fn ra_offset(self) -> i64 {
        Slot::first(self.0).offset()
    }

    /// Whether the CFA is relative to the stack pointer, and the return address just below it.
    #[inline(always)]
    pub(crate) fn is_on_top_from_sp(self) -> bool {
        self.0 & (Self::ON_TOP | Self::FROM_FP) == Self::ON_TOP
    }

    /// Whether the caller's frame pointer was saved.
    #[inline(always)]
    pub(crate) fn has_fp(self) -> bool {
        self.0 & Self::HAS_FP != 0
    }

    /// Whether the frame pointer is just below the return address.
    #[inline(always)]
    pub(crate) fn has_pair(self) -> bool {
        self.0 & Self::PAIR != 0
    }

    #[inline(always)]
    pub(crate) fn fp_offset(self) -> i64 {
        Slot::second(self.0).offset()
    }

    /// The rule of most code that keeps frame pointers.
    #[inline(always)]
    pub(crate) fn of_frame_pointers(arch: &Arch) -> PackedRule {
        let (fp, ra) = (-arch.cfa_from_fp, arch.ra_from_fp - arch.cfa_from_fp);
        let (fp, ra) = (Slot(fp / 8), Slot(ra / 8));
        let pair = if arch.ra_from_fp == 8 { Self::PAIR } else { 0 };
        let on_top = if ra == Slot::ON_TOP { Self::ON_TOP } else { 0 };
        let flags = Self::CALLER | Self::PLAIN_STEP | Self::HAS_FP | Self::FROM_FP | pair | on_top;
        PackedRule(flags | Self::slots(ra, fp) | (arch.cfa_from_fp as u64) << Self::CFA)
    }

    /// The slots that it reads, and the flags of a plain step.
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The same with slots from another place, which the CFA is this many bytes above; `None` if
    /// they do not fit.
    #[inline]
    pub(crate) fn bits_from(self, bytes: i64) -> Option<u64> {
        let moved = |slot: Slot| Slot::at(slot.offset() + bytes);
        let slots = Self::slots(moved(Slot::first(self.0))?, moved(Slot::second(self.0))?);
        Some(self.0 & !Self::slots(Slot(-1), Slot(-1)) | slots)
    }

    /// Where the CFA's offset begins.
    const CFA: u32 = 44;

    /// The slots of return address and frame pointer, as they are in a rule.
    #[inline(always)]
    pub(crate) fn slots(ra: Slot, fp: Slot) -> u64 {
        ra.bits() << 16 | fp.bits() << 30
    }
}

/// The place of a saved value: its distance from the CFA, or another place, in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(i64);

impl Slot {
    const BITS: u32 = 14;
    /// Just below.
    const ON_TOP: Slot = Slot(-1);

    /// The slot at an offset in bytes, if that can be expressed.
    #[inline]
    pub(crate) fn at(offset: i64) -> Option<Slot> {
        let slot = Slot(offset / 8);
        (offset % 8 == 0 && Slot::of(slot.bits()) == slot).then_some(slot)
    }

    /// The first slot of [`PackedRule::slots`].
    #[inline(always)]
    pub(crate) fn first(slots: u64) -> Slot {
        Slot::of(slots >> 16)
    }

    /// The second one.
    #[inline(always)]
    pub(crate) fn second(slots: u64) -> Slot {
        Slot::of(slots >> 30)
    }

    /// The offset in bytes.
    #[inline(always)]
    pub(crate) fn offset(self) -> i64 {
        self.0 * 8
    }

    #[inline(always)]
    fn of(bits: u64) -> Slot {
        Slot((bits << (64 - Self::BITS)) as i64 >> (64 - Self::BITS))
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.0 as u64 & !(u64::MAX << Self::BITS)
    }
}

/// The slot of a saved value, from the CFA.
fn slot(saved: Location) -> Option<Slot> {
    Slot::at(saved.offset.into()).filter(|_| saved.base == Base::Cfa && saved.deref)
}

/// A direct-mapped cache in a borrowed buffer. It never changes an answer: an entry is used only if
/// both the table and the address match.
#[derive(Debug)]
pub struct RuleCache<'m> {
    entries: &'m mut [CacheEntry],
}

impl<'m> RuleCache<'m> {
    /// The number of entries with which walks are fastest.
    pub const USUAL: usize = 2048;

    /// A cache in `entries`, of which the largest power of two that fits is used; may be empty.
    pub fn new(entries: &'m mut [CacheEntry]) -> Self {
        let usable = match entries.len() {
            0 => 0,
            len => 1 << len.ilog2(),
        };
        RuleCache {
            entries: &mut entries[..usable],
        }
    }

    /// Forgets everything. Required before a table's number is given to another table, and before
    /// an address with lasting rules ([`Modules::is_lasting`](crate::Modules::is_lasting)) becomes
    /// another module's.
    pub fn clear(&mut self) {
        self.entries.fill(CacheEntry::EMPTY);
    }

    /// The rule of a return address of the program other than 0; it is
    /// [plain](PackedRule::is_plain).
    #[inline(always)]
    pub(crate) fn at(&self, return_address: u64) -> Option<PackedRule> {
        at(self.entries, return_address)
    }

    /// The entries, if they are as many as walks are compiled for.
    #[inline(always)]
    pub(crate) fn usual(&self) -> Option<&[CacheEntry; RuleCache::USUAL]> {
        self.entries.as_array()
    }

    #[inline]
    pub(crate) fn put_at(&mut self, return_address: u64, rule: PackedRule) {
        let place = place_of_address(self.entries, return_address);
        if return_address & OF_TABLE == 0
            && rule.is_plain()
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
}

/// The rule of a return address other than 0, in a cache's entries.
#[inline(always)]
pub(crate) fn at(entries: &[CacheEntry], return_address: u64) -> Option<PackedRule> {
    let entry = entries.get(place_of_address(entries, return_address))?;
    (entry.key == return_address).then_some(entry.rule)
}

/// Must take few cycles, since the next frame waits for it: an addition, and no shift if the number
/// of entries, of 16 bytes, is known to the compiler.
#[inline(always)]
fn place_of_address(entries: &[CacheEntry], address: u64) -> usize {
    (address.wrapping_mul(9) >> 4) as usize & entries.len().wrapping_sub(1)
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
            (caller(0x7ffff, saved(0xfff8), Some(saved(-0x10000))), true),
            (caller(-0x80000, saved(-8), Some(saved(0))), true),
            (caller(0x80000, saved(-8), None), false),
            (caller(i32::MIN, saved(-8), None), false),
            (caller(20, saved(-8), None), true),
            (caller(16, saved(0x10000), None), false),
            (caller(16, saved(-4), None), false),
            (caller(16, saved(-8), Some(saved(-0x10008))), false),
            (caller(16, register, None), false),
            (caller(16, saved(-8), Some(register)), false),
        ] {
            let mut entries = [CacheEntry::EMPTY; 4];
            let mut cache = RuleCache::new(&mut entries);
            let packed = PackedRule::new(&x86_64::ARCH, rule);
            assert_eq!(
                packed.map(|packed| packed.unpack(&x86_64::ARCH)),
                is_kept.then_some(rule),
                "{rule:?}"
            );
            let Some(packed) = packed else { continue };
            cache.put(3, 0x1234, packed);
            assert_eq!(cache.get(3, 0x1234), Some(packed));
            assert_eq!(cache.get(2, 0x1234), None);
            assert_eq!(cache.get(3, 0x1235), None);
            assert_eq!(cache.at(0x1234), None);
            cache.put_at(0x1234, packed);
            assert_eq!(cache.at(0x1234), Some(packed).filter(|packed| packed.is_plain()));
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
