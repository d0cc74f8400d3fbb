//! Reading memory that may not be there.
//!
//! Words of the thread's own stack are loaded directly: from the lowest stack pointer at which a walk of this thread has begun up to the
//! stack's end, all of which was found readable, and a stack stays mapped as long as its thread lives. So is the alternate signal
//! stack while the thread runs on it. All else (other stacks, whatever a corrupt stack leads to) may vanish between a
//! look at it and the load, and is copied by the kernel.

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
}

impl Bounds {
    pub(super) const fn unknown() -> Bounds {
        Bounds {
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
        }
    }

    pub(super) fn ending_at(high: u64) -> Bounds {
        let high = high & !7;
        Bounds {
            low: AtomicU64::new(high),
            high: AtomicU64::new(high),
        }
    }

    pub(super) fn set(&self, bounds: Bounds) {
        self.low.store(bounds.low.into_inner(), Ordering::Relaxed);
        self.high.store(bounds.high.into_inner(), Ordering::Relaxed);
    }

    /// Where words can be loaded from when a walk begins at `sp`.
    #[inline(always)]
    fn direct(&self, sp: u64) -> (u64, u64) {
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        let from = sp & !7;
        if from >= low || from >= high || high - from > DEEPEST {
            return (low, high);
        }
        self.extend(low, from, high)
    }

    /// A walk has begun further down than any before.
    #[cold]
    #[inline(never)]
    fn extend(&self, low: u64, from: u64, high: u64) -> (u64, u64) {
        if syscall::signal_stack().is_some() {
            return (low, high);
        }
        let mut page = from & !(PAGE - 1);
        while page < low {
            if !syscall::is_readable(page) {
                return (low, high);
            }
            page += PAGE;
        }
        // Nested walks of the same thread find one value or the other; both are right.
        self.low.store(from, Ordering::Relaxed);
        (from, high)
    }
}

/// Words that the kernel copied at once: a frame or two.
const WINDOW: usize = 32;

/// The memory of this process, as seen from one walk.
#[derive(Debug)]
pub(super) struct OwnMemory<'w> {
    // Where it lies by itself the compiler keeps it in registers.
    stack: Words,
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
    pub(super) fn new(bounds: &Bounds, sp: u64, window: &'w mut Option<Window>) -> OwnMemory<'w> {
        let (low, high) = bounds.direct(sp);
        let on_stack = (low..high).contains(&sp);
        let (alternate, alternate_end) = match on_stack {
            true => (0, 0),
            false => signal_stack_around(sp),
        };
        OwnMemory {
            stack: Words::new(low, high),
            signal_stack: Words::new(alternate, alternate_end),
            window,
        }
    }
}

#[cold]
#[inline(never)]
fn elsewhere(address: u64, signal_stack: Words, window: &mut Option<Window>) -> Option<u64> {
    if signal_stack.holds(address) {
        // SAFETY: the word is aligned and lies in the alternate stack on which the thread runs now.
        return Some(unsafe { load(address) });
    }
    if let Some(word) = window.as_ref().and_then(|window| window.word(address)) {
        return Some(word);
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
fn is_elsewhere(address: u64, mask: u64, value: u64, signal_stack: Words, window: &mut Option<Window>) -> bool {
    elsewhere(address, signal_stack, window).is_some_and(|word| word & mask == value)
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

    /// Whether there is a word at this address: what is not aligned is turned into more than there can be.
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

impl Memory for OwnMemory<'_> {
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        if self.stack.holds(address) {
            // SAFETY: the word is aligned and lies in the thread's own stack between a stack pointer of its and its end, where each page
            // was found readable (`Bounds::direct`).
            return Some(unsafe { load(address) });
        }
        elsewhere(address, self.signal_stack, self.window)
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
        is_elsewhere(address, mask, value, self.signal_stack, self.window)
    }

    #[inline(always)]
    fn are(&mut self, address: u64, first: u64, mask: u64, second: u64) -> bool {
        if self.stack.holds_two(address) {
            // SAFETY: as above, and so does the next word.
            return unsafe { load(address) == first && load(address + 8) & mask == second };
        }
        let (signal_stack, window) = (self.signal_stack, &mut *self.window);
        is_elsewhere(address, u64::MAX, first, signal_stack, window)
            && is_elsewhere(address.wrapping_add(8), mask, second, signal_stack, window)
    }
}

/// Copies words from any address, and returns how many there were before the first that cannot be read.
pub fn read_words(address: u64, words: &mut [u64]) -> usize {
    syscall::copy_words(address, words).map_or(0, |bytes| bytes / 8)
}
