//! Names for addresses: from modules and their files, from code that programs made at run time, and
//! from the kernel.
//!
//! Every address gets a name, even if only `module+0xoffset`. Each distinct place of a file is
//! resolved once, however many processes map the file.

mod code;
mod jitdump;
mod kallsyms;
mod notes;
mod object;
mod packed;
mod perf_map;
mod remembered;
mod run_time;
mod source;
mod trusted;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use backtrail_arch::Cpu;
use backtrail_cfi::announced::{AnnouncedAt, Function};
use backtrail_cfi::instructions::{BYTES_BEFORE_START, is_start};
use backtrail_ctype::threads;
use backtrail_elf::debugfile::program_below;
use backtrail_elf::{HeldFile, Symbols};
use backtrail_recording::{FrameKind, Module, is_jit_dump, is_kernel_address};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

pub use code::{Code, CodeFiles, Instruction, NoCode};
pub use jitdump::{JitCode, JitDump};
pub use kallsyms::{Kallsyms, KernelFunction};
pub use object::IsolatedNames;
pub use perf_map::PerfMap;
pub use source::{Call, FetchDebugFile};

use crate::modules::{File, FileId, Mapping, Modules};
use notes::{Notes, Trouble};
use packed::{Moments, Packed};
use run_time::RunTimeCode;
use source::{ModuleSymbols, SymbolSource, Unavailable};

/// The source of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// A mapped file, or the vdso.
    File,
    /// Memory without a file that a program filled itself.
    Generated,
    /// The kernel or one of its modules.
    Kernel,
}

/// The names of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Short name of the module: `libc.so.6`, `[vdso]`, `[kernel]`, `[ext4]`, `[jit]`, `[anon]`.
    pub module: String,
    /// The source of the code.
    pub origin: Origin,
    /// The calls, innermost first; the last one was not inlined. Never empty.
    pub calls: Vec<Call>,
}

/// A [`Location`], by its number in the [`Symbolizer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(u32);

impl LocationId {
    /// Locations are numbered from 0 without gaps.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn of_index(index: u32) -> LocationId {
        LocationId(index)
    }
}

/// Where the machine keeps names that are not in any module's file.
#[derive(Clone, Debug)]
pub struct SystemFiles {
    /// The folder with the `perf-PID.map` files, and with `jit-PID.dump` files without a known
    /// mapping.
    pub perf_maps: PathBuf,
    /// The kernel's symbol table.
    pub kallsyms: PathBuf,
}

impl Default for SystemFiles {
    fn default() -> Self {
        SystemFiles {
            perf_maps: "/tmp".into(),
            kallsyms: "/proc/kallsyms".into(),
        }
    }
}

/// How many files may have their symbols in memory, and how many bytes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
}

/// Gives addresses names. Mappings are reported to it in time order, and look-ups may come in
/// between.
pub struct Symbolizer {
    modules: Modules,
    source: Box<dyn SymbolSource>,
    system: SystemFiles,
    /// By [`FileId`]; `None` if not used yet.
    files: Vec<Option<Result<Box<dyn ModuleSymbols>, Unavailable>>>,
    /// Those of them that are in use, the latest last, if they are limited.
    in_use: Vec<FileId>,
    most_in_use: Option<Kept>,
    run_time: RunTimeCode,
    kallsyms: Option<Kallsyms>,
    known: FxHashMap<Place, LocationId>,
    locations: Vec<Location>,
    /// By location, with its mapping's file and its address when it was first met.
    places: Vec<(Place, Option<FileId>, u64)>,
    notes: Notes,
    packed: Option<Packed>,
    moments: Option<Moments>,
    /// The folder with the files of the recorded machine.
    sysroot: Option<PathBuf>,
}

/// Where code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeAddress<'a> {
    /// The file, or the mapping without a file.
    pub file: Option<&'a File>,
    /// The file's first address and the one after its last: from 0, unless it is linked for fixed
    /// addresses or is the kernel.
    pub extent: (u64, u64),
    /// In a file, the address that it was linked for; else the address in its process. A return
    /// address is one byte lower, so that it is in the call.
    pub address: u64,
}

/// All names that a [`Symbolizer`] found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    locations: Vec<Location>,
    addresses: Vec<(Option<FileId>, u64)>,
    files: Vec<(File, Range<u64>)>,
}

impl Names {
    /// By [`LocationId::index`].
    pub(crate) fn locations(&self) -> &[Location] {
        &self.locations
    }

