//! Reads memory that may be unmapped.
//!
//! Words of the thread's own stack are loaded directly, from the lowest place that a walk of this
//! thread has reached or begun at, up to the stack's end: all of this was found readable, and a
//! stack stays mapped as long as its thread lives. So is the alternate signal stack while the
//! thread runs on it. All other memory (other stacks, targets of a corrupt stack) may be unmapped
//! between a check and the load, so the kernel copies it.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{guarded, syscall};
use crate::Memory;

/// Deeper stacks are not loaded from directly.
const DEEPEST: u64 = 256 << 20;
const PAGE: u64 = 4096;

/// What is known about the thread's stack.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Words from here on were found readable; equals the end if none were.
    low: AtomicU64,
    /// The end of the stack; 0 if unknown.
    high: AtomicU64,
    /// A page below `low` that was unreadable when last checked; 0 if there was none. Memory below
    /// it does not belong to this stack.
    gap: AtomicU64,
}

impl Bounds {
    pub(super) const fn unknown() -> Bounds {
        Bounds {
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        }
    }

    pub(super) fn ending_at(high: u64) -> Bounds {
        let high = high & !7;
        Bounds {
            low: AtomicU64::new(high),
            high: AtomicU64::new(high),
            gap: AtomicU64::new(0),
        }
    }

    pub(super) fn set(&self, bounds: Bounds) {
        self.low.store(bounds.low.into_inner(), Ordering::Relaxed);
        self.high.store(bounds.high.into_inner(), Ordering::Relaxed);
        self.gap.store(bounds.gap.into_inner(), Ordering::Relaxed);
    }

    /// The range that words can be loaded from.
    #[inline(always)]
    fn known(&self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// The range that words can be loaded from in a walk that begins at `sp`.
    #[inline(always)]
    fn direct(&self, sp: u64) -> (u64, u64) {
        if self.may_reach(sp) {
            self.extend(sp);
        }
        self.known()
    }

    /// Whether an address may be in the stack, below all that is known.
    #[inline(always)]
    fn may_reach(&self, address: u64) -> bool {
        let (low, high) = self.known();
        let from = address & !7;
        from < low && high - from <= DEEPEST
    }

    /// Extends the stack down to an address that [may](Bounds::may_reach) be in it: a stack pointer
    /// of this thread, or one that a walk from the alternate stack needs for the interrupted
    /// frames. It is in the stack if everything above it is readable, since a guard page lies at a
    /// stack's lower end.
    #[cold]
    #[inline(never)]
    fn extend(&self, address: u64) {
        let (low, _) = self.known();
        let from = address & !7;
        // This walk begins on the alternate stack, which ends before the thread does.
        if syscall::signal_stack().is_some_and(|(start, end)| start < low && from < end) {
            return;
        }
        // Check again, since the first thread's stack grows.
        let gap = self.gap.load(Ordering::Relaxed);
        if from < gap + PAGE && gap < low && gap != 0 && !is_readable(gap) {
            return;
        }
        let mut page = from & !(PAGE - 1);
        while page < low {
            if !is_readable(page) {
                self.gap.store(page, Ordering::Relaxed);
                return;
            }
            page += PAGE;
        }
        // Nested walks of the same thread see one value or the other; both are right.
        self.low.store(from, Ordering::Relaxed);
    }
}

/// Number of words that the kernel copies at once: a frame or two.
const WINDOW: usize = 32;

/// The memory of this process, as used by one walk.
#[derive(Debug)]
pub(super) struct OwnMemory<'w> {
    // A separate field, so that the compiler keeps it in registers.
    stack: Words,
    bounds: &'w Bounds,
    /// None if the walk did not begin there.
    signal_stack: Words,
    window: &'w mut Option<Window>,
}

/// The kernel's last copy.
#[derive(Debug)]
pub(super) struct Window {
    at: u64,
    words: [u64; WINDOW],
    count: usize,
}

impl Window {
    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.at);
        let words = self.words.get(..self.count)?;
        words
            .get((offset / 8) as usize)
            .copied()
            .filter(|_| offset.is_multiple_of(8))
    }
}

impl<'w> OwnMemory<'w> {
    #[inline(always)]
    pub(super) fn new(bounds: &'w Bounds, sp: u64, window: &'w mut Option<Window>) -> OwnMemory<'w> {
        let (low, high) = bounds.direct(sp);
        let on_stack = (low..high).contains(&sp);
        let (alternate, alternate_end) = match on_stack {
            true => (0, 0),
            false => signal_stack_around(sp),
        };
        OwnMemory {
            stack: Words::new(low, high),
            bounds,
            signal_stack: Words::new(alternate, alternate_end),
            window,
        }
    }

    /// Whether a word lies in the thread's own stack, or in the alternate one on which the walk
    /// began.
    pub(super) fn is_of_stack(&mut self, address: u64) -> bool {
        let (low, high) = self.bounds.direct(address);
        self.stack = Words::new(low, high);
        self.stack.holds(address) || self.signal_stack.holds(address)
    }

    /// A word outside the known stack, which may become better known.
    #[inline(always)]
    fn elsewhere(&mut self, address: u64) -> Option<u64> {
        let word = elsewhere(address, self.bounds, self.signal_stack, self.window);
        let (low, high) = self.bounds.known();
        self.stack = Words::new(low, high);
        word
    }
}

