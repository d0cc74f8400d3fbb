//! Walking the stack of the calling thread, in place.
//!
//! Everything here may be called from a signal handler, at any moment, on any stack, unless stated
//! otherwise: it does not allocate (except that a thread's first walk maps some pages), lock or
//! panic, calls no function of the C library except `_dl_find_object`, leaves `errno` unchanged,
//! and reads foreign memory only in ways that cannot fault.
//!
//! Callers must [`publish`] the modules' tables first, and again after modules were loaded. No
//! other preparation is needed.
#![allow(unsafe_code)]

mod calls;
mod memory;
mod modules;
mod onward;
mod registers;
mod syscall;
mod thread;

pub use backtrail_callframe::{Entries, Search, Source, is_searchable};
pub use memory::read_words;
pub use modules::{Arrivals, CallFrames, Identity, Module, Snapshot, is_published, publish, wait_for_unknown_module};
pub use registers::{Captured, position_of};
pub use syscall::call as system_call;

use core::mem::MaybeUninit;

use backtrail_arch::{Arch, Registers};

use crate::sink::{Each, Sink};
use crate::{Frame, Memo, MemoState, MemoStep, Position, RuleCache, Stop};
use memory::OwnMemory;
use modules::Published;
use thread::Lent;

/// The CPU, as a compile-time constant.
pub const ARCH: &Arch = &{ *Arch::native() };

/// Walks the calling thread's stack, from `from` outwards: see [`walk`](crate::walk()).
///
/// `from` must be a frame of this thread that has not returned: [`Captured`] registers or those of
/// interrupted code ([`position_of`]). Otherwise the frames are wrong, but nothing worse happens.
pub fn walk(from: &Position, limit: usize, visit: impl FnMut(Frame)) -> Stop {
    let first = MemoStep::new(ARCH, &from.registers, from.kind);
    walk_from(first, &|| from.registers, limit, Each::new(visit)).stop
}

/// Writes the return addresses of a frame's callers in the calling thread, as many as fit, and
/// returns them. Like [`walk`] from its [position](Captured::position), but faster.
pub fn return_addresses<'a>(from: &Captured, addresses: &'a mut [MaybeUninit<u64>]) -> &'a [u64] {
    let limit = addresses.len();
    let sink = Addresses { addresses, used: 0 };
    let sink = walk_from(from.frame(), &|| from.position().registers, limit, sink);
    sink.written()
}

/// A buffer for addresses, of which the first are written.
struct Addresses<'a> {
    addresses: &'a mut [MaybeUninit<u64>],
    used: usize,
}

impl<'a> Addresses<'a> {
    fn written(self) -> &'a [u64] {
        let written = self.addresses.get(..self.used).unwrap_or_default();
        // SAFETY: this many were written.
        unsafe { written.assume_init_ref() }
    }
}

impl Sink for Addresses<'_> {
    #[inline(always)]
    fn push(&mut self, frame: Frame) {
        if let Some(place) = self.addresses.get_mut(self.used) {
            place.write(frame.address);
            self.used += 1;
        }
    }

    #[inline(always)]
    fn push_kept(&mut self, steps: &[MemoStep]) {
        let places = self.addresses.get_mut(self.used..).unwrap_or_default();
        self.used += places.len().min(steps.len());
        // Four at a time, the last of them first.
        let (few, fours) = steps.as_rchunks::<4>();
        let (places, last_places) = match places.split_at_mut_checked(4 * fours.len()) {
            Some((places, last)) => (places.as_chunks_mut().0, last),
            None => (places.as_chunks_mut().0, Default::default()),
        };
        for ([a, b, c, d], [w, x, y, z]) in places.iter_mut().zip(fours.iter().rev()) {
            a.write(z.pc);
            b.write(y.pc);
            c.write(x.pc);
            d.write(w.pc);
        }
        for (place, step) in last_places.iter_mut().zip(few.iter().rev()) {
            place.write(step.pc);
        }
    }
}

/// Whether an address in a module's code follows a call instruction, like every return address.
pub fn follows_call(address: u64) -> bool {
    calls::before(&Published::now(), address).is_some()
}

#[inline(always)]
fn walk_from<S: Sink>(first: MemoStep, registers: &impl Fn() -> Registers, limit: usize, mut sink: S) -> S {
    let published = Published::now();
    thread::lend(|lent| match lent {
        Lent::All(mut state) => {
            let mut window = None;
            let mut memory = OwnMemory::new(state.bounds(), first.sp, &mut window);
            state.forget_what_changed(&published);
            let (volatile, memo, steps, reads, entries) = state.parts();
            let modules = published.noting(volatile);
            let mut cache = RuleCache::new(entries);
            let mut memo = Memo::new(memo, steps, reads);
            let stop = memo.walk_from(
                ARCH,
                first,
                registers,
                &modules,
                &mut memory,
                &mut cache,
                limit,
                &mut sink,
            );
            if modules.is_partial() {
                memo.clear();
            }
            match onward::may_go_on(stop) {
                true => onward::go_on(first, registers, state.bounds(), published, limit, sink),
                false => {
                    sink.end(stop);
                    sink
                }
            }
        }
        Lent::Bounds(bounds) => walk_without(bounds, published, first, registers, limit, sink),
    })
}

#[cold]
#[inline(never)]
fn walk_without<S: Sink>(
    bounds: &memory::Bounds,
    published: Published,
    first: MemoStep,
    registers: &impl Fn() -> Registers,
    limit: usize,
    mut sink: S,
) -> S {
    let mut window = None;
    let mut memory = OwnMemory::new(bounds, first.sp, &mut window);
    let mut nothing = MemoState::EMPTY;
    let mut memo = Memo::new(&mut nothing, &mut [], &mut []);
    let mut cache = RuleCache::new(&mut []);
    let stop = memo.walk_from(
        ARCH,
        first,
        registers,
        &published,
        &mut memory,
        &mut cache,
        limit,
        &mut sink,
    );
    match onward::may_go_on(stop) {
        true => onward::go_on(first, registers, bounds, published, limit, sink),
        false => {
            sink.end(stop);
            sink
        }
    }
}