    pub(crate) fn address(&self, id: LocationId) -> CodeAddress<'_> {
        let (file, address) = self.addresses[id.index()];
        let mapped = file.map(|file| &self.files[file.0 as usize]);
        CodeAddress {
            file: mapped.map(|(file, _)| file),
            extent: mapped.map_or((0, 0), |(_, extent)| (extent.start, extent.end)),
            address,
        }
    }
}

/// The part of an address that determines its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// In a file: bytes from its base.
    File(FileId, u64),
    /// In a file: the address that it was linked for.
    Fixed(FileId, u64),
    /// In a function of a jitdump: the dump, the number of the change that put it there, bytes from
    /// its start.
    Jit(u32, u32, u64),
    /// In a process, outside its files or in a mapping that it filled itself.
    Process(u32, u64),
    Kernel(u64),
    /// In a process: the number of the packed entry.
    Packed(u32, u32, u64),
}

/// The module of addresses that are in no file.
pub(crate) const NO_FILE: &str = "[anon]";

/// Negative addresses below this are ones that no CPU has, and the kernel's data: its code is at
/// the top of the address space, of 52 bits (AArch64) or less.
const LOWEST_KERNEL_CODE: u64 = 0xfff0 << 48;

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new(SystemFiles::default())
    }
}

impl Symbolizer {
    /// Takes symbols from the files of this machine.
    pub fn new(system: SystemFiles) -> Symbolizer {
        Self::with_debug_dirs(system, &[])
    }

    /// The same, but searches these folders for separate debug files first, as if each were
    /// `/usr/lib/debug`.
    pub fn with_debug_dirs(system: SystemFiles, debug_dirs: &[PathBuf]) -> Symbolizer {
        Self::with_source(Box::new(object::ObjectFiles::new(debug_dirs)), system)
    }

    /// The file of modules recorded with this path is at another place: the process sees other file
    /// systems, or the file's name is gone. Its build id is checked there too.
    pub fn found_at(&mut self, path: &str, place: PathBuf) {
        self.source.found_at(path, place);
    }

    /// There is no file for modules recorded with this path; their lowest address and symbols were
    /// found in memory.
    pub fn found_in_memory(&mut self, path: &str, base_vaddr: u64, symbols: Symbols) {
        self.source.found_in_memory(path, base_vaddr, symbols);
    }

    /// [`Symbolizer::keep`] stores looked-up names below this folder, and later look-ups take them
    /// from there.
    #[must_use]
    pub fn remembering(mut self, folder: PathBuf) -> Symbolizer {
        self.source.remember_in(folder);
        self
    }

    /// Stores the looked-up names for later. If that fails, they are looked up again.
    pub fn keep(&self) {
        for symbols in self.files.iter().flatten().flatten() {
            symbols.keep();
        }
    }

    /// Debug files that are not on this machine come from here.
    #[must_use]
    pub fn fetching(mut self, fetch: Option<FetchDebugFile>) -> Symbolizer {
        if let Some(fetch) = fetch {
            self.source.fetch_with(fetch);
        }
        self
    }

    /// These recorded files are open: names come from them, and not from what is at their paths.
    #[must_use]
    pub fn holding(mut self, files: Vec<HeldFile>) -> Symbolizer {
        self.hold(files);
        self
    }

    /// The same for files that are named from now on.
    pub(crate) fn hold(&mut self, files: Vec<HeldFile>) {
        self.source.hold(files);
    }

    /// Keeps the symbols of no more files than this: a recording without end may meet any number of
    /// them. A file that is needed again is read again.
    pub(crate) fn keep_symbols_of(&mut self, most: Kept) {
        self.most_in_use = Some(most);
    }

    /// The files of the recorded machine are below this folder.
    #[must_use]
    pub fn below(mut self, sysroot: Option<PathBuf>) -> Symbolizer {
        if let Some(root) = &sysroot {
            self.source.search_below(root);
        }
        self.sysroot = sysroot;
        self
    }

    pub(crate) fn with_source(source: Box<dyn SymbolSource>, system: SystemFiles) -> Symbolizer {
        Symbolizer {
            modules: Modules::default(),
            source,
            system,
            files: Vec::new(),
            in_use: Vec::new(),
            most_in_use: None,
            run_time: RunTimeCode::default(),
            kallsyms: None,
            known: FxHashMap::default(),
            locations: Vec::new(),
            places: Vec::new(),
            notes: Notes::default(),
            packed: None,
            moments: None,
            sysroot: None,
        }
    }

