//! Makes the tables of this process's modules and publishes them.
//!
//! Until tables are asked for, modules are published without: then rows come from their call frame
//! information, one by one, which costs nothing in advance.
//!
//! Nothing published is ever freed, since a handler may be reading it. A table is made once for
//! each content and reused when the same module is loaded again, at any address; a snapshot costs
//! some hundred bytes per module.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use backtrail_cfi::tables::Tables;
use backtrail_elf::{Image, Symbols};
use backtrail_sframe::{Index, Section};
use backtrail_unwind::local::{Arrivals, CallFrames, Identity, Module, Snapshot, publish, read_words};

use crate::arrivals::{self, Count};
use crate::frames;
use crate::handler::names::{self, Named};
use crate::handler::notes;

/// Modules beyond this are not converted.
const LARGEST_IMAGE: u64 = 1 << 30;
const PAGE: u64 = 4096;
/// Tables with at least this many functions get an index.
const MANY_FUNCTIONS: u32 = 2048;

/// The first number of modules without tables; tables have lower ones.
const FIRST_ID_WITHOUT_TABLE: u32 = 1 << 21;

/// A module's table, made once.
#[derive(Clone, Copy)]
struct Made {
    section: Option<Section<'static>>,
    index: Option<&'static Index<'static>>,
    id: u32,
}

/// Leak checkers must find everything that is kept for ever from here. They follow pointers to the
/// beginning of a block; a hash table has none.
#[derive(Default)]
struct Registry {
    tables: BTreeMap<u64, Made>,
    names: BTreeSet<&'static [u8]>,
    /// Call frame information that had to be listed, by content and bias.
    lists: BTreeMap<(u64, u64), Option<CallFrames>>,
    /// Modules that the loader has loaded.
    loaded: Vec<(Module, Named<'static>)>,
    /// Code made at run time.
    code: Vec<(u64, u64)>,
    generation: u64,
    published: Vec<(&'static Snapshot, &'static &'static [Named<'static>])>,
    arrivals: Count,
    /// The count when the loader reported `loaded`.
    seen: Option<Arrivals>,
    /// How many modules had been loaded and unloaded when the loader was last asked; `None` if its
    /// answer was incomplete.
    changes: Option<(u64, u64)>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn with_registry<R>(act: impl FnOnce(&mut Registry) -> R) -> R {
    let mut guard: MutexGuard<'_, Option<Registry>> = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    act(guard.get_or_insert_default())
}

thread_local! {
    /// The registry's lock, held while the thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Registry>>>> = const { RefCell::new(None) };
}

/// Locks the registry until this thread [lets go](let_go) of it.
pub(crate) fn hold() {
    let guard = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    HELD.with(|held| held.replace(Some(guard)));
}

pub(crate) fn let_go() {
    HELD.with(|held| held.replace(None));
}

/// Publishes the modules without tables, unless any were published before.
pub(crate) fn modules_without_tables() {
    with_registry(|registry| {
        if registry.generation > 0 {
            return;
        }
        let seen = Seen::now(None, registry.arrivals);
        registry.arrivals = seen.arrivals;
        registry.seen = seen.arrivals.arrivals(seen.changes.0);
        for (id, module) in (FIRST_ID_WITHOUT_TABLE..).zip(&seen.modules) {
            let section = match module.lowest == vdso() {
                true => table(module, &Tables::without_cache()),
                false => None,
            };
            let made = Made {
                section,
                index: None,
                id,
            };
            registry.add(module, made, module.call_frames.or_else(|| module.listed()));
        }
        registry.loaded.sort_by_key(|(module, _)| module.start);
        registry.publish();
    });
}

/// Makes the missing tables, and publishes all.
pub(crate) fn modules(cache: Option<PathBuf>) -> Result<(), c_int> {
    with_registry(|registry| {
        // The same modules have the same tables, but perhaps not in that folder yet.
        if registry.generation > 0 && cache.is_none() && registry.changes == Some(changes()) {
            return Ok(());
        }
        let seen = Seen::now(Some(&registry.tables), registry.arrivals);
        let tables = match cache {
            Some(folder) => Tables::open(Some(folder)),
            None => Tables::without_cache(),
        };
        registry.arrivals = seen.arrivals;
        registry.seen = seen.arrivals.arrivals(seen.changes.0);
        registry.changes = None;
        let changes = Some(seen.changes).filter(|_| !seen.is_partial);
        let modules = seen.modules;
        let before = std::mem::take(&mut registry.loaded);
        for module in &modules {
            registry.load(module, &tables)?;
        }
        registry.loaded.sort_by_key(|(module, _)| module.start);
        let is_same = |a: &(Module, Named<'static>), b: &(Module, Named<'static>)| {
            (a.0.start, a.0.end, a.0.bias, a.0.id, a.0.identity) == (b.0.start, b.0.end, b.0.bias, b.0.id, b.0.identity)
        };
        let unchanged =
            before.len() == registry.loaded.len() && before.iter().zip(&registry.loaded).all(|(a, b)| is_same(a, b));
        if !unchanged || registry.generation == 0 {
            registry.publish();
        }
        registry.changes = changes;
        Ok(())
    })
}

pub(crate) fn add_code(start: u64, size: u64) -> Result<(), c_int> {
    let end = start.checked_add(size).ok_or(libc::EINVAL)?;
    if start == 0 || size == 0 {
        return Err(libc::EINVAL);
    }
    with_registry(|registry| {
        let modules = registry.loaded.iter().map(|(module, _)| (module.start, module.end));
        let mut taken = modules.chain(registry.code.iter().copied());
        if taken.any(|(from, to)| start < to && from < end) {
            return Err(libc::EEXIST);
        }
        registry.code.push((start, end));
        registry.publish();
        Ok(())
    })
}

pub(crate) fn remove_code(start: u64) -> Result<(), c_int> {
    with_registry(|registry| {
        let at = registry
            .code
            .iter()
            .position(|code| code.0 == start)
            .ok_or(libc::ENOENT)?;
        registry.code.swap_remove(at);
        registry.publish();
        Ok(())
    })
}

impl Registry {
    fn load(&mut self, module: &Loaded, tables: &Tables) -> Result<(), c_int> {
        let made = match self.tables.get(&module.content) {
            Some(made) => *made,
            None => {
                let id = u32::try_from(self.tables.len() + 1).map_err(|_| libc::ENOMEM)?;
                let section = table(module, tables);
                let index = section.as_ref().and_then(index);
                *self.tables.entry(module.content).or_insert(Made { section, index, id })
            }
        };
        let list = self.lists.entry((module.content, module.bias));
        let call_frames = module.call_frames.or_else(|| *list.or_insert_with(|| module.listed()));
        self.add(module, made, call_frames);
        Ok(())
    }

