//! The modules of this process: a snapshot that was published before, checked against the loader.
//!
//! Snapshots and tables are never freed, because a handler may be reading them; a change of modules
//! costs some hundred bytes per module. Modules that can be unloaded are checked with the loader in
//! each walk (`_dl_find_object`, glibc 2.35, which takes no lock); without that function, a
//! snapshot is trusted. Another library may have been loaded at the same place: unless the loader's
//! count of [`Arrivals`] is known and unchanged, the modules' first bytes are also compared with
//! the earlier ones, with one system call for all.

use core::arch::global_asm;
use core::cell::Cell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use backtrail_callframe::Search;
use backtrail_sframe::{Index, Section};

use super::{memory, syscall};
use crate::{Coverage, Modules, Table};

/// A module's `.eh_frame`.
#[derive(Clone, Copy, Debug)]
pub struct CallFrames {
    /// How to find its FDEs.
    pub search: Search<'static>,
    /// Range of the module's readable memory that contains them.
    pub readable: (u64, u64),
}

/// A known range of executable memory.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Its table, which is never changed or freed.
    pub section: Option<Section<'static>>,
    /// The table's index, if it has one.
    pub index: Option<&'static Index<'static>>,
    /// Address in the process minus address in the table.
    pub bias: u64,
    /// The number of its table, from 1; never reused for another.
    pub id: u32,
    /// Distinguishes it from another module loaded at its place; `None` for modules that are never
    /// unloaded.
    pub identity: Option<Identity>,
    /// Its `.eh_frame` in memory, which describes every register that its functions save.
    pub call_frames: Option<CallFrames>,
    /// Whether its code can be read as data.
    pub is_readable: bool,
    /// Whether all of it keeps frame pointers, as promised when it was registered.
    pub keeps_frame_pointers: bool,
}

impl Module {
    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// What the loader reports about a module, and the beginning of its `.eh_frame_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    loader: LoaderEntry,
    begins: Beginning,
    /// Number of words at the beginning that were readable; the others are 0.
    readable: usize,
}

/// A module's address range, `link_map`, and `.eh_frame_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoaderEntry {
    map: (u64, u64),
    link_map: u64,
    eh_frame_hdr: u64,
}

type Beginning = [u64; 8];

impl Identity {
    /// The module that is at `address` now; `None` if the loader knows none or cannot be asked.
    pub fn of(address: u64) -> Option<Identity> {
        let loader = LoaderEntry::of(address)?;
        // The module may be unloaded at any moment, so its memory is copied, not loaded.
        let mut begins = [0; 8];
        let readable = memory::read_words(loader.eh_frame_hdr, &mut begins);
        Some(Identity {
            loader,
            begins,
            readable,
        })
    }
}

impl LoaderEntry {
    fn of(address: u64) -> Option<LoaderEntry> {
        // SAFETY: null or the function of this name and type; the prefix of its name is reserved.
        let find: FindObject = unsafe { core::mem::transmute::<*const c_void, Option<FindObject>>(find_object()) }?;
        let mut found = Found::default();
        // SAFETY: the function writes no more than a `struct dl_find_object`; the address is only
        // compared.
        let missing = unsafe { find(core::ptr::with_exposed_provenance(address as usize), &mut found) };
        (missing == 0).then_some(LoaderEntry {
            map: (found.map_start, found.map_end),
            link_map: found.link_map,
            eh_frame_hdr: found.eh_frame_hdr,
        })
    }
}

/// `struct dl_find_object` of glibc; later versions may use the reserved words at its end.
#[derive(Default)]
#[repr(C)]
struct Found {
    flags: u64,
    map_start: u64,
    map_end: u64,
    link_map: u64,
    eh_frame_hdr: u64,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(*const c_void, *mut Found) -> i32;

// Weak, because older C libraries lack it; stable Rust has no other way to declare that.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".weak _dl_find_object",
    ".hidden backtrail_find_object",
    ".globl backtrail_find_object",
    ".type backtrail_find_object, @function",
    "backtrail_find_object:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "ret",
    ".cfi_endproc",
    ".size backtrail_find_object, . - backtrail_find_object",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".weak _dl_find_object",
    ".hidden backtrail_find_object",
    ".globl backtrail_find_object",
    ".type backtrail_find_object, @function",
    "backtrail_find_object:",
    ".cfi_startproc",
    "adrp x0, :got:_dl_find_object",
    "ldr x0, [x0, :got_lo12:_dl_find_object]",
    "ret",
    ".cfi_endproc",
    ".size backtrail_find_object, . - backtrail_find_object",
);

unsafe extern "C" {
    fn backtrail_find_object() -> *const c_void;
}

