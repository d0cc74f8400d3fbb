//! Pages of stacks that were never touched, where copies of stacks end.
//!
//! A function that uses little of a large buffer leaves such pages in the middle of its stack, for
//! as long as its thread runs. The current sample cannot be repaired, but later ones can: the pages
//! are made present from outside.

use std::ops::Range;

use backtrail_process::stack::{mapping_of_stack, touch, touch_below};
use rustc_hash::FxHashMap;

/// Bytes below a copy's end that are made present too: the thread will call further inwards.
const INWARDS: u64 = 256 << 10;
/// The most threads to remember; with more, all are forgotten.
const MOST_THREADS: usize = 1 << 12;
/// Attempts per thread without a pause, and then the first pause in nanoseconds, which doubles.
const QUICK_ATTEMPTS: u32 = 8;
const FIRST_PAUSE: u64 = 1_000_000;
const MOST_DOUBLINGS: u32 = 12;

/// The state of a thread's stack.
#[derive(Debug, Default)]
struct Stack {
    mapping: Range<u64>,
    attempts: u32,
    /// The time from which the next attempt may be made.
    next: u64,
}

/// The stacks of threads whose copies ended too early.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    by_thread: FxHashMap<u32, Stack>,
}

/// A copy that ended at `end` where up to `wanted` could have been copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortCopy {
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) end: u64,
    pub(crate) wanted: u64,
}

impl Stack {
    /// Finds the mapping with this address, if it is not the one that is known.
    fn find(&mut self, pid: u32, address: u64) {
        if !self.mapping.contains(&address) {
            self.mapping = mapping_of_stack(pid, address).unwrap_or_default();
        }
    }
}

impl Holes {
    fn of(&mut self, tid: u32) -> &mut Stack {
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&tid) {
            self.by_thread.clear();
        }
        self.by_thread.entry(tid).or_default()
    }

    /// Makes pages present that a new thread will call into. The stacks of main threads start with
    /// no more than these.
    pub(crate) fn prepare(&mut self, pid: u32, tid: u32, sp: u64) {
        const MAIN: u64 = 64 << 10;
        if !self.by_thread.contains_key(&tid) {
            self.of(tid);
            touch_below(pid, sp, if pid == tid { MAIN } else { INWARDS });
        }
    }

    /// The thread has ended, or runs another program.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
    }

    /// Makes the pages present that this copy lacked, and those of stacks that are somewhat more or
    /// less deep.
    pub(crate) fn mend(&mut self, copy: ShortCopy) {
        let stack = self.of(copy.tid);
        // A program may give its pages back again and again.
        if copy.time < stack.next {
            return;
        }
        stack.attempts += 1;
        if let Some(doublings) = stack.attempts.checked_sub(QUICK_ATTEMPTS) {
            stack.next = copy.time.saturating_add(FIRST_PAUSE << doublings.min(MOST_DOUBLINGS));
        }
        stack.find(copy.pid, copy.end);
        if stack.mapping.contains(&copy.end) {
            let length = copy.wanted.saturating_sub(copy.end);
            let begin = copy.end.saturating_sub(INWARDS).max(stack.mapping.start);
            let end = copy.wanted.saturating_add(length).min(stack.mapping.end);
            touch(copy.pid, begin..end);
        }
    }
}