    fn add(&mut self, module: &Loaded, made: Made, call_frames: Option<CallFrames>) {
        let name = self.kept(&module.name);
        let build_id = self.kept(&module.build_id);
        for &(start, end, is_readable) in &module.code {
            let known = Module {
                start,
                end,
                section: made.section,
                index: made.index,
                bias: module.bias,
                id: made.id,
                identity: module.identity,
                call_frames,
                is_readable,
                keeps_frame_pointers: false,
            };
            let bias = module.bias;
            let named = Named {
                start,
                end,
                bias,
                lowest: module.lowest,
                name,
                build_id,
            };
            self.loaded.push((known, named));
        }
    }

    /// Stores bytes for ever; equal bytes are stored once.
    fn kept(&mut self, bytes: &[u8]) -> &'static [u8] {
        if let Some(kept) = self.names.get(bytes) {
            return kept;
        }
        let kept: &'static [u8] = bytes.to_vec().leak();
        self.names.insert(kept);
        kept
    }

    fn publish(&mut self) {
        self.generation += 1;
        let code = self.code.iter().map(|&(start, end)| Module {
            start,
            end,
            section: None,
            index: None,
            bias: 0,
            id: u32::MAX,
            identity: None,
            call_frames: None,
            is_readable: false,
            keeps_frame_pointers: true,
        });
        let mut modules: Vec<Module> = self.loaded.iter().map(|(module, _)| *module).chain(code).collect();
        modules.sort_by_key(|module| module.start);
        let names: &'static [Named<'static>] = self.loaded.iter().map(|(_, named)| *named).collect::<Vec<_>>().leak();
        let names: &'static &'static [Named<'static>] = Box::leak(Box::new(names));
        let snapshot: &'static Snapshot = Box::leak(Box::new(Snapshot {
            modules: modules.leak(),
            generation: self.generation,
            arrivals: self.seen,
        }));
        self.published.push((snapshot, names));
        names::publish(names);
        publish(snapshot);
    }
}

