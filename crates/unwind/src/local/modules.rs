//! The modules of this process: a snapshot that was published before, checked against the loader.
//!
//! Snapshots and tables are never freed, because a handler may be reading them; a change of modules
//! costs some hundred bytes per module. Modules that can be unloaded are checked with the loader in
//! each walk (`_dl_find_object`, glibc 2.35, which takes no lock); without that function, a
//! snapshot is trusted. Another library may have been loaded at the same place: unless the loader's
//! count of [`Arrivals`] is known and unchanged, the modules' first bytes are also compared with
//! the earlier ones, with one system call for all.

use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use backtrail_arch::Arch;

use super::loaded::{Beginning, Identity, LoaderEntry, Module, find_object};
use super::{ARCH, found, frames, memory, outermost, syscall};
use crate::{AddressKind, Coverage, Described, Modules, Table, Uncovered};

/// All modules at a moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The modules by address; they do not overlap.
    pub modules: &'static [Module],
    /// A different number for each snapshot.
    pub generation: u64,
    /// The loader's count of modules, if known.
    pub arrivals: Option<Arrivals>,
}

/// How many modules the loader has ever loaded: while the count stays the same, no new module has
/// been loaded.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// The loader's counter, which it increments before `_dl_find_object` reports a new module.
    pub count: &'static AtomicU64,
    /// Its value when the snapshot described the loaded modules.
    pub seen: u64,
}

static CURRENT: AtomicPtr<Snapshot> = AtomicPtr::new(core::ptr::null_mut());

/// Makes walks that begin from now on use this snapshot. Not for signal handlers, but only because
/// making a snapshot allocates.
pub fn publish(snapshot: &'static Snapshot) {
    CURRENT.store(core::ptr::from_ref(snapshot).cast_mut(), Ordering::Release);
}

/// Whether a snapshot was published.
pub fn is_published() -> bool {
    !CURRENT.load(Ordering::Relaxed).is_null()
}

/// The snapshot of one walk.
#[derive(Clone, Copy)]
pub(super) struct Published {
    snapshot: Option<&'static Snapshot>,
}

impl Published {
    #[inline]
    pub(super) fn now() -> Published {
        let snapshot = CURRENT.load(Ordering::Acquire);
        Published {
            // SAFETY: null or a snapshot that lives for ever, written before it was published.
            snapshot: unsafe { snapshot.as_ref() },
        }
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.snapshot.map_or(0, |snapshot| snapshot.generation)
    }

    fn find(&self, address: u64) -> Option<&'static Module> {
        let modules = self.snapshot?.modules;
        let before = modules.partition_point(|module| module.start <= address);
        modules
            .get(before.checked_sub(1)?)
            .filter(|module| address < module.end)
    }

    /// Whether all recorded modules are still loaded.
    #[inline]
    pub(super) fn has_all(&self, volatile: &mut Volatile) -> bool {
        volatile.count == 0 || self.has_each(volatile)
    }

    #[inline(never)]
    fn has_each(&self, volatile: &mut Volatile) -> bool {
        self.are_there(volatile.iter(), &mut volatile.seen)
    }

    /// Whether all these modules are still loaded. `seen` is the count of arrivals when they last
    /// were, and is updated.
    fn are_there(&self, modules: impl Iterator<Item = &'static Module>, seen: &mut Option<u64>) -> bool {
        let mut held: [Option<&Identity>; MOST_VOLATILE] = [None; MOST_VOLATILE];
        let mut count = 0;
        for module in modules {
            let Some(identity) = module.identity.as_ref().filter(|_| !find_object().is_null()) else {
                continue;
            };
            let Some(place) = held.get_mut(count) else { return false };
            if LoaderEntry::of(module.start) != Some(identity.loader) {
                return false;
            }
            *place = Some(identity);
            count += 1;
        }
        // Read after asking the loader, which counts before it reports.
        let arrivals = self.arrivals().map(|arrivals| arrivals.count.load(Ordering::Acquire));
        if arrivals.is_some() && arrivals == *seen {
            return true;
        }
        let same = begin_as_before(&held);
        if same {
            *seen = arrivals;
        }
        same
    }

    /// The module at an address.
    pub(super) fn module(&self, address: u64) -> Option<&'static Module> {
        self.loaded(address).map(|(module, _)| module)
    }

    /// The module that is loaded at an address, and the count of arrivals at which it was seen. If
    /// the snapshot has none, or another one was there, the loader is asked.
    fn loaded(&self, address: u64) -> Option<(&'static Module, Option<u64>)> {
        let mut seen = self.seen();
        if let Some(module) = self.find(address)
            && self.is_there(module, &mut seen)
        {
            return Some((module, seen));
        }
        // Its memory is always compared: it may have come and gone since the snapshot.
        let mut seen = None;
        let module = found::find(address, |module| {
            seen = None;
            self.is_there(module, &mut seen)
        })?;
        Some((module, seen))
    }

    /// Whether a table describes an address.
    pub(super) fn has_row(&self, address: u64) -> bool {
        let Some(module) = self.module(address) else {
            return false;
        };
        let table = match coverage(module) {
            Coverage::Table(table) => table,
            Coverage::Described { .. } => return frames::function_at(module, address).is_some(),
            Coverage::FramePointer | Coverage::NoModule => return false,
        };
        let svma = address.wrapping_sub(table.bias);
        let found = match table.index {
            Some(index) => table.section.lookup_by(index, svma),
            None => table.section.lookup(svma),
        };
        matches!(found, Ok(Some(_)))
    }

    fn is_there(&self, module: &'static Module, seen: &mut Option<u64>) -> bool {
        module.identity.is_none() || self.are_there(core::iter::once(module), seen)
    }

    fn arrivals(&self) -> Option<&'static Arrivals> {
        self.snapshot?.arrivals.as_ref()
    }

    /// The count of arrivals at which all modules were loaded.
    fn seen(&self) -> Option<u64> {
        self.arrivals().map(|arrivals| arrivals.seen)
    }

    #[inline(always)]
    pub(super) fn noting(self, volatile: &Cell<Volatile>) -> Noting<'_> {
        Noting {
            published: self,
            volatile,
            is_partial: Cell::new(false),
            last: Cell::new(None),
        }
    }
}