    /// A file was mapped. Returns whether the process's addresses may have other names from now on.
    pub fn map(&mut self, module: &Module) -> bool {
        match is_jit_dump(&module.path) {
            true if self.is_packed() => false,
            true => self.run_time.map(module.pid, &module.path, &mut self.notes),
            false => self.modules.map(module),
        }
    }

    /// A process announces these functions to debuggers: names of code that it writes neither into
    /// a perf map nor into a jitdump. They replace those that it announced before.
    pub fn announce(&mut self, pid: u32, functions: &[Function]) {
        self.run_time.announce(pid, functions);
    }

    /// Processes have announced these functions while they were recorded.
    #[must_use]
    pub fn announced_before(mut self, functions: &[AnnouncedAt]) -> Symbolizer {
        let mut in_order: Vec<&AnnouncedAt> = functions.iter().collect();
        in_order.sort_by_key(|at| at.time);
        in_order.into_iter().for_each(|at| self.announce_at(at));
        self
    }

    /// A process has announced a function, not before any other; look-ups find it once they have
    /// [advanced](Self::advance) to its time.
    pub fn announce_at(&mut self, at: &AnnouncedAt) {
        self.run_time.announce_at(at);
    }

    /// The process started another program, or ended.
    pub fn clear(&mut self, pid: u32) {
        self.modules.clear(pid);
        self.run_time.clear(pid);
    }

    /// Sets the time of the next look-ups in this process, in nanoseconds of the monotonic clock.
    /// Returns whether its addresses may have other names from now on. A caller with only one time
    /// need not call it.
    pub fn advance(&mut self, pid: u32, time: u64) -> bool {
        if let Some(moments) = &mut self.moments {
            moments.advance(time);
        }
        let packed = self.packed.as_mut().is_some_and(|packed| packed.advance(pid, time));
        self.run_time.advance(pid, time) | packed
    }