fn table(module: &Loaded, tables: &Tables) -> Option<Section<'static>> {
    let image = module.parsed()?;
    let table = match CODE_TELLS {
        true => tables.load_any(&image, None)?.ok()?,
        false => tables.load(&image).ok()?,
    };
    Section::parse(table.bytes.leak(), table.address).ok()
}

/// The index of a table with many functions; in smaller ones, binary search is as fast.
fn index(section: &Section<'static>) -> Option<&'static Index<'static>> {
    if section.num_fdes() < MANY_FUNCTIONS {
        return None;
    }
    let words: &'static mut [u32] = vec![0; Index::words(section)].leak();
    Some(Box::leak(Box::new(Index::build(section, words)?)))
}

/// A module as the loader reported it.
struct Loaded {
    name: Vec<u8>,
    build_id: Vec<u8>,
    bias: u64,
    /// Address of its first page.
    lowest: u64,
    /// Each segment's first address, the address after its last, and whether it is readable.
    code: Vec<(u64, u64, bool)>,
    identity: Option<Identity>,
    /// Identifies the module's program headers, unwind information and build id; 0 without tables.
    content: u64,
    /// A copy of the parts that contain its tables; `None` if nothing is to be made of them, or
    /// its table exists already.
    image: Option<Vec<u8>>,
    call_frames: Option<CallFrames>,
}

impl Loaded {
    fn parsed(&self) -> Option<Image<'_>> {
        Image::parse_memory(self.image.as_deref()?, self.lowest).ok()
    }

    /// Its call frame information by a list.
    fn listed(&self) -> Option<CallFrames> {
        frames::by_list(&self.parsed()?, self.bias)
    }
}

/// What the loader has reported.
struct Seen<'r> {
    /// The tables that exist; `None` if none are to be made.
    known: Option<&'r BTreeMap<u64, Made>>,
    modules: Vec<Loaded>,
    /// Whether the loader has reported itself: it comes last of the modules loaded at the start,
    /// and modules that stay for ever come before it.
    loader_seen: bool,
    loader: u64,
    /// Whether there was a module that the loader was about to load or to unload.
    is_partial: bool,
    changes: (u64, u64),
    arrivals: Count,
    /// Where the loader's variables begin.
    globals: u64,
}

impl Seen<'_> {
    fn now(known: Option<&BTreeMap<u64, Made>>, arrivals: Count) -> Seen<'_> {
        let mut seen = Seen {
            known,
            modules: Vec::new(),
            loader_seen: false,
            // SAFETY: only reads what the kernel has passed to the process.
            loader: unsafe { libc::getauxval(libc::AT_BASE) },
            is_partial: false,
            changes: (0, 0),
            arrivals,
            globals: arrivals::globals(),
        };
        // SAFETY: the callback gets back the pointer that is given here, while the value lives.
        unsafe { libc::dl_iterate_phdr(Some(tell), (&raw mut seen).cast()) };
        seen
    }

    fn add(&mut self, info: &libc::dl_phdr_info) {
        // A loader that is not reported is part of the program, or was started as the program: then
        // only the first module is sure to stay.
        let stays = !self.loader_seen;
        self.loader_seen |= info.dlpi_addr == self.loader || self.loader == 0;
        // SAFETY: the loader says where its headers are.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let address = |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr);
        self.changes = (info.dlpi_adds, info.dlpi_subs);
        for load in loads().filter(|load| load.p_flags & libc::PF_W != 0) {
            let memory = address(load)..address(load).saturating_add(load.p_memsz);
            // SAFETY: a segment that the loader reports, and its own is never unmapped; it holds
            // its lock while it reports.
            unsafe { self.arrivals.search(self.globals, memory, info.dlpi_adds) };
        }
        self.arrivals.check(info.dlpi_adds);
        let (Some(first), Some(end)) = (
            loads().map(|load| load.p_vaddr & !(PAGE - 1)).min(),
            loads().map(|load| load.p_vaddr.saturating_add(load.p_memsz)).max(),
        ) else {
            return;
        };
        let segment = |load: &libc::Elf64_Phdr| {
            let start = address(load);
            (
                start,
                start.saturating_add(load.p_memsz),
                load.p_flags & libc::PF_R != 0,
            )
        };
        let code: Vec<(u64, u64, bool)> = loads()
            .filter(|load| load.p_flags & libc::PF_X != 0)
            .map(segment)
            .collect();
        let Some(&(code_start, ..)) = code.first() else { return };
        let identity = match stays {
            true => None,
            false => Identity::of(code_start),
        };
        if !stays && identity.is_none() && Identity::of(tell as *const () as usize as u64).is_some() {
            // The loader does not know this module, though it can be asked.
            self.is_partial = true;
            return;
        }
        let content = self.known.map_or(0, |_| content(headers, info.dlpi_addr));
        // SAFETY: the loader keeps the module while it reports it.
        let call_frames = unsafe { frames::by_header(headers, info.dlpi_addr) };
        let is_wanted = end - first <= LARGEST_IMAGE
            && match self.known {
                Some(known) => !known.contains_key(&content),
                // A static program without the table has its call frames found by a search. The
                // vDSO of AArch64 has none, but signal handlers return to it.
                None => {
                    let is_vdso = CODE_TELLS && info.dlpi_addr.wrapping_add(first) == vdso();
                    call_frames.is_none() && (self.loader == 0 || is_vdso)
                }
            };
        let lowest = info.dlpi_addr.wrapping_add(first);
        let image = is_wanted.then(|| {
            let mut image = copy(headers, info.dlpi_addr, first, end);
            let code = || loads().filter(|load| load.p_flags & CODE == CODE);
            let code_bytes: u64 = code().map(|load| load.p_filesz).sum();
            if !CODE_TELLS && code_bytes <= LARGEST_LEAVING && leaves_frames(&image, lowest) {
                code().for_each(|load| copy_segment(load, info.dlpi_addr, first, &mut image));
            }
            image
        });
        self.modules.push(Loaded {
            name: name(info),
            build_id: build_id(headers, info.dlpi_addr).to_vec(),
            bias: info.dlpi_addr,
            lowest,
            code,
            identity,
            content,
            image,
            call_frames,
        });
    }
}

