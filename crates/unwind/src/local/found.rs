//! Modules that no snapshot contains, found by asking the loader while walking. They stay listed
//! for ever, since a handler may be reading the list.
//!
//! Needs `_dl_find_object` (glibc 2.35 or later).

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use backtrail_callframe::{Search, Source, is_searchable};

use super::loaded::{CallFrames, Identity, LoaderEntry, Module};
use super::memory;

/// How many there can be; a library that is loaded again at its old place is found again. Pages
/// that are never used cost nothing.
const MOST: usize = 2048;
/// The first of their numbers; tables have lower ones.
const FIRST_ID: u32 = 1 << 22;

const FREE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const READY: u32 = 2;

struct Slot {
    state: AtomicU32,
    module: UnsafeCell<MaybeUninit<Module>>,
}

// SAFETY: only who has changed the state from free writes the module, and nobody reads it before
// the state is ready, nor is it written after that.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        state: AtomicU32::new(FREE),
        module: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; MOST];

impl Slot {
    fn get(&self) -> Option<&Module> {
        let is_ready = self.state.load(Ordering::Acquire) == READY;
        // SAFETY: it was written before the state became ready.
        is_ready.then(|| unsafe { (*self.module.get()).assume_init_ref() })
    }
}

/// The module at an address, as loaded now; `is_there` compares one found earlier.
#[cold]
#[inline(never)]
pub(super) fn find(address: u64, mut is_there: impl FnMut(&'static Module) -> bool) -> Option<&'static Module> {
    let loader = LoaderEntry::of(address)?;
    let used = || {
        SLOTS
            .iter()
            .take_while(|slot| slot.state.load(Ordering::Relaxed) != FREE)
    };
    let known = || {
        used()
            .filter_map(Slot::get)
            .filter(|module| module.loader_entry() == Some(&loader))
    };
    if let Some(module) = known().find(|module| is_there(module)) {
        return Some(module);
    }
    let identity = Identity::of(address)?;
    let (start, end) = identity.range();
    let free = SLOTS.iter().enumerate().find(|(_, slot)| {
        let claim = slot
            .state
            .compare_exchange(FREE, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed);
        claim.is_ok()
    });
    let (index, slot) = free?;
    let module = Module {
        start,
        end,
        section: None,
        index: None,
        bias: start,
        id: FIRST_ID + index as u32,
        identity: Some(identity),
        call_frames: call_frames(&identity),
        is_readable: false,
        keeps_frame_pointers: false,
    };
    // SAFETY: this call has claimed the slot.
    unsafe { (*slot.module.get()).write(module) };
    slot.state.store(READY, Ordering::Release);
    slot.get()
}

/// Copies of memory that may be unmapped at any moment.
struct Copied;

impl Source for Copied {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        memory::read_words(address, words)
    }
}

fn call_frames(identity: &Identity) -> Option<CallFrames> {
    let header = identity.eh_frame_hdr();
    is_searchable(header, &mut Copied).then(|| CallFrames {
        search: Search::Header(header),
        readable: identity.range(),
    })
}