    /// Whether all names come from the recording.
    fn is_packed(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.is_alone)
    }

    /// Announces frames that will be looked up: the files of their modules are read now, in
    /// parallel, and no more of each than needed.
    pub fn expect(&mut self, pid: u32, frames: impl Iterator<Item = (FrameKind, u64)>) {
        let mut expected: FxHashMap<FileId, Vec<u64>> = FxHashMap::default();
        for (kind, address) in frames {
            let address = looked_up(kind, address);
            let place = self.place(pid, self.modules.find(pid, address), address);
            if let (Place::File(file, _) | Place::Fixed(file, _), false) = (place, self.known.contains_key(&place)) {
                self.open(file);
                expected.entry(file).or_default().push(self.svma(place));
            }
        }
        let symbols = expected
            .iter()
            .filter_map(|(file, svmas)| Some((self.symbols(*file)?, svmas)));
        let symbols: Vec<(&dyn ModuleSymbols, &Vec<u64>)> = symbols.collect();
        threads::scoped(|| symbols.par_iter().for_each(|(symbols, svmas)| symbols.expect(svmas)));
    }

    /// The location of a frame's address in the process now. A return address is looked up one byte
    /// before, where the call is; an [`FrameKind::Omitted`] frame has no address and must not be
    /// looked up.
    pub fn resolve(&mut self, pid: u32, kind: FrameKind, address: u64) -> LocationId {
        debug_assert_ne!(kind, FrameKind::Omitted);
        let address = looked_up(kind, address);
        if is_kernel_address(address) && address < LOWEST_KERNEL_CODE {
            return self.locate(Place::Process(pid, address), None, pid, address);
        }
        let mapping = self.modules.find(pid, address);
        if mapping.is_none_or(|mapping| self.modules.file(mapping.file).is_anonymous()) && !self.is_packed() {
            self.run_time.find_dump(&self.system.perf_maps, pid, &mut self.notes);
            if self.run_time.has_announced(pid) {
                // Its names come first.
                let _ = self.run_time.perf_map(&self.system.perf_maps, pid, &mut self.notes);
            }
        }
        let place = self.place(pid, mapping, address);
        self.locate(place, mapping, pid, address)
    }

    /// The same for a frame further out than a user frame: the kernel has no frames there, so a
    /// kernel address is not code.
    pub fn resolve_outside_kernel(&mut self, pid: u32, kind: FrameKind, address: u64) -> LocationId {
        let address = looked_up(kind, address);
        match is_kernel_address(address) {
            true => self.locate(Place::Process(pid, address), None, pid, address),
            false => self.resolve(pid, FrameKind::Pc, address),
        }
    }

    fn locate(&mut self, place: Place, mapping: Option<Mapping>, pid: u32, address: u64) -> LocationId {
        let packed = match (place, &self.packed) {
            (Place::Process(..), Some(packed)) => packed.find_in_process(pid, address),
            _ => None,
        };
        let place = packed.map_or(place, |index| Place::Packed(pid, index as u32, address));
        let id = self.locate_once(place, mapping, pid, address);
        match (place, &mut self.moments) {
            (Place::Jit(..) | Place::Process(..) | Place::Packed(..), Some(moments)) => moments.note(pid, address, id),
            _ => id,
        }
    }

    fn locate_once(&mut self, place: Place, mapping: Option<Mapping>, pid: u32, address: u64) -> LocationId {
        if let Some(&id) = self.known.get(&place) {
            return id;
        }
        let location = match (place, mapping) {
            (Place::Packed(_, index, _), mapping) => self.in_packed_process(pid, index, mapping, address),
            (Place::File(file, _) | Place::Fixed(file, _), _) => self.in_file(file, place),
            (Place::Jit(dump, change, offset), _) => self.run_time.location(dump, change, offset),
            (Place::Process(..), mapping) => self.in_process(pid, mapping, address),
            (Place::Kernel(_), mapping) => self.in_kernel(mapping, address),
        };
        let id = LocationId(self.locations.len() as u32);
        self.locations.push(location);
        let mapped = mapping.map(|mapping| mapping.file);
        self.places.push((place, mapped, address));
        self.known.insert(place, id);
        id
    }

    /// The file at an address of a process now, and the address of its first byte.
    pub(crate) fn file_at(&self, pid: u32, address: u64) -> Option<(&File, u64)> {
        let mapping = self.modules.find(pid, address)?;
        Some((self.modules.file(mapping.file), mapping.base))
    }

    /// The lowest address that the file at an address of a process now was linked for.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used, in a few words.
    pub fn linked_at(&mut self, pid: u32, address: u64) -> Result<u64, String> {
        let id = self.modules.find(pid, address).map(|mapping| mapping.file);
        let id = id.ok_or_else(|| Unavailable::NoFile.to_string())?;
        self.open(id);
        match &self.files[id.0 as usize] {
            Some(Ok(symbols)) => Ok(symbols.base_vaddr()),
            Some(Err(reason)) => Err(reason.to_string()),
            None => Err(Unavailable::NoFile.to_string()),
        }
    }

    /// The names found so far.
    pub(crate) fn into_names(self) -> Names {
        let address = |&(place, mapped, address): &(Place, Option<FileId>, u64)| match place {
            Place::File(file, _) | Place::Fixed(file, _) => (Some(file), self.svma(place)),
            _ => (mapped, address),
        };
        Names {
            addresses: self.places.iter().map(address).collect(),
            locations: self.locations,
            files: self.modules.into_files(),
        }
    }

    /// The location with this number.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.index()]
    }

    /// Notes about the names, one sentence each: files that are gone or have changed since, kernel
    /// names that may not be read.
    pub fn notes(&self) -> Vec<String> {
        if let Some(packed) = self.packed.as_ref().filter(|packed| packed.is_alone) {
            return packed.notes.clone();
        }
        let mut notes = self.notes.clone();
        for (index, symbols) in self.files.iter().enumerate() {
            let Some(Ok(symbols)) = symbols else { continue };
            if let Some(path) = symbols.unreadable() {
                notes.add(Trouble::DebugFile, &path.to_string_lossy());
            }
            let limit = symbols.is_limited().then_some(Unavailable::Limit);
            for trouble in limit.into_iter().chain(symbols.lost().map(Unavailable::Isolated)) {
                notes.add(Trouble::File(trouble), &self.modules.file(FileId(index as u32)).path);
            }
        }
        notes.sentences()
    }

    fn place(&self, pid: u32, mapping: Option<Mapping>, address: u64) -> Place {
        if is_kernel_address(address) {
            return Place::Kernel(address);
        }
        match mapping {
            Some(Mapping { base, relative, file }) => {
                let described = self.modules.file(file);
                if described.is_anonymous() && described.path != "[vdso]" {
                    self.in_memory(pid, address)
                } else if relative {
                    Place::File(file, address.wrapping_sub(base))
                } else {
                    Place::Fixed(file, address)
                }
            }
            None => self.in_memory(pid, address),
        }
    }

    /// The place of an address outside of files.
    fn in_memory(&self, pid: u32, address: u64) -> Place {
        match self.run_time.find(pid, address) {
            Some((dump, change, offset)) => Place::Jit(dump, change, offset),
            None => Place::Process(pid, address),
        }
    }

    /// Opens the module's file if this has not been tried.
    fn open(&mut self, id: FileId) {
        let index = id.0 as usize;
        if self.files.len() <= index {
            self.files.resize_with(index + 1, || None);
        }
        self.note_use(id);
        if self.files[index].is_none() {
            let file = self.modules.file(id);
            if let Some(root) = &self.sysroot {
                let place = program_below(root, Path::new(&file.path), &file.build_id);
                self.source.found_at(&file.path, place);
            }
            let opened = self.source.open(file);
            let is_packed = self
                .packed
                .as_ref()
                .is_some_and(|packed| packed.base_vaddr(file).is_some());
            if let (Err(reason), false) = (&opened, is_packed) {
                self.notes.add(Trouble::File(*reason), &file.path);
            }
            self.files[index] = Some(opened);
        }
    }

    /// A file is used. While the others are too many for it to be opened, the one that was used
    /// longest ago is closed.
    fn note_use(&mut self, id: FileId) {
        let Some(most) = self.most_in_use else { return };
        self.in_use.retain(|used| *used != id);
        while self.files[id.0 as usize].is_none() && !self.in_use.is_empty() && !self.has_room(most) {
            let oldest = self.in_use.remove(0);
            self.files[oldest.0 as usize] = None;
        }
        self.in_use.push(id);
    }

    fn has_room(&self, most: Kept) -> bool {
        let used = self.in_use.iter().filter_map(|id| self.symbols(*id));
        self.in_use.len() < most.files && used.map(ModuleSymbols::bytes).sum::<u64>() <= most.bytes
    }

    /// The symbols of a module whose file could be [opened](Self::open).
    fn symbols(&self, id: FileId) -> Option<&dyn ModuleSymbols> {
        self.files.get(id.0 as usize)?.as_ref()?.as_deref().ok()
    }

    /// The lowest address of a file's segments; 0 if it is not known.
    fn base_vaddr(&self, file: FileId) -> u64 {
        let packed = || self.packed.as_ref()?.base_vaddr(self.modules.file(file));
        let symbols = self.symbols(file).map(ModuleSymbols::base_vaddr);
        symbols.or_else(packed).unwrap_or(0)
    }

    /// The file's own address for a place.
    fn svma(&self, place: Place) -> u64 {
        match place {
            Place::File(file, offset) => offset.wrapping_add(self.base_vaddr(file)),
            Place::Jit(.., address)
            | Place::Packed(.., address)
            | Place::Fixed(_, address)
            | Place::Process(_, address)
            | Place::Kernel(address) => address,
        }
    }

    fn in_file(&mut self, id: FileId, place: Place) -> Location {
        if !self.is_packed() {
            self.open(id);
        }
        let svma = self.svma(place);
        let file = self.modules.file(id);
        let module = file.display_name();
        let symbols = self.symbols(id);
        let look_up = |svma| symbols.and_then(|symbols| symbols.lookup(svma));
        let calls = look_up(svma).filter(|calls| !calls.is_empty());
        let calls = calls.or_else(|| {
            symbols.filter(|symbols| is_padding(*symbols, svma))?;
            beginning(look_up(svma.wrapping_add(1))?)
        });
        let packed = self.packed.as_ref().and_then(|packed| packed.in_file(file, svma));
        let calls = match (calls, packed) {
            // Debugging information may be gone since.
            (Some(found), Some(packed)) if has_lines(&packed) && !has_lines(&found) => Some(packed),
            (found, packed) => found.or(packed),
        };
        let start = || symbols.and_then(|symbols| symbols.start(svma));
        Location {
            module: module.to_string(),
            origin: Origin::File,
            calls: calls.unwrap_or_else(|| vec![in_function(module, svma, start())]),
        }
    }

    /// The names that the recording has for code that ran in memory without a file.
    fn in_packed_process(&mut self, pid: u32, index: u32, mapping: Option<Mapping>, address: u64) -> Location {
        let packed = self
            .packed
            .as_ref()
            .and_then(|packed| packed.in_process(pid, index as usize));
        packed.unwrap_or_else(|| self.in_process(pid, mapping, address))
    }

    fn in_process(&mut self, pid: u32, mapping: Option<Mapping>, address: u64) -> Location {
        let map = match self.is_packed() {
            true => None,
            false => self.run_time.perf_map(&self.system.perf_maps, pid, &mut self.notes),
        };
        if let Some((name, offset)) = map.and_then(|map| map.lookup(address)) {
            return Location {
                module: "[jit]".into(),
                origin: Origin::Generated,
                calls: vec![named(name, offset)],
            };
        }
        let (module, call) = match mapping {
            Some(mapping) => {
                let module = self.modules.file(mapping.file).display_name();
                (module, unnamed(module, address - mapping.base))
            }
            None => (NO_FILE, unnamed("[unknown]", address)),
        };
        Location {
            module: module.to_string(),
            origin: Origin::Generated,
            calls: vec![call],
        }
    }

    fn in_kernel(&mut self, mapping: Option<Mapping>, address: u64) -> Location {
        if let Some(packed) = &self.packed
            && let Some(location) = packed.in_kernel(address)
        {
            return location;
        }
        let recorded = mapping.map(|mapping| (self.modules.file(mapping.file).display_name(), mapping.base));
        if self.is_packed() {
            return unnamed_in_kernel(recorded, address);
        }
        let kallsyms = self
            .kallsyms
            .get_or_insert_with(|| read_kallsyms(&self.system.kallsyms, &mut self.notes));
        let same_boot = match recorded {
            Some((name, base)) if is_kernel_itself(name) => kallsyms.is_loaded_at(base),
            _ => true,
        };
        if !same_boot {
            self.notes.add(Trouble::OtherBoot, "");
        } else if let Some(function) = kallsyms.lookup(address) {
            return Location {
                module: function.module.to_string(),
                origin: Origin::Kernel,
                calls: vec![named(function.name, function.offset)],
            };
        }
        unnamed_in_kernel(recorded, address)
    }
}