fn find_object() -> *const c_void {
    // SAFETY: it loads a pointer from the global offset table, above.
    unsafe { backtrail_find_object() }
}

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
        let modules = volatile.iter().map(|address| self.find(address));
        self.are_there(modules, &mut volatile.seen)
    }

    /// Whether all these modules are still loaded. `seen` is the count of arrivals when they last
    /// were, and is updated.
    fn are_there(&self, modules: impl Iterator<Item = Option<&'static Module>>, seen: &mut Option<u64>) -> bool {
        let mut held: [Option<&Identity>; MOST_VOLATILE] = [None; MOST_VOLATILE];
        let mut count = 0;
        for module in modules {
            let Some(module) = module else { return false };
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
        let module = self.find(address)?;
        self.is_there(module, &mut self.seen()).then_some(module)
    }

    /// Whether a table describes an address.
    pub(super) fn has_row(&self, address: u64) -> bool {
        let Some(Coverage::Table(table)) = self.module(address).map(coverage) else {
            return false;
        };
        let svma = address.wrapping_sub(table.bias);
        let found = match table.index {
            Some(index) => table.section.lookup_by(index, svma),
            None => table.section.lookup(svma),
        };
        matches!(found, Ok(Some(_)))
    }

    fn is_there(&self, module: &'static Module, seen: &mut Option<u64>) -> bool {
        module.identity.is_none() || self.are_there(core::iter::once(Some(module)), seen)
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

/// Reports an address outside the snapshot's modules. Returns whether it is in one of the loader's.
#[cold]
#[inline(never)]
fn tell_of_unknown(address: u64) -> bool {
    let is_loaded = LoaderEntry::of(address).is_some();
    let is_waiting = || IS_WAITING.load(Ordering::Relaxed) == 1;
    if is_loaded && is_waiting() && IS_WAITING.swap(0, Ordering::SeqCst) == 1 {
        syscall::wake(&IS_WAITING);
    }
    is_loaded
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
        // Frame pointers are followed there too, but only with proof.
        None => Coverage::NoModule,
    }
}

impl Modules for Published {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        match self
            .find(address)
            .filter(|module| self.is_there(module, &mut self.seen()))
        {
            Some(module) => coverage(module),
            None => {
                tell_of_unknown(address);
                Coverage::NoModule
            }
        }
    }
}

/// Maximum number of unloadable modules that remembered walks go through.
const MOST_VOLATILE: usize = 8;

/// Addresses in unloadable modules, one for each module that remembered walks go through or that
/// rules are kept of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volatile {
    starts: [u64; MOST_VOLATILE],
    count: usize,
    /// The count of arrivals at which all of them were loaded; `None` if they were seen at
    /// different counts.
    seen: Option<u64>,
}

impl Volatile {
    pub(super) const NONE: Volatile = Volatile {
        starts: [0; MOST_VOLATILE],
        count: 0,
        seen: None,
    };

    fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.starts.into_iter().take(self.count)
    }

    fn has(&self, start: u64) -> bool {
        self.iter().any(|noted| noted == start)
    }

    /// Adds a module that was loaded at this count of arrivals. Returns whether there was room.
    fn add(&mut self, start: u64, seen: Option<u64>) -> bool {
        let place = self.starts.get_mut(self.count);
        let fits = place.is_some();
        if let Some(place) = place {
            *place = start;
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

    #[inline]
    fn is_lasting(&self, address: u64) -> bool {
        // Other modules are checked with the loader before each walk.
        let lasts = |module: &Module| module.identity.is_none() || self.volatile.get().has(module.start);
        self.last
            .get()
            .is_some_and(|module| module.holds(address) && lasts(module))
    }

    #[inline]
    fn coverage(&self, address: u64) -> Coverage<'_> {
        let last = self.last.get();
        let module = match last.filter(|module| module.holds(address)) {
            Some(module) => module,
            None => match self.find(address) {
                Some(module) => module,
                None => {
                    // The next walk that gets here must report again, if no thread was waiting.
                    if tell_of_unknown(address) {
                        self.is_partial.set(true);
                    }
                    return Coverage::NoModule;
                }
            },
        };
        coverage(module)
    }
}

impl Noting<'_> {
    #[inline(never)]
    fn find(&self, address: u64) -> Option<&'static Module> {
        let module = self.published.find(address)?;
        let mut volatile = self.volatile.get();
        if module.identity.is_some() && !volatile.has(module.start) {
            let mut seen = self.published.seen();
            if !self.published.is_there(module, &mut seen) {
                return None;
            }
            match volatile.add(module.start, seen) {
                true => self.volatile.set(volatile),
                false => self.is_partial.set(true),
            }
        }
        self.last.set(Some(module));
        Some(module)
    }
}