/// Whether the memory of these modules still begins with the same bytes; all are copied at once.
fn begin_as_before(held: &[Option<&Identity>; MOST_VOLATILE]) -> bool {
    let place = |identity: &Identity| (identity.loader.eh_frame_hdr, identity.readable);
    let places = held.map(|identity| identity.map_or((0, 0), place));
    let mut begins: [Beginning; MOST_VOLATILE] = [[0; 8]; MOST_VOLATILE];
    let same = |(identity, begins): (&Identity, &Beginning)| identity.begins == *begins;
    memory::read_places(&places, &mut begins) && held.iter().copied().flatten().zip(&begins).all(same)
}

/// 1 while a thread waits for modules that no snapshot contains.
static IS_WAITING: AtomicU32 = AtomicU32::new(0);

/// Sleeps until a walk reaches code of a module that the loader has, but its snapshot does not. For
/// a single thread; not for handlers.
pub fn wait_for_unknown_module() {
    IS_WAITING.store(1, Ordering::SeqCst);
    while IS_WAITING.load(Ordering::SeqCst) == 1 {
        syscall::wait_while(&IS_WAITING, 1);
    }
}

/// Reports an address outside the snapshot's modules, so that a thread makes the table if it is in
/// one of the loader's.
#[cold]
#[inline(never)]
fn tell_of_unknown(address: u64) {
    let is_waiting = IS_WAITING.load(Ordering::Relaxed) == 1;
    if is_waiting && LoaderEntry::of(address).is_some() && IS_WAITING.swap(0, Ordering::SeqCst) == 1 {
        syscall::wake(&IS_WAITING);
    }
}

fn coverage(module: &'static Module) -> Coverage<'static> {
    match module.section {
        Some(section) => Coverage::Table(Table {
            section,
            index: module.index,
            bias: module.bias,
            id: module.id,
        }),
        None if module.keeps_frame_pointers => Coverage::FramePointer,
        None if module.call_frames.is_some() => Coverage::Described {
            id: module.id,
            bias: module.bias,
        },
        // Frame pointers are followed there too, but only with proof.
        None => Coverage::NoModule,
    }
}

impl Modules for Published {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        if self.find(address).is_none() {
            tell_of_unknown(address);
        }
        self.module(address).map_or(Coverage::NoModule, coverage)
    }

    fn described(&self, address: u64) -> Described {
        self.module(address)
            .map_or(Described::NotCovered, |module| frames::row(module, address))
    }

    #[cold]
    fn uncovered(&self, pc: u64, kind: AddressKind, in_table: bool) -> Uncovered {
        outermost::uncovered(pc, kind, in_table, || self.module(pc.wrapping_sub(1)))
    }
}