/// Whether a module is the kernel, not one of its modules.
fn is_kernel_itself(name: &str) -> bool {
    name.starts_with("[kernel")
}

/// A kernel address without a name, in a recorded module with this name and base.
fn unnamed_in_kernel(recorded: Option<(&str, u64)>, address: u64) -> Location {
    let (module, offset) = match recorded {
        Some((name, base)) if is_kernel_itself(name) => ("[kernel]", address - base),
        Some((name, base)) => (name, address - base),
        None => ("[kernel]", address),
    };
    Location {
        module: module.to_string(),
        origin: Origin::Kernel,
        calls: vec![unnamed(module, offset)],
    }
}

fn has_lines(calls: &[Call]) -> bool {
    calls.iter().any(|call| call.line.is_some())
}

/// The address under which a frame is looked up.
fn looked_up(kind: FrameKind, address: u64) -> u64 {
    match kind {
        // A return address of 0 is not a call before the first byte, but the end of a chain that
        // nothing stopped.
        FrameKind::Ra => address.saturating_sub(1),
        FrameKind::Pc | FrameKind::Omitted => address,
    }
}

fn named(function: &str, offset: u64) -> Call {
    Call {
        function: crate::demangle::demangle(function).into_owned(),
        offset: Some(offset),
        ..Call::default()
    }
}

