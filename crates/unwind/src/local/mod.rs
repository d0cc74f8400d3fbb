//! Walking the stack of the calling thread, in place.
//!
//! Everything here may be called from a signal handler, at any moment, on any stack, unless it says otherwise: it allocates nothing (but a
//! thread's first walk maps some pages), takes no lock, does not panic, calls no function of the C library but `_dl_find_object`,
//! leaves `errno` alone, and reads foreign memory only in ways that cannot fault.
//!
//! Your duties: [`publish`] the tables of the modules before, and again after modules have come. Nothing else has to be prepared.
#![allow(unsafe_code)]

mod memory;
mod modules;
mod registers;
mod syscall;
mod thread;

pub use memory::read_words;
pub use modules::{Identity, Module, Snapshot, is_published, publish};
pub use registers::{Captured, position_of};

use backtrail_arch::{Arch, Registers};

use crate::{Frame, Memo, MemoStep, Position, RuleCache, Stop};
use memory::OwnMemory;
use modules::Published;
use thread::Lent;

/// Walks the calling thread's stack, from `from` outwards: see [`walk`](crate::walk()).
///
/// `from` is to be a frame of this thread that has not ended: [`Captured`] registers or those of interrupted code
/// ([`position_of`]). With others the frames are wrong, but nothing else is.
pub fn walk(from: &Position, limit: usize, visit: impl FnMut(Frame)) -> Stop {
    let first = MemoStep::new(Arch::native(), &from.registers, from.kind);
    walk_from(first, &|| from.registers, limit, visit)
}

/// Walks the calling thread's stack from a caller outwards, as [`walk`] does from its [position](Captured::position), but begins sooner.
#[inline]
pub fn walk_callers(from: &Captured, limit: usize, visit: impl FnMut(Frame)) -> Stop {
    walk_from(from.frame(), &|| from.position().registers, limit, visit)
}

#[inline(always)]
fn walk_from(first: MemoStep, registers: &impl Fn() -> Registers, limit: usize, mut visit: impl FnMut(Frame)) -> Stop {
    let arch = Arch::native();
    let published = Published::now();
    thread::lend(|lent| match lent {
        Lent::All(mut state) => {
            let mut memory = OwnMemory::new(state.bounds(), first.sp);
            state.forget_what_changed(&published);
            let (volatile, memo, steps, reads, entries) = state.parts();
            let modules = published.noting(volatile);
            let mut cache = RuleCache::new(entries);
            let mut memo = Memo::new(memo, steps, reads);
            let stop = memo.walk_from(
                arch,
                first,
                registers,
                &modules,
                &mut memory,
                &mut cache,
                limit,
                &mut visit,
            );
            if modules.noted_too_many() {
                memo.clear();
            }
            stop
        }
        Lent::Bounds(bounds) => walk_without(bounds, published, first, registers, limit, &mut visit),
    })
}

#[cold]
#[inline(never)]
fn walk_without(
    bounds: &memory::Bounds,
    published: Published,
    first: MemoStep,
    registers: &impl Fn() -> Registers,
    limit: usize,
    visit: &mut impl FnMut(Frame),
) -> Stop {
    let mut memory = OwnMemory::new(bounds, first.sp);
    let from = Position {
        registers: registers(),
        kind: first.kind(),
    };
    let mut cache = RuleCache::new(&mut []);
    crate::walk(Arch::native(), &from, &published, &mut memory, &mut cache, limit, visit)
}
