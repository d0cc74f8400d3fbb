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

use backtrail_arch::Arch;

use crate::{Frame, Memo, Position, RuleCache, Stop};
use memory::OwnMemory;
use modules::Published;
use thread::Lent;

/// Walks the calling thread's stack, from `from` outwards: see [`walk`](crate::walk()).
///
/// `from` is to be a frame of this thread that has not ended: [`Captured`] registers or those of interrupted code
/// ([`position_of`]). With others the frames are wrong, but nothing else is.
pub fn walk(from: &Position, limit: usize, mut visit: impl FnMut(Frame)) -> Stop {
    let arch = Arch::native();
    let published = Published::now();
    thread::lend(|lent| match lent {
        Lent::All(mut state) => {
            let mut memory = OwnMemory::new(state.bounds(), from.registers.get(arch.sp));
            state.forget_what_changed(&published);
            let modules = published.noting(state.volatile());
            let (memo, steps, reads, entries) = state.parts();
            let mut cache = RuleCache::new(entries);
            let mut memo = Memo::new(memo, steps, reads);
            let stop = memo.walk(arch, from, &modules, &mut memory, &mut cache, limit, &mut visit);
            if modules.noted_too_many() {
                memo.clear();
            }
            let noted = modules.noted();
            state.set_volatile(noted);
            stop
        }
        Lent::Bounds(bounds) => {
            let mut memory = OwnMemory::new(bounds, from.registers.get(arch.sp));
            let mut cache = RuleCache::new(&mut []);
            crate::walk(arch, from, &published, &mut memory, &mut cache, limit, &mut visit)
        }
    })
}
