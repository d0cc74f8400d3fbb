//! A stack that is kept from one walk to the next. Mostly it is the same again, and if no other
//! walk of the thread came between, that is known without copying or comparing its addresses.

use super::modules::Published;
use super::thread::{self, Lent, Walk};
use super::{ARCH, Captured, OwnMemory, walk_from};
use crate::sink::Sink;
use crate::{AddressKind, MemoStep, Stop};

/// The last stack that was walked for some purpose, of at most `N` frames.
#[derive(Debug)]
pub struct KeptStack<const N: usize> {
    addresses: [u64; N],
    count: usize,
    is_complete: bool,
    /// The last walk; `None` if a later one cannot be known to be the same.
    walk: Option<Walk>,
}

impl<const N: usize> KeptStack<N> {
    /// In an address: the code there was interrupted; it is no return address. Addresses of
    /// programs are less.
    pub const IS_PC: u64 = 1 << 63;

    /// No stack.
    pub const EMPTY: KeptStack<N> = KeptStack {
        addresses: [0; N],
        count: 0,
        is_complete: false,
        walk: None,
    };

    /// Replaces the stack by that of the calling thread from this frame on, and returns whether it
    /// has changed, or may have changed beyond `N` frames.
    #[inline]
    pub fn update(&mut self, from: &Captured) -> bool {
        match self.is_last(from) {
            Some(true) => false,
            other => self.walk(from, other.is_none()),
        }
    }

    /// The addresses, some marked by [`KeptStack::IS_PC`]. If they are `N`, there may be more.
    pub fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.count).unwrap_or_default()
    }

    /// Whether the stack is known to end with the last address.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether the stack is that of the thread's last walk; `None` if that was for another purpose.
    /// In a function of its own so that the comparing loop has the registers for itself.
    #[inline(never)]
    fn is_last(&self, from: &Captured) -> Option<bool> {
        let first = from.frame();
        let published = Published::now();
        thread::lend(|lent| match lent {
            Lent::All(mut state) if self.walk == Some(state.walk()) => {
                let mut window = None;
                let mut memory = OwnMemory::new(state.bounds(), first.sp, &mut window);
                Some(!state.has_changed(&published) && state.memo().is_repeated(ARCH, &first, &mut memory))
            }
            _ => None,
        })
    }

    /// Walks, and returns whether the stack is another one. `may_repeat` the thread's last walk.
    #[inline(never)]
    fn walk(&mut self, from: &Captured, may_repeat: bool) -> bool {
        let sink = Updating {
            addresses: &mut self.addresses,
            used: 0,
            differs: 0,
            is_complete: false,
            walk: None,
            may_repeat,
        };
        let sink = walk_from(from.frame(), &|| from.position().registers, N, sink);
        let (count, differs, is_complete) = (sink.used, sink.differs, sink.is_complete);
        self.walk = sink.walk.filter(|_| is_complete);
        // Frames beyond are not known.
        let is_other = count == N || differs != 0 || count != self.count || is_complete != self.is_complete;
        (self.count, self.is_complete) = (count, is_complete);
        is_other
    }
}

/// Compares addresses with those that they replace, which takes less time here than later.
struct Updating<'a> {
    addresses: &'a mut [u64],
    used: usize,
    differs: u64,
    /// Not the reason for the end, which would be returned through memory.
    is_complete: bool,
    walk: Option<Walk>,
    may_repeat: bool,
}

impl Updating<'_> {
    #[inline(always)]
    fn replace(place: &mut u64, step: &MemoStep) -> u64 {
        let mark = match step.kind() {
            AddressKind::Pc => KeptStack::<0>::IS_PC,
            AddressKind::Ra => 0,
        };
        let address = step.pc | mark;
        core::mem::replace(place, address) ^ address
    }
}

impl Sink for Updating<'_> {
    #[inline(always)]
    fn push(&mut self, step: &MemoStep) {
        if let Some(place) = self.addresses.get_mut(self.used) {
            self.differs |= Self::replace(place, step);
            self.used += 1;
        }
    }

    #[inline(always)]
    fn push_kept(&mut self, steps: &[MemoStep]) {
        let places = self.addresses.get_mut(self.used..).unwrap_or_default();
        self.used += places.len().min(steps.len());
        let both = places.iter_mut().zip(steps.iter().rev());
        self.differs = both.fold(self.differs, |differs, (place, step)| {
            differs | Self::replace(place, step)
        });
    }

    #[inline(always)]
    fn may_repeat(&self) -> bool {
        self.may_repeat
    }

    #[inline(always)]
    fn remembered(&mut self, walk: Walk) {
        self.walk = Some(walk);
    }

    #[inline(always)]
    fn end(&mut self, stop: Stop) {
        self.is_complete = stop == Stop::EndOfStack;
    }
}