#[cold]
#[inline(never)]
fn elsewhere(address: u64, bounds: &Bounds, signal_stack: Words, window: &mut Option<Window>) -> Option<u64> {
    if signal_stack.holds(address) {
        // SAFETY: the word is aligned and lies in the alternate stack on which the thread runs now.
        return Some(unsafe { load(address) });
    }
    if let Some(word) = window.as_ref().and_then(|window| window.word(address)) {
        return Some(word);
    }
    if signal_stack.count > 0 && bounds.may_reach(address) {
        bounds.extend(address);
        let (low, high) = bounds.known();
        if Words::new(low, high).holds(address) {
            // SAFETY: as in `OwnMemory::word`.
            return Some(unsafe { load(address) });
        }
    }
    // An address past the end of memory has no words.
    address.checked_add(WINDOW as u64 * 8)?;
    let window = window.insert(Window {
        at: address,
        words: [0; WINDOW],
        count: 0,
    });
    window.count = read_words(address, &mut window.words);
    window.word(address)
}

#[cold]
#[inline(never)]
fn signal_stack_around(sp: u64) -> (u64, u64) {
    syscall::signal_stack()
        .filter(|&(start, end)| (start..end).contains(&sp))
        .unwrap_or((0, 0))
}

/// Aligned words that can be loaded.
#[derive(Clone, Copy, Debug)]
struct Words {
    start: u64,
    /// Address of the second word.
    second: u64,
    count: u64,
    /// Number of words that are followed by another.
    count_of_two: u64,
}

impl Words {
    #[inline]
    fn new(start: u64, end: u64) -> Words {
        let start = start.wrapping_add(7) & !7;
        let count = end.saturating_sub(start) / 8;
        Words {
            start,
            second: start.wrapping_add(8),
            count,
            count_of_two: count.saturating_sub(1),
        }
    }

    /// Whether there is a word at this address. Unaligned addresses become larger than any count.
    #[inline(always)]
    fn holds(self, address: u64) -> bool {
        address.wrapping_sub(self.start).rotate_right(3) < self.count
    }
}

impl Words {
    /// Whether there is a word before this address.
    #[inline(always)]
    fn holds_before(self, address: u64) -> bool {
        address.wrapping_sub(self.second).rotate_right(3) < self.count
    }

    /// Whether there is a word, followed by another.
    #[inline(always)]
    fn holds_two(self, address: u64) -> bool {
        address.wrapping_sub(self.start).rotate_right(3) < self.count_of_two
    }
}

/// Loads a word as bits: other code of the thread may have written it in any type.
///
/// # Safety
/// The address is aligned and readable.
#[inline]
unsafe fn load(address: u64) -> u64 {
    // SAFETY: as our caller promises.
    unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() }
}

/// Loads words as bits.
///
/// # Safety
/// All of them are readable.
pub(super) unsafe fn load_words(address: u64, words: &mut [u64]) {
    let from = core::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: as our caller promises; the words are ours to write.
    unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), words.as_mut_ptr().cast(), words.len() * 8) };
}

impl Memory for OwnMemory<'_> {
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if self.stack.holds(address) {
            // SAFETY: the word is aligned and lies in the thread's own stack up to its end, where
            // each page was found readable (`Bounds::extend`).
            return Some(unsafe { load(address) });
        }
        self.elsewhere(address)
    }

    #[inline(always)]
    fn word_at_hand(&mut self, address: u64) -> Option<u64> {
        // The same check as for two words, so that a loop needs one number less; the last word is
        // left to `word`.
        // SAFETY: as above.
        self.stack.holds_two(address).then(|| unsafe { load(address) })
    }

    #[inline(always)]
    fn word_before_at_hand(&mut self, address: u64) -> Option<u64> {
        // SAFETY: as above.
        self.stack
            .holds_before(address)
            .then(|| unsafe { load(address.wrapping_sub(8)) })
    }

    #[inline(always)]
    fn words_at_hand(&mut self, address: u64) -> Option<(u64, u64)> {
        // SAFETY: as above, and so does the next word.
        let both = || unsafe { (load(address), load(address + 8)) };
        self.stack.holds_two(address).then(both)
    }

    #[inline(always)]
    fn is(&mut self, address: u64, mask: u64, value: u64) -> bool {
        if self.stack.holds(address) {
            // SAFETY: as above.
            return unsafe { load(address) } & mask == value;
        }
        self.elsewhere(address).is_some_and(|word| word & mask == value)
    }

    #[inline(always)]
    fn are(&mut self, address: u64, first: u64, mask: u64, second: u64) -> bool {
        if self.stack.holds_two(address) {
            // SAFETY: as above, and so does the next word.
            return unsafe { load(address) == first && load(address + 8) & mask == second };
        }
        self.elsewhere(address) == Some(first)
            && self
                .elsewhere(address.wrapping_add(8))
                .is_some_and(|word| word & mask == second)
    }
}

/// Whether the word at an address is readable now.
fn is_readable(address: u64) -> bool {
    match guarded::is_on() {
        true => guarded::copy(address, &mut [0]) == 1,
        false => syscall::is_readable(address),
    }
}

/// Copies words from any address, and returns how many precede the first unreadable one.
pub fn read_words(address: u64, words: &mut [u64]) -> usize {
    match guarded::is_on() {
        true => guarded::copy(address, words),
        false => syscall::copy_words(address, words).map_or(0, |bytes| bytes / 8),
    }
}

/// Copies words from several places, each an address and a count of up to 8, to the beginnings of
/// as many arrays. Returns whether all were readable.
pub(super) fn read_places<const COUNT: usize>(places: &[(u64, usize); COUNT], words: &mut [[u64; 8]; COUNT]) -> bool {
    if !guarded::is_on() {
        return syscall::copy_places(places, words).is_ok_and(|all| all);
    }
    let mut each = places.iter().zip(words);
    each.all(|(&(address, count), words)| {
        let wanted = words.get_mut(..count.min(8)).unwrap_or_default();
        guarded::copy(address, wanted) == wanted.len()
    })
}
