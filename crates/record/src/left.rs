//! Stacks that a thread has left for another one: that of the code that a signal has interrupted,
//! OCaml 5's in the heap, or that of the functions of C that these call. Samples copy the stack
//! that the thread is on, so walks end where the other one begins, until the kernel copies a part
//! of that one, too.

use std::ops::Range;

use backtrail_process::perf::{BYTES_OF_LEFT, LeftStack, MOST_LEFT};
use backtrail_process::stack::room_of_stack;

/// The first pause in nanoseconds after a search for a stack, which doubles.
const FIRST_PAUSE: u64 = 1_000_000;
const MOST_DOUBLINGS: u32 = 10;
/// Bytes below the word where a walk has ended that are copied too: at first, and at most.
const FIRST_BELOW: u64 = 2 << 10;
const MOST_BELOW: u64 = 16 << 10;

/// The stacks that a thread has left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    stacks: [LeftStack; MOST_LEFT],
    /// Bytes below the word that was last met.
    below: u64,
    /// Which is set next.
    next: usize,
    searches: u32,
    /// The time from which others may be searched.
    again: u64,
}

impl Left {
    /// What is to be copied.
    pub(crate) fn stacks(&self) -> &[LeftStack; MOST_LEFT] {
        &self.stacks
    }

    /// A walk from `sp` on, of a sample of this process and time, has ended at a word that was not
    /// copied. Returns whether it lies in another stack, and something else must be copied for it.
    pub(crate) fn cut(&mut self, (pid, time): (u32, u64), sp: u64, address: u64) -> bool {
        let is_in = |left: &&LeftStack| left.stack.contains(&address);
        let stack = match self.stacks.iter().find(is_in) {
            Some(left) => Some(left.stack.clone()),
            None if time >= self.again => {
                let pause = FIRST_PAUSE << self.searches.min(MOST_DOUBLINGS);
                self.again = time.saturating_add(pause);
                self.searches += 1;
                room_of_stack(pid, address)
            }
            None => None,
        };
        stack.is_some_and(|stack| !stack.contains(&sp) && self.set(stack, address))
    }

    fn set(&mut self, stack: Range<u64>, address: u64) -> bool {
        // A page of it is not present, or the kernel did not know it yet.
        if self.stacks.iter().any(|left| left.part().contains(&address)) {
            return false;
        }
        let is_deeper = |left: &LeftStack| {
            let below = left.from.checked_sub(address);
            left.stack == stack && below.is_some_and(|bytes| bytes < BYTES_OF_LEFT)
        };
        let index = match self.stacks.iter().position(is_deeper) {
            // It may become deeper still.
            Some(index) => {
                self.below = (2 * self.below).min(MOST_BELOW);
                index
            }
            None => {
                self.below = FIRST_BELOW;
                let index = self.next % MOST_LEFT;
                self.next = index + 1;
                index
            }
        };
        let from = address.saturating_sub(self.below).max(stack.start) & !7;
        self.stacks[index] = LeftStack { stack, from };
        true
    }
}
