//! Modules, and what the loader says about them (`_dl_find_object`, glibc 2.35, takes no lock).

use core::arch::global_asm;
use core::ffi::c_void;

use backtrail_callframe::Search;
use backtrail_sframe::{Index, Section};

use super::memory;

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
    pub(super) fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Words of its code or data. They are loaded directly if that is safe, since some sandboxes
    /// forbid the copy.
    pub(super) fn words<const COUNT: usize>(&self, address: u64) -> Option<[u64; COUNT]> {
        let mut words = [0; COUNT];
        let end = address.checked_add(8 * COUNT as u64)?;
        if self.identity.is_none() && self.is_readable && self.start <= address && end <= self.end {
            // SAFETY: a readable segment of a module that is never unloaded.
            unsafe { memory::load_words(address, &mut words) };
            return Some(words);
        }
        (memory::read_words(address, &mut words) == COUNT).then_some(words)
    }

    pub(super) fn loader_entry(&self) -> Option<&LoaderEntry> {
        self.identity.as_ref().map(|identity| &identity.loader)
    }
}

/// What the loader reports about a module, and the beginning of its `.eh_frame_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(super) loader: LoaderEntry,
    pub(super) begins: Beginning,
    /// Number of words at the beginning that were readable; the others are 0.
    pub(super) readable: usize,
}

/// A module's address range, `link_map`, and `.eh_frame_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoaderEntry {
    pub(super) map: (u64, u64),
    link_map: u64,
    pub(super) eh_frame_hdr: u64,
}

pub(super) type Beginning = [u64; 8];

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

    /// The memory from the module's first address to the one after its last.
    pub(super) fn range(&self) -> (u64, u64) {
        self.loader.map
    }

    pub(super) fn eh_frame_hdr(&self) -> u64 {
        self.loader.eh_frame_hdr
    }
}

impl LoaderEntry {
    pub(super) fn of(address: u64) -> Option<LoaderEntry> {
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

/// The memory of the module at an address, from its first address to the one after its last.
pub fn loaded_range(address: u64) -> Option<(u64, u64)> {
    LoaderEntry::of(address).map(|loader| loader.map)
}

/// The bias of the module at an address and the address of its name, a C string, as the loader's
/// `link_map` says.
pub fn loader_name(address: u64) -> Option<(u64, u64)> {
    let mut words = [0; 2];
    let link_map = LoaderEntry::of(address)?.link_map;
    let [bias, name] = (memory::read_words(link_map, &mut words) == words.len()).then_some(words)?;
    Some((bias, name))
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

pub(super) fn find_object() -> *const c_void {
    // SAFETY: it loads a pointer from the global offset table, above.
    unsafe { backtrail_find_object() }
}