/// A call of a function without a name, which is named after its start if that is known.
fn in_function(module: &str, address: u64, start: Option<u64>) -> Call {
    Call {
        offset: start.map(|start| address - start),
        ..unnamed(module, start.unwrap_or(address))
    }
}

/// Whether the padding before a function, not a call, ends at this byte: no call has pushed the
/// return address after it.
fn is_padding(symbols: &dyn ModuleSymbols, svma: u64) -> bool {
    let at = svma.wrapping_add(1);
    let code = symbols.code(at.wrapping_sub(BYTES_BEFORE_START as u64), BYTES_BEFORE_START as u64);
    code.is_some_and(|(cpu, code)| cpu == Cpu::X86_64 && is_start(code, at))
}

/// These calls, if they are those of a function's first instruction; an address before it has no
/// offset.
fn beginning(mut calls: Vec<Call>) -> Option<Vec<Call>> {
    let outermost = calls.last_mut()?;
    (outermost.offset.take() == Some(0)).then_some(calls)
}

fn unnamed(module: &str, offset: u64) -> Call {
    Call {
        function: format!("{module}+{offset:#x}"),
        ..Call::default()
    }
}

fn read_kallsyms(path: &Path, notes: &mut Notes) -> Kallsyms {
    let kallsyms = Kallsyms::parse(&fs::read(path).unwrap_or_default());
    if kallsyms.is_empty() {
        notes.add(Trouble::NoKallsyms, "");
    }
    kallsyms
}

#[cfg(test)]
pub(crate) mod invented;
#[cfg(test)]
mod tests;