unsafe extern "C" fn tell(info: *mut libc::dl_phdr_info, _size: usize, seen: *mut c_void) -> c_int {
    // SAFETY: the loader gives a module, and back the pointer that it was given.
    let (info, seen) = unsafe { (&*info, &mut *seen.cast::<Seen<'_>>()) };
    seen.add(info);
    0
}

/// Where the vDSO begins; 0 without one.
fn vdso() -> u64 {
    // SAFETY: only reads what the kernel has passed to the process.
    unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }
}

/// How many modules the loader has ever loaded, and how many of these it has unloaded.
fn changes() -> (u64, u64) {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, told: *mut c_void) -> c_int {
        // SAFETY: the loader gives a module, and back the pointer that it was given.
        let (info, told) = unsafe { (&*info, &mut *told.cast::<(u64, u64)>()) };
        *told = (info.dlpi_adds, info.dlpi_subs);
        1
    }
    let mut told = (0, 0);
    // SAFETY: the callback gets back the pointer that is given here, while the value lives.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut told).cast()) };
    told
}

fn name(info: &libc::dl_phdr_info) -> Vec<u8> {
    // SAFETY: null or the loader's string.
    let told = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
    match told.map(CStr::to_bytes) {
        Some(name) if !name.is_empty() => name.to_vec(),
        // The program itself has no name there.
        _ => std::fs::read_link("/proc/self/exe").map_or_else(
            |_| b"program".to_vec(),
            |path| std::os::unix::ffi::OsStringExt::into_vec(path.into_os_string()),
        ),
    }
}

const PT_GNU_SFRAME: u32 = 0x6474_e554;

/// Bytes of a segment as they lie in memory.
///
/// # Safety
/// The segment is loaded, readable, and stays.
unsafe fn bytes<'m>(header: &libc::Elf64_Phdr, bias: u64) -> &'m [u8] {
    let start = std::ptr::with_exposed_provenance::<u8>(bias.wrapping_add(header.p_vaddr) as usize);
    // SAFETY: as our caller promises.
    unsafe { std::slice::from_raw_parts(start, header.p_filesz as usize) }
}

