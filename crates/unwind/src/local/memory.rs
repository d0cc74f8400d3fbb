//! Reading memory that may not be there.
//!
//! Words of the thread's own stack are loaded directly: from the lowest place to which a walk of
//! this thread has come, or at which it has begun, up to the stack's end, all of which was found
//! readable, and a stack stays mapped as long as its thread lives. So is the alternate signal stack
//! while the thread runs on it. All else (other stacks, whatever a corrupt stack leads to) may
//! vanish between a look at it and the load, and is copied by the kernel.

use core::sync::atomic::{AtomicU64, Ordering};

use super::syscall;
use crate::Memory;

/// Stacks deeper than this are not loaded from directly.
const DEEPEST: u64 = 256 << 20;
const PAGE: u64 = 4096;

/// What is known of the thread's stack.
#[derive(Debug)]
pub(super) struct Bounds {
    /// From here on words were found readable; the end where nothing was.
    low: AtomicU64,
    /// The end of the stack; 0 where it is not known.
    high: AtomicU64,
    /// A page below `low` that could not be read when it was last asked for; 0 where there was
    /// none. What lies below it is another stack or none.
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

    /// Where words can be loaded from.
    #[inline(always)]
    fn known(&self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// Where words can be loaded from when a walk begins at `sp`.
    #[inline(always)]
    fn direct(&self, sp: u64) -> (u64, u64) {
        if self.may_reach(sp) {
            self.extend(sp);
        }
        self.known()
    }

    /// Whether an address may be one of the stack, further down than any so far.
    #[inline(always)]
    fn may_reach(&self, address: u64) -> bool {
        let (low, high) = self.known();
        let from = address & !7;
        from < low && high - from <= DEEPEST
    }

    /// Takes the stack to reach down to an address which [may](Bounds::may_reach) be of it: a stack
    /// pointer of this thread, or what a walk from the alternate stack wants of the frames that
    /// the signal has interrupted. It is if all is readable from there on, since at the lower end
    /// of a stack lies a guard.
    #[cold]
    #[inline(never)]
    fn extend(&self, address: u64) {
        let (low, _) = self.known();
        let from = address & !7;
        // A walk that begins on the alternate stack, which ends before the thread does.
        if syscall::signal_stack().is_some_and(|(start, end)| start < low && from < end) {
            return;
        }
        // Asked again, since the first thread's stack grows.
        let gap = self.gap.load(Ordering::Relaxed);
        if from < gap + PAGE && gap < low && gap != 0 && !syscall::is_readable(gap) {
            return;
        }
        let mut page = from & !(PAGE - 1);
        while page < low {
            if !syscall::is_readable(page) {
                self.gap.store(page, Ordering::Relaxed);
                return;
            }
            page += PAGE;
        }
        // Nested walks of the same thread find one value or the other; both are right.
        self.low.store(from, Ordering::Relaxed);
    }
}

/// Words that the kernel copied at once: a frame or two.
const WINDOW: usize = 32;

/// The memory of this process, as seen from one walk.
#[derive(Debug)]
pub(super) struct OwnMemory<'w> {
    // Where it lies by itself the compiler keeps it in registers.
    stack: Words,
    bounds: &'w Bounds,
    /// None where the walk has not begun there.
    signal_stack: Words,
    window: &'w mut Option<Window>,
}

/// What the kernel copied last.
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

    /// Whether a word lies in the thread's own stack, or in the alternate one on which the walk has
    /// begun.
    pub(super) fn is_of_stack(&mut self, address: u64) -> bool {
        let (low, high) = self.bounds.direct(address);
        self.stack = Words::new(low, high);
        self.stack.holds(address) || self.signal_stack.holds(address)
    }

    /// A word that does not lie in the stack as far as that is known; it may be known better then.
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
            // SAFETY: as `OwnMemory::word` has it.
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
    count: u64,
    /// Of words that have another behind them.
    count_of_two: u64,
}

impl Words {
    #[inline]
    fn new(start: u64, end: u64) -> Words {
        let start = start.wrapping_add(7) & !7;
        let count = end.saturating_sub(start) / 8;
        Words {
            start,
            count,
            count_of_two: count.saturating_sub(1),
        }
    }

    /// Whether there is a word at this address: what is not aligned is turned into more than there
    /// can be.
    #[inline(always)]
    fn holds(self, address: u64) -> bool {
        address.wrapping_sub(self.start).rotate_right(3) < self.count
    }
}

impl Words {
    /// Whether there is one, and another behind it.
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
        // SAFETY: as above.
        self.stack.holds(address).then(|| unsafe { load(address) })
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

/// Copies words from any address, and returns how many there were before the first that cannot be
/// read.
pub fn read_words(address: u64, words: &mut [u64]) -> usize {
    syscall::copy_words(address, words).map_or(0, |bytes| bytes / 8)
}

/// Copies words from several places, an address and a count of up to 8 each, to the beginnings of
/// as many arrays; whether all could be read.
pub(super) fn read_places<const COUNT: usize>(places: &[(u64, usize); COUNT], words: &mut [[u64; 8]; COUNT]) -> bool {
    syscall::copy_places(places, words).is_ok_and(|all| all)
}