/// Maximum number of unloadable modules that remembered walks go through.
const MOST_VOLATILE: usize = 16;

/// Unloadable modules that remembered walks go through or that rules are kept of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volatile {
    modules: [Option<&'static Module>; MOST_VOLATILE],
    count: usize,
    /// The count of arrivals at which all of them were loaded; `None` if they were seen at
    /// different counts.
    seen: Option<u64>,
}

impl Volatile {
    pub(super) const NONE: Volatile = Volatile {
        modules: [None; MOST_VOLATILE],
        count: 0,
        seen: None,
    };

    fn iter(&self) -> impl Iterator<Item = &'static Module> + use<> {
        self.modules.into_iter().take(self.count).flatten()
    }

    fn has(&self, module: &'static Module) -> bool {
        self.iter().any(|noted| core::ptr::eq(noted, module))
    }

    /// Adds a module that was loaded at this count of arrivals. Returns whether there was room.
    fn add(&mut self, module: &'static Module, seen: Option<u64>) -> bool {
        let place = self.modules.get_mut(self.count);
        let fits = place.is_some();
        if let Some(place) = place {
            *place = Some(module);
            self.seen = seen.filter(|_| self.count == 0 || self.seen == seen);
            self.count += 1;
        }
        fits
    }
}

/// The snapshot for a walk that will be remembered.
pub(super) struct Noting<'v> {
    published: Published,
    /// Modules to check with the loader before the walk is used again.
    volatile: &'v Cell<Volatile>,
    is_partial: Cell<bool>,
    /// The module last found to be loaded; consecutive frames are often in the same one.
    last: Cell<Option<&'static Module>>,
}

impl Noting<'_> {
    /// Whether the walk must not be remembered: it went through more modules than can be checked,
    /// or reached one that is not in the snapshot.
    #[inline(always)]
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial.get()
    }
}

impl Modules for Noting<'_> {
    const CAN_LAST: bool = true;
    const ARCH: Option<&'static Arch> = Some(ARCH);

    #[inline]
    fn is_lasting(&self, address: u64) -> bool {
        // Other modules are checked with the loader before each walk.
        let lasts = |module: &'static Module| module.identity.is_none() || self.volatile.get().has(module);
        self.last
            .get()
            .is_some_and(|module| module.holds(address) && lasts(module))
    }

    #[inline]
    fn coverage(&self, address: u64) -> Coverage<'_> {
        self.module(address).map_or(Coverage::NoModule, coverage)
    }

    fn described(&self, address: u64) -> Described {
        self.module(address)
            .map_or(Described::NotCovered, |module| frames::row(module, address))
    }

    #[cold]
    fn uncovered(&self, pc: u64, kind: AddressKind, in_table: bool) -> Uncovered {
        outermost::uncovered(pc, kind, in_table, || self.module(pc.wrapping_sub(1)))
    }
}

impl Noting<'_> {
    #[inline]
    fn module(&self, address: u64) -> Option<&'static Module> {
        match self.last.get().filter(|module| module.holds(address)) {
            Some(module) => Some(module),
            None => self.find(address),
        }
    }

    #[inline(never)]
    fn find(&self, address: u64) -> Option<&'static Module> {
        let in_snapshot = self.published.find(address);
        if in_snapshot.is_none() {
            tell_of_unknown(address);
        }
        let noted = self.volatile.get().iter().find(|module| module.holds(address));
        let module = match in_snapshot.filter(|module| module.identity.is_none()).or(noted) {
            Some(module) => module,
            None => match self.published.loaded(address) {
                Some((module, seen)) => {
                    self.note(module, seen);
                    module
                }
                None => {
                    // The next walk that gets here must ask again if it is in one of the loader's.
                    if LoaderEntry::of(address).is_some() {
                        self.is_partial.set(true);
                    }
                    return None;
                }
            },
        };
        self.last.set(Some(module));
        Some(module)
    }

    /// Notes that an unloadable module was loaded at this count of arrivals.
    fn note(&self, module: &'static Module, seen: Option<u64>) {
        let mut volatile = self.volatile.get();
        if module.identity.is_none() || volatile.has(module) {
            return;
        }
        match volatile.add(module, seen) {
            true => self.volatile.set(volatile),
            false => self.is_partial.set(true),
        }
    }
}