/// A hash of what the module's table is made from: its headers, notes, and sorted unwind table, all
/// small.
fn content(headers: &[libc::Elf64_Phdr], bias: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    for header in headers {
        (
            header.p_type,
            header.p_flags,
            header.p_offset,
            header.p_vaddr,
            header.p_filesz,
            header.p_memsz,
        )
            .hash(&mut hasher);
        if matches!(header.p_type, libc::PT_NOTE | libc::PT_GNU_EH_FRAME | PT_GNU_SFRAME) && is_loaded(headers, header)
        {
            // SAFETY: it lies in a readable segment, which the loader keeps while it reports it.
            unsafe { bytes(header, bias) }.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The description of the note with the build id (NT_GNU_BUILD_ID of "GNU"); empty if there is no
/// such note.
fn build_id(headers: &[libc::Elf64_Phdr], bias: u64) -> &[u8] {
    let mut notes = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE && is_loaded(headers, header));
    let found = notes.find_map(|header| {
        // SAFETY: it lies in a readable segment, which the loader keeps while it reports it.
        notes::build_id(unsafe { bytes(header, bias) }, header.p_align)
    });
    found.unwrap_or_default()
}

fn holds(load: &libc::Elf64_Phdr, header: &libc::Elf64_Phdr) -> bool {
    load.p_type == libc::PT_LOAD
        && load.p_flags & libc::PF_R != 0
        && header.p_vaddr >= load.p_vaddr
        && header.p_vaddr.saturating_add(header.p_filesz) <= load.p_vaddr.saturating_add(load.p_filesz)
}

/// Whether a header's bytes lie in a readable segment.
fn is_loaded(headers: &[libc::Elf64_Phdr], header: &libc::Elf64_Phdr) -> bool {
    headers.iter().any(|load| holds(load, header))
}

/// The largest code that is searched for functions that leave for another frame: glibc's has
/// 1.5 MB.
const LARGEST_LEAVING: u64 = 8 << 20;
/// The flags of a segment of code that can be read.
const CODE: u32 = libc::PF_X | libc::PF_R;

/// Whether linkage tables are found by their instructions.
const CODE_TELLS: bool = cfg!(target_arch = "aarch64");

/// The module as it lies in memory, without code that contains none of its tables.
fn copy(headers: &[libc::Elf64_Phdr], bias: u64, first: u64, end: u64) -> Vec<u8> {
    let mut image = vec![0; (end - first) as usize];
    // Nothing says where `.eh_frame` is, as with `gcc -static`.
    let is_searched = !headers.iter().any(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let is_wanted = |load: &&libc::Elf64_Phdr| {
        let has_table = |header: &libc::Elf64_Phdr| {
            matches!(header.p_type, libc::PT_GNU_EH_FRAME | PT_GNU_SFRAME) && holds(load, header)
        };
        let is_code = load.p_flags & libc::PF_X != 0;
        load.p_type == libc::PT_LOAD
            && load.p_flags & libc::PF_R != 0
            && (!is_code || CODE_TELLS || is_searched || load.p_offset == 0 || headers.iter().any(has_table))
    };
    let wanted = headers.iter().filter(is_wanted);
    wanted.for_each(|load| copy_segment(load, bias, first, &mut image));
    image
}

fn copy_segment(load: &libc::Elf64_Phdr, bias: u64, first: u64, image: &mut [u8]) {
    // SAFETY: a readable segment, which the loader keeps while it reports it.
    let from = unsafe { bytes(load, bias) };
    let at = (load.p_vaddr - first) as usize;
    copy_unchecked(from, &mut image[at..at + from.len()]);
}

/// Whether a module has functions that leave for another frame: the code of these shows where
/// their callers are.
fn leaves_frames(image: &[u8], lowest: u64) -> bool {
    const LEAVING: [&str; 2] = ["_Unwind_RaiseException", "longjmp"];
    Image::parse_memory(image, lowest)
        .is_ok_and(|image| !Symbols::named(&image, None, |name| LEAVING.contains(&name)).is_empty())
}

/// Copies bytes as the kernel would. AddressSanitizer checks `memcpy`, which must not read the gaps
/// that it puts between a program's variables.
fn copy_unchecked(from: &[u8], to: &mut [u8]) {
    const AT_ONCE: usize = 4096;
    let mut words = [0; AT_ONCE / 8];
    for (from, to) in from.chunks(AT_ONCE).zip(to.chunks_mut(AT_ONCE)) {
        let words = &mut words[..from.len() / 8];
        let count = read_words(from.as_ptr().expose_provenance() as u64, words);
        let (whole, rest) = to.split_at_mut(8 * count);
        for (place, word) in whole.chunks_exact_mut(8).zip(&*words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        // The last bytes, and everything if system calls are filtered.
        for (place, byte) in rest.iter_mut().zip(&from[8 * count..]) {
            // SAFETY: a reference to the byte; volatile, so that no `memcpy` is made of it.
            *place = unsafe { std::ptr::from_ref(byte).read_volatile() };
        }
    }
}
