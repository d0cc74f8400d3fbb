//! The stack as the program itself made it: from its calls and returns, and not from anything that
//! an unwinder reads.

use std::ops::Range;

use backtrail_unwind::{AddressKind, Frame};

/// The return of an active call, or the place that a signal has interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Return address, or the program counter that was interrupted.
    pub(crate) address: u64,
    /// [`AddressKind::Pc`] for an interrupted place.
    pub(crate) kind: AddressKind,
    /// The address of the return address (x86-64), or the stack pointer at the call (AArch64); for
    /// a signal, the interrupted stack pointer.
    pub(crate) slot: u64,
    /// The alternate stack that the handler of this signal runs on, if any.
    alternate: Option<Range<u64>>,
    /// The return address has been popped into a register, and is still that of the caller.
    pub(crate) in_register: bool,
}

/// A thread's active calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    /// Innermost last.
    entries: Vec<Entry>,
}

impl Shadow {
    /// The frame `number` levels outside the innermost one, which runs at `pc`.
    #[inline]
    pub(crate) fn frame(&self, pc: u64, number: usize) -> Option<Frame> {
        let Some(before) = number.checked_sub(1) else {
            return Some(Frame {
                address: pc,
                kind: AddressKind::Pc,
            });
        };
        let entry = self.entries.get(self.entries.len().checked_sub(before + 1)?)?;
        Some(Frame {
            address: entry.address,
            kind: entry.kind,
        })
    }

    /// The call that this frame returns from.
    pub(crate) fn entry(&self, number: usize) -> Option<&Entry> {
        self.entries.get(self.entries.len().checked_sub(number)?)
    }

    /// The number of frames, including the running one.
    pub(crate) fn depth(&self) -> usize {
        self.entries.len() + 1
    }

    pub(crate) fn top(&self) -> Option<&Entry> {
        self.entries.last()
    }

    pub(crate) fn top_mut(&mut self) -> Option<&mut Entry> {
        self.entries.last_mut()
    }

    pub(crate) fn pop(&mut self) {
        self.entries.pop();
    }

    /// A call that returns to `address`.
    pub(crate) fn call(&mut self, address: u64, slot: u64) {
        self.entries.push(Entry {
            address,
            kind: AddressKind::Ra,
            slot,
            alternate: None,
            in_register: false,
        });
    }

    /// A handler starts, which interrupts `pc` and `sp`; it returns to `restorer`, and has its
    /// frames below `slot`.
    pub(crate) fn signal(&mut self, pc: u64, sp: u64, alternate: Option<Range<u64>>, restorer: u64, slot: u64) {
        self.entries.push(Entry {
            address: pc,
            kind: AddressKind::Pc,
            slot: sp,
            alternate,
            in_register: false,
        });
        self.call(restorer, slot);
    }

    /// The handler has returned to the interrupted place.
    pub(crate) fn signal_return(&mut self) {
        while let Some(entry) = self.entries.pop() {
            if entry.kind == AddressKind::Pc {
                return;
            }
        }
    }

    /// Removes the calls below the stack pointer, which have returned or were jumped out of.
    /// `is_gone` decides this for a call.
    pub(crate) fn cut(&mut self, sp: u64, mut is_gone: impl FnMut(&mut Entry) -> bool) {
        while let Some(entry) = self.entries.last_mut() {
            let gone = match (entry.kind, &entry.alternate) {
                (AddressKind::Ra, _) => is_gone(entry) && !self.is_elsewhere(sp),
                (AddressKind::Pc, Some(stack)) => !stack.contains(&sp),
                (AddressKind::Pc, None) => sp >= entry.slot,
            };
            if gone {
                self.entries.pop();
                continue;
            }
            // A handler on an alternate stack that was jumped out of: the stack pointer says
            // nothing about its calls.
            match self.left_alternate(sp) {
                Some(below) => self.entries.truncate(below),
                None => return,
            }
        }
    }

    /// The alternate stack of the innermost handler, if it has one.
    fn alternate(&self) -> Option<(usize, &Range<u64>)> {
        let at = self.entries.iter().rposition(|entry| entry.kind == AddressKind::Pc)?;
        Some((at, self.entries[at].alternate.as_ref()?))
    }

    fn left_alternate(&self, sp: u64) -> Option<usize> {
        let (at, stack) = self.alternate()?;
        (!stack.contains(&sp) && stack.end != sp).then_some(at)
    }

    fn is_elsewhere(&self, sp: u64) -> bool {
        self.left_alternate(sp).is_some()
    }

    /// The highest slot of a return address on the current stack.
    pub(crate) fn reach(&self) -> Option<u64> {
        let on_it = self
            .entries
            .iter()
            .rev()
            .take_while(|entry| entry.alternate.is_none())
            .last()?;
        Some(on_it.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(sp: u64) -> impl FnMut(&mut Entry) -> bool {
        move |entry| entry.slot < sp
    }

    #[test]
    fn returns_and_jumps_take_calls_away() {
        let mut shadow = Shadow::default();
        for level in 0..5 {
            shadow.call(0x100 + level, 0x1000 - level * 0x10);
        }
        assert_eq!(shadow.frame(7, 1).unwrap().address, 0x104);
        shadow.cut(0x1000 - 0x40 + 8, below(0x1000 - 0x40 + 8));
        assert_eq!(shadow.depth(), 5);
        shadow.cut(0x1000 - 0x8, below(0x1000 - 0x8));
        assert_eq!((shadow.depth(), shadow.top().unwrap().address), (2, 0x100));
        assert_eq!(shadow.frame(7, 2), None);
    }

    #[test]
    fn handlers_come_and_go_on_either_stack() {
        for alternate in [None, Some(0x9000..0xa000)] {
            let inside = if alternate.is_some() { 0x9f00 } else { 0xd00 };
            let mut shadow = Shadow::default();
            shadow.call(0x100, 0x1000);
            shadow.signal(0x55, 0xf00, alternate.clone(), 0x77, inside);
            shadow.call(0x200, inside - 0x20);
            let addresses: Vec<u64> = (0..5).map_while(|n| shadow.frame(1, n)).map(|f| f.address).collect();
            assert_eq!(addresses, [1, 0x200, 0x77, 0x55, 0x100]);
            assert_eq!(shadow.frame(1, 3).unwrap().kind, AddressKind::Pc);
            let mut returned = shadow.clone();
            returned.signal_return();
            assert_eq!((returned.depth(), returned.top().unwrap().address), (2, 0x100));
            // A jump out of the handler.
            shadow.cut(0xf80, below(0xf80));
            assert_eq!((shadow.depth(), shadow.top().unwrap().address), (2, 0x100));
        }
    }
}
