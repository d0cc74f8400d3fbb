//! The mapped files, each stored once, with its unwind table.

mod files;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use backtrail_bpf as bpf;
use backtrail_cfi::announced;
use backtrail_cfi::cache::FileIdentity;
use backtrail_cfi::called::called;
use backtrail_cfi::registers::CallFrames;
use backtrail_cfi::tables::{self, Tables};
use backtrail_elf::budget::Budget;
use backtrail_elf::{CodeSegments, FileBytes, HeldFile, Image, door};
use backtrail_process::proc;
use backtrail_process::proc::{DELETED, VDSO, is_file};
use backtrail_recording::{Module as Recorded, is_jit_dump};
use backtrail_sframe::Section;
use backtrail_unwind::Coverage;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::ModuleProblem;
use crate::arena::Arena;
use crate::elf_module::{self, ElfModule, Kept, call_frames};
use crate::elsewhere::{Elsewhere, MappedFile, Wanted, is_at_home};
use crate::file_problems::Problems;
use crate::maker::Maker;
use crate::memory_image::MappedAt;
use files::Opened;

/// Modules are looked through if there are at least this many.
const MANY: usize = 512;
/// Bytes of tables of files that are gone, from which on their memory is given back.
const MANY_GONE: usize = 8 << 20;
/// A file with this many bytes of call frame information: smaller ones take less time than the
/// samples that a ring holds.
const LARGE: u64 = 128 << 10;
/// A file with this many is kept open instead, and they are read again when they are needed.
const READ_AGAIN: u64 = 1 << 20;
/// The most bytes that tables of a user's files take, unless that is root or our own: they stay
/// until the recording ends, and a program can make new files for ever.
const MOST_FOREIGN: usize = 256 << 20;

/// A module by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModuleIndex(pub(crate) u32);

/// What identifies a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileKey {
    /// The build id, as the kernel read it.
    BuildId(Vec<u8>),
    /// Device and inode.
    Inode { device: (u32, u32), inode: u64 },
    /// Neither: anonymous memory, the vdso.
    Unidentified,
}

impl FileKey {
    fn build_id(&self) -> &[u8] {
        match self {
            FileKey::BuildId(id) => id,
            _ => &[],
        }
    }
}

/// A mapping of a module into a process.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// First address.
    pub(crate) start: u64,
    /// Address after the last.
    pub(crate) end: u64,
    /// Offset of the first byte in the file.
    pub(crate) file_offset: u64,
    /// The mapped module.
    pub(crate) module: ModuleIndex,
    /// A unique number; a forked child's copy keeps it.
    pub(crate) id: u32,
    /// Whether another module was at some of these addresses before.
    pub(crate) replaces: bool,
}

/// A file (or the vdso, or memory without a file).
#[derive(Debug)]
struct Module<'a> {
    key: FileKey,
    path: String,
    at: MappedAt,
    contents: OnceCell<Contents<'a>>,
    /// Where the file has a list of announced code, and where its segments are loaded.
    announced: OnceCell<Option<(u64, CodeSegments)>>,
    /// What is wrong with the file: an index into [`Problems`].
    problem: Cell<Option<usize>>,
    /// Whether the file was not found.
    is_lost: Cell<bool>,
    /// Its number if it is not at its path, as far as other processes may have the same file.
    elsewhere: Cell<u32>,
    /// The file that was last seen to have the build ID of a mapping, and whether it is foreign.
    mapped: RefCell<Option<(FileIdentity, Vec<u8>, bool)>>,
}

impl Module<'_> {
    fn new(key: FileKey, path: String, at: MappedAt) -> Self {
        Module {
            key,
            path,
            at,
            contents: OnceCell::new(),
            announced: OnceCell::new(),
            problem: Cell::new(None),
            is_lost: Cell::new(false),
            elsewhere: Cell::new(0),
            mapped: RefCell::default(),
        }
    }
}

/// The contents of the file.
#[derive(Debug)]
pub(crate) enum Contents<'a> {
    /// An ELF image.
    Elf(ElfModule<'a>),
    /// Code without a file, or in a file that cannot be read or is no ELF file.
    Opaque,
}

/// What [`is_at_home`] has answered for a sample, by its time and process.
#[derive(Clone, Copy, Debug)]
struct AtHome {
    sample: (u64, u32),
    answer: Option<bool>,
}

/// Modules without their contents.
#[derive(Debug)]
pub(crate) struct Known {
    modules: Vec<(ModuleIndex, FileKey, String, MappedAt)>,
    next: u32,
    sysroot: Option<PathBuf>,
    problems: Problems,
    elsewhere: Elsewhere,
    used: u64,
    maker: Option<Maker>,
    made: u64,
}

impl Known {
    /// Files with problems, those of most samples first, and how many more there were.
    pub(crate) fn into_problems(self) -> (Vec<ModuleProblem>, u64) {
        self.problems.into_sorted()
    }

    /// Files that no path leads to.
    pub(crate) fn held(&self) -> Vec<HeldFile> {
        self.elsewhere.held()
    }

    /// How many more there were.
    pub(crate) fn not_held(&self) -> u64 {
        self.elsewhere.not_held()
    }
}

/// All modules of a recording.
#[derive(Debug)]
pub(crate) struct Modules<'a> {
    modules: FxHashMap<ModuleIndex, Box<Module<'a>>>,
    next: u32,
    /// At this many modules, those that nothing maps any more are forgotten.
    many: usize,
    by_key: FxHashMap<(FileKey, String), ModuleIndex>,
    tables: &'a Tables,
    arena: &'a Arena,
    /// Where the files of another machine are.
    pub(crate) sysroot: Option<PathBuf>,
    /// When an imported recording ended: younger files are others, though a file system gives
    /// inodes again.
    pub(crate) ended: Option<SystemTime>,
    problems: RefCell<Problems>,
    elsewhere: RefCell<Elsewhere>,
    /// Files that were taken without a build ID to compare, in `sysroot`.
    unchecked: RefCell<BTreeSet<String>>,
    used: Cell<u64>,
    /// Files whose code was read last.
    opened: RefCell<Vec<(ModuleIndex, Rc<FileBytes>)>>,
    /// Makes the tables of large files, if walks need not wait for them.
    maker: Option<Maker>,
    /// How many of these were made.
    made: u64,
    /// Tables by the hash of their bytes: programs copy their libraries.
    tables_by_hash: RefCell<FxHashMap<u64, &'a [u8]>>,
    /// Bytes of tables by the owner of the files.
    foreign: RefCell<FxHashMap<u32, usize>>,
    /// Whether the process of the last sample, at this time, sees the same files as we do.
    at_home: Cell<Option<AtHome>>,
}

impl<'a> Modules<'a> {
    pub(crate) fn new(tables: &'a Tables, arena: &'a Arena) -> Self {
        Modules {
            modules: FxHashMap::default(),
            next: 0,
            many: MANY,
            by_key: FxHashMap::default(),
            tables,
            arena,
            sysroot: None,
            ended: None,
            problems: RefCell::default(),
            elsewhere: RefCell::default(),
            unchecked: RefCell::default(),
            used: Cell::new(0),
            opened: RefCell::default(),
            maker: None,
            made: 0,
            tables_by_hash: RefCell::default(),
            foreign: RefCell::default(),
            at_home: Cell::new(None),
        }
    }

    /// Everything but the contents of files.
    pub(crate) fn without_contents(self) -> Known {
        let kept = |(index, module): (ModuleIndex, Box<Module<'_>>)| {
            let Module { key, path, at, .. } = *module;
            (index, key, path, at)
        };
        Known {
            modules: self.modules.into_iter().map(kept).collect(),
            next: self.next,
            sysroot: self.sysroot,
            problems: self.problems.into_inner(),
            elsewhere: self.elsewhere.into_inner(),
            used: self.used.get(),
            maker: self.maker,
            made: self.made,
        }
    }

    /// Modules with the same numbers, whose contents are read again when they are needed.
    pub(crate) fn again(known: Known, tables: &'a Tables, arena: &'a Arena) -> Self {
        let mut modules = Modules {
            next: known.next,
            sysroot: known.sysroot,
            ended: None,
            problems: known.problems.into(),
            elsewhere: known.elsewhere.into(),
            used: known.used.into(),
            maker: known.maker,
            made: known.made,
            ..Modules::new(tables, arena)
        };
        for (index, key, path, at) in known.modules {
            modules.by_key.insert((key.clone(), path.clone()), index);
            modules.modules.insert(index, Box::new(Module::new(key, path, at)));
        }
        modules.many = MANY.max(2 * modules.modules.len());
        modules
    }

    /// The number of tables that are kept.
    pub(crate) fn tables(&self) -> usize {
        self.tables_by_hash.borrow().len()
    }

    /// Whether most of the memory of tables is of files that nothing maps any more, and much.
    pub(crate) fn are_mostly_gone(&self) -> bool {
        let tables = self.tables_by_hash.borrow();
        let all: usize = tables.values().map(|table| table.len()).sum();
        let contents = self.modules.values().filter_map(|module| module.contents.get());
        let used: FxHashMap<*const u8, usize> = contents
            .filter_map(|contents| match contents {
                Contents::Elf(elf) => Some((elf.table_bytes.as_ptr(), elf.table_bytes.len())),
                Contents::Opaque => None,
            })
            .collect();
        let used: usize = used.values().sum();
        let gone = all.saturating_sub(used);
        gone > MANY_GONE && gone > used
    }

    /// Files with problems, those of most samples first, and how many more there were.
    pub(crate) fn into_problems(self) -> (Vec<ModuleProblem>, u64) {
        self.problems.into_inner().into_sorted()
    }

    /// Open files that no path leads to.
    pub(crate) fn held(&self) -> Vec<HeldFile> {
        self.elsewhere.borrow().held()
    }

    /// What becomes of such files.
    pub(crate) fn want_files(&mut self, wanted: Wanted) {
        self.elsewhere.get_mut().want(wanted);
    }

    /// Gives back space of files that were removed meanwhile.
    pub(crate) fn give_back(&self) {
        self.elsewhere.borrow_mut().give_back();
    }

    /// Closes them.
    pub(crate) fn release_held(&self) {
        self.elsewhere.borrow_mut().release();
    }

    /// Files in the sysroot whose build IDs could not be compared.
    pub(crate) fn take_unchecked(&self) -> BTreeSet<String> {
        self.unchecked.take()
    }

    fn report(&self, module: &Module<'_>, reason: impl ToString) {
        let first = module.problem.get();
        let number = self
            .problems
            .borrow_mut()
            .add(plain_path(module), reason.to_string(), first);
        module.problem.set(first.or(Some(number)));
    }

    /// Counts a sample whose stack reaches into a module, if something is wrong with its file.
    /// `is_cut`: the stack is not complete, for which the module may be the reason.
    pub(crate) fn count_sample(&self, index: ModuleIndex, sample: u64, is_cut: bool) {
        let mut problems = self.problems.borrow_mut();
        if !problems.is_empty()
            && let Some(number) = self.modules.get(&index).and_then(|module| module.problem.get())
        {
            problems.count_sample(number, sample, is_cut);
        }
    }

    /// The number of a file; a new one if it was not seen before.
    pub(crate) fn index(&mut self, key: FileKey, path: String, at: MappedAt) -> ModuleIndex {
        // The same file may be known by two paths (links, namespaces); each keeps its own name.
        let entry = match self.by_key.entry((key, path)) {
            Entry::Occupied(known) => {
                let index = *known.get();
                self.is_also_at(index, at);
                return index;
            }
            Entry::Vacant(entry) => entry,
        };
        let index = ModuleIndex(self.next);
        self.next = self.next.wrapping_add(1);
        let (key, path) = entry.key().clone();
        self.modules.insert(index, Box::new(Module::new(key, path, at)));
        entry.insert(index);
        index
    }

    /// A file that was not read yet, or not found, is looked for where it was mapped last: only
    /// there may it be, in a container, and the process that had it first may have ended.
    fn is_also_at(&mut self, index: ModuleIndex, at: MappedAt) {
        let Some(module) = self.modules.get_mut(&index) else {
            return;
        };
        let is_lost = module.is_lost.get();
        if is_lost {
            module.is_lost.set(false);
            module.contents.take();
            self.made += 1;
        }
        if module.contents.get().is_none() {
            module.at = at;
        }
    }

    /// Whether it is time to [forget](Self::forget) the modules that nothing maps any more.
    pub(crate) fn are_many(&self) -> bool {
        self.modules.len() >= self.many
    }

    /// Forgets all modules but these. Their numbers are not used again.
    pub(crate) fn forget(&mut self, used: impl Iterator<Item = ModuleIndex>) {
        let used: FxHashSet<ModuleIndex> = used.collect();
        self.modules.retain(|index, _| used.contains(index));
        self.by_key.retain(|_, index| used.contains(index));
        self.modules.shrink_to_fit();
        self.by_key.shrink_to_fit();
        self.many = MANY.max(2 * self.modules.len());
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        assert_eq!(self.modules.len(), self.by_key.len());
        self.modules.len()
    }

    /// From now on, walks do not wait until the table of a large file is made: they use the tables
    /// of single functions until then.
    pub(crate) fn make_tables_aside(&mut self) {
        self.maker = Some(Maker::new(self.tables.clone()));
    }

    /// A number that changes when a table was made aside.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// Takes the tables that were made aside; with `all`, waits for those that still are.
    pub(crate) fn take_made(&mut self, all: bool) {
        let taken = self
            .maker
            .as_mut()
            .map(|maker| if all { maker.take_all() } else { maker.take() });
        for made in taken.unwrap_or_default() {
            let index = ModuleIndex(made.number);
            self.made += 1;
            let Some(mut module) = self.modules.remove(&index) else {
                continue;
            };
            let table = made
                .table
                .and_then(|table| self.kept(&module, made.foreign_owner, table));
            if let Some(Contents::Elf(elf)) = module.contents.get_mut() {
                elf.set_table(table);
            }
            self.modules.insert(index, module);
        }
    }

    /// The table for an address of a mapping, and the addresses that it is for.
    #[inline]
    pub(crate) fn coverage(&self, mapping: &Mapping, address: u64) -> (Range<u64>, Coverage<'_>) {
        let whole = mapping.start..mapping.end;
        let Contents::Elf(elf) = self.contents(mapping.module) else {
            return (whole, Coverage::FramePointer);
        };
        match elf.code.address_of(mapping.file_offset) {
            Some(start) => elf.coverage(whole, mapping.start.wrapping_sub(start), address, mapping.module.0),
            None => (whole, Coverage::FramePointer),
        }
    }

    /// Whether a mapping's module has a table.
    pub(crate) fn has_table(&self, mapping: &Mapping) -> bool {
        let Contents::Elf(elf) = self.contents(mapping.module) else {
            return false;
        };
        elf.has_table() && elf.code.address_of(mapping.file_offset).is_some()
    }

    /// The table of a mapping's module, if some stack has reached into it, its bytes, and the
    /// offset from its addresses to the process's.
    pub(crate) fn used_table(&self, mapping: &Mapping) -> Option<(Section<'a>, &'a [u8], u64)> {
        let Some(Contents::Elf(elf)) = self.modules.get(&mapping.module)?.contents.get() else {
            return None;
        };
        let address = elf.code.address_of(mapping.file_offset)?;
        Some((elf.table?, elf.table_bytes, mapping.start.wrapping_sub(address)))
    }

    /// Rules for the kernel of code in a mapping's module that leaves its stack for another one, if
    /// a stack has needed its call frame information.
    pub(crate) fn stack_switches(&self, mapping: &Mapping) -> &[(Range<u64>, bpf::Rule)] {
        let contents = self
            .modules
            .get(&mapping.module)
            .and_then(|module| module.contents.get());
        let Some(Contents::Elf(elf)) = contents else {
            return &[];
        };
        if !elf.on_demand.was_read.get() {
            return &[];
        }
        let find = || {
            self.call_frames(mapping)
                .map_or_else(Vec::new, |(frames, _)| elf_module::switches(frames))
        };
        elf.on_demand.switches.get_or_init(find)
    }

    /// Forgets large call frame information that was not used since the last time. It is read again
    /// when a stack needs it.
    pub(crate) fn forget_unused(&mut self) {
        for module in self.modules.values_mut() {
            if let Some(Contents::Elf(elf)) = module.contents.get_mut() {
                elf.forget_unused();
            }
        }
    }

    /// A number that changes when stacks reach into another module, or have another table to use.
    pub(crate) fn used(&self) -> u64 {
        self.used.get() + self.made
    }

    /// The function of a table that starts at an address of a mapping, in addresses of the process.
    pub(crate) fn function_at(&self, mapping: &Mapping, address: u64) -> Option<Range<u64>> {
        let (_, Coverage::Table(table)) = self.coverage(mapping, address) else {
            return None;
        };
        let found = table.section.lookup(address.wrapping_sub(table.bias)).ok()??;
        let start = found.function.start.wrapping_add(table.bias);
        Some(start..start.saturating_add(found.function.size.into()))
    }

    /// The call frame information of a mapping's file, and the offset from its addresses to the
    /// process's.
    pub(crate) fn call_frames(&self, mapping: &Mapping) -> Option<(&CallFrames<Vec<u8>>, u64)> {
        let Contents::Elf(elf) = self.contents(mapping.module) else {
            return None;
        };
        let bias = mapping.start.wrapping_sub(elf.code.address_of(mapping.file_offset)?);
        let module = &self.modules[&mapping.module];
        let read = || {
            if !elf.on_demand.was_read.replace(true) {
                self.used.set(self.used.get() + 1);
            }
            if let Some(file) = elf.on_demand.file.get() {
                let file = file.again(&Budget::new()).ok()?;
                return call_frames(&Image::of(&file).ok()?);
            }
            let read = self.with_file(module, |image, opened| {
                let is_large = kept_meanwhile(image).is_some_and(|bytes| bytes >= READ_AGAIN);
                let again = opened
                    .filter(|_| is_large)
                    .map(|opened| opened.file.again(&Budget::new()));
                if let Some(Ok(file)) = again {
                    let _ = elf.on_demand.file.set(file);
                }
                call_frames(image)
            });
            read.flatten()
        };
        elf.on_demand.is_used.set(true);
        let frames = elf.on_demand.frames.get_or_init(read);
        Some((frames.as_ref()?, bias))
    }

    /// Whether Go's compiler made a mapping's code, for x86-64.
    pub(crate) fn is_go(&self, mapping: &Mapping) -> bool {
        matches!(self.contents(mapping.module), Contents::Elf(elf) if elf.is_go)
    }

    /// The targets of direct calls in the file, in order, and the offset from its addresses to the
    /// process's. Empty for large files.
    pub(crate) fn called(&self, mapping: &Mapping) -> Option<(&[u64], u64)> {
        let Contents::Elf(elf) = self.contents(mapping.module) else {
            return None;
        };
        let bias = mapping.start.wrapping_sub(elf.code.address_of(mapping.file_offset)?);
        let module = &self.modules[&mapping.module];
        let find = || self.with_image(module, called).unwrap_or_default();
        Some((elf.on_demand.called.get_or_init(find), bias))
    }

    /// The names and addresses in the process of the objects that a mapping's file exports under
    /// names that begin with `prefix`.
    pub(crate) fn objects(&self, mapping: &Mapping, prefix: &str) -> Vec<(String, u64)> {
        let found = || {
            let Contents::Elf(elf) = self.contents(mapping.module) else {
                return None;
            };
            let bias = mapping.start.wrapping_sub(elf.code.address_of(mapping.file_offset)?);
            let module = &self.modules[&mapping.module];
            let objects = self.with_image(module, |image| image.exported_objects(prefix))?;
            Some(
                objects
                    .into_iter()
                    .map(move |(name, value)| (name, value.wrapping_add(bias))),
            )
        };
        found().into_iter().flatten().collect()
    }

    /// The address in the process of the list in which a mapping's file announces generated code.
    pub(crate) fn announced_list(&self, mapping: &Mapping) -> Option<u64> {
        let module = &self.modules[&mapping.module];
        let look = |image: &Image<'_>| Some((image.object(announced::DESCRIPTOR)?, CodeSegments::of(image)));
        // Problems are reported of files that stacks reach into.
        let find = || self.find_file(module, |image, _| look(image)).ok().flatten().flatten();
        let (svma, segments) = module.announced.get_or_init(find).as_ref()?;
        let start = segments.address_of(mapping.file_offset)?;
        Some(svma.wrapping_add(mapping.start.wrapping_sub(start)))
    }

    /// Whether a mapping is one of a file's code, the same in every process.
    pub(crate) fn is_file(&self, mapping: &Mapping) -> bool {
        matches!(self.contents(mapping.module), Contents::Elf(_))
    }

    /// The recorded description of a process's mapping; `None` for memory without a file.
    pub(crate) fn describe(&self, mapping: &Mapping, time: u64, pid: u32) -> Option<Recorded> {
        let module = &self.modules[&mapping.module];
        if !is_file(&module.path) && module.path != VDSO {
            return None;
        }
        let path = module.path.clone();
        if let Contents::Elf(elf) = self.contents(mapping.module)
            && let Some(address) = elf.code.address_of(mapping.file_offset)
        {
            let bias = mapping.start.wrapping_sub(address);
            return Some(Recorded {
                time,
                pid,
                base: bias.wrapping_add(elf.base_vaddr),
                size: elf.mem_size,
                mapped: Some(mapping.start..mapping.end),
                position_independent: elf.position_independent || bias != 0,
                path,
                build_id: elf.build_id.clone(),
                elsewhere: self.elsewhere(module, mapping, (time, pid), &elf.build_id),
            });
        }
        let build_id = module.key.build_id().to_vec();
        // As the kernel would call it: what has its path now, or will have it, is another file.
        // With a build ID, readers see that.
        let is_known = matches!(module.key, FileKey::BuildId(_)) || path.ends_with(DELETED);
        let path = match module.is_lost.get() && !is_known {
            true => path + DELETED,
            false => path,
        };
        Some(Recorded {
            time,
            pid,
            base: mapping.start.wrapping_sub(mapping.file_offset),
            size: mapping.file_offset.saturating_add(mapping.end - mapping.start),
            mapped: Some(mapping.start..mapping.end),
            position_independent: true,
            path,
            elsewhere: self.elsewhere(module, mapping, (time, pid), &build_id),
            build_id,
        })
    }

    /// Whether it maps a file that describes the code a process makes at run time.
    pub(crate) fn is_jit_dump(&self, mapping: &Mapping) -> bool {
        is_jit_dump(&self.modules[&mapping.module].path)
    }

    /// The recorded description of a mapping for its path and place alone.
    pub(crate) fn describe_place(&self, mapping: &Mapping, time: u64, pid: u32) -> Recorded {
        Recorded {
            time,
            pid,
            base: mapping.start,
            size: mapping.end - mapping.start,
            mapped: None,
            position_independent: true,
            path: self.modules[&mapping.module].path.clone(),
            build_id: Vec::new(),
            elsewhere: 0,
        }
    }

    /// The number of a process's file if it is not the one at its path here; else 0.
    fn elsewhere(&self, module: &Module<'_>, mapping: &Mapping, (time, pid): (u64, u32), build_id: &[u8]) -> u32 {
        if module.path == VDSO || self.sysroot.is_some() {
            return 0;
        }
        let has_path = !module.path.ends_with(DELETED);
        let at_home = self.is_at_home(time, pid);
        let is_home = has_path && at_home == Some(true);
        let wants_spare = || self.elsewhere.borrow().wants_spare(mapping.module.0);
        // Readers see by the build ID whether it still is the file at its path.
        let is_known = is_home && !build_id.is_empty();
        if is_known && !wants_spare() {
            return 0;
        }
        let number = if is_known { 0 } else { module.elsewhere.get() };
        let mapped = self.mapped_file(module, mapping, pid, build_id).or_else(|| {
            // The process may have ended.
            let can_be_at_its_path = has_path && at_home != Some(false) && number == 0;
            let path = Path::new(&module.path);
            let file = door::open(path)
                .ok()
                .filter(|_| can_be_at_its_path && !build_id.is_empty())?;
            MappedFile::new(file, build_id)
        });
        let Some(mapped) = mapped else {
            return number;
        };
        // Services have their own view of the same files, and so has ours.
        let is_here = is_home || has_path && mapped.is_at(Path::new(&module.path));
        if is_here && !build_id.is_empty() {
            if wants_spare() {
                let mut elsewhere = self.elsewhere.borrow_mut();
                elsewhere.keep_spare(mapping.module.0, &module.path, build_id, &mapped);
            }
            return 0;
        }
        let whose = (pid, is_here);
        let number = self
            .elsewhere
            .borrow_mut()
            .number(&module.path, build_id, &mapped, whose);
        // Another user's file may have any build ID, and is not taken for one of others.
        if !mapped.is_foreign || matches!(module.key, FileKey::Inode { .. }) {
            module.elsewhere.set(number);
        }
        number
    }

    /// Whether the process of a sample sees the same files as we do.
    fn is_at_home(&self, time: u64, pid: u32) -> Option<bool> {
        let sample = (time, pid);
        let known = self.at_home.get().filter(|known| known.sample == sample);
        let answer = known.map_or_else(|| is_at_home(pid), |known| known.answer);
        self.at_home.set(Some(AtHome { sample, answer }));
        answer
    }

    /// The file that a running process has mapped.
    fn mapped_file(&self, module: &Module<'_>, mapping: &Mapping, pid: u32, build_id: &[u8]) -> Option<MappedFile> {
        let [by_range, in_its_root, _] = proc::mapped_file(pid, mapping.start, mapping.end, plain_path(module));
        [by_range, in_its_root, proc::program(pid)].iter().find_map(|place| {
            let file = door::open(place).ok()?;
            if !self.is_recorded(file.metadata(), &module.key) {
                return None;
            }
            // Mostly the file of the process before.
            let identity = FileIdentity::of(file.metadata());
            let mut known = module.mapped.borrow_mut();
            if let Some((last, its_build_id, is_foreign)) = &*known
                && identity.as_ref() == Some(last)
                && its_build_id == build_id
            {
                return Some(MappedFile::known(file, *is_foreign));
            }
            let mapped = MappedFile::new(file, build_id)?;
            *known = identity.map(|identity| (identity, build_id.to_vec(), mapped.is_foreign));
            Some(mapped)
        })
    }

    fn contents(&self, index: ModuleIndex) -> &Contents<'a> {
        let module = &self.modules[&index];
        module.contents.get_or_init(|| {
            self.used.set(self.used.get() + 1);
            // Happens once, when the first stack reaches into it.
            let kept = self.with_file(module, |image, file| self.keep(index, module, image, file));
            kept.map_or(Contents::Opaque, Contents::Elf)
        })
    }

    /// Keeps a table until the recording ends; `None` if its user has too many.
    fn store(&self, module: &Module<'_>, foreign_owner: Option<u32>, bytes: Vec<u8>) -> Option<&'a [u8]> {
        let hash = hash(&bytes);
        let known = self.tables_by_hash.borrow().get(&hash).copied();
        if let Some(known) = known.filter(|known| *known == bytes) {
            return Some(known);
        }
        if let Some(owner) = foreign_owner {
            let mut foreign = self.foreign.borrow_mut();
            let of_owner = foreign.entry(owner).or_default();
            if bytes.len() > MOST_FOREIGN - *of_owner {
                self.report(module, "the files of its user have too many unwind tables");
                return None;
            }
            *of_owner += bytes.len();
        }
        let kept = self.arena.keep(bytes);
        self.tables_by_hash.borrow_mut().insert(hash, kept);
        Some(kept)
    }

    fn keep(
        &self,
        index: ModuleIndex,
        module: &Module<'_>,
        image: &Image<'_>,
        file: Option<Opened<'_>>,
    ) -> ElfModule<'a> {
        let mut elf = ElfModule::new(image);
        let owner = image.foreign_owner();
        let identity = file.and_then(|file| file.identity);
        if let Some(known) = identity.and_then(|identity| self.tables.known(image, identity)) {
            elf.set_table(self.kept(module, owner, Ok(known)));
            return elf;
        }
        let aside = self.maker.as_ref().zip(file).filter(|_| is_made_aside(image));
        if let Some((maker, Opened { file, .. })) = aside {
            let kept = kept_meanwhile(image).filter(|&bytes| maker.has_room(file, bytes));
            if maker.begin(index.0, file, identity, kept.unwrap_or(0)) {
                let frames = kept.and_then(|_| call_frames(image));
                elf.wait_for_table(frames, Rc::clone(file));
                return elf;
            }
            if owner.is_some() {
                self.report(module, "too many files of its user wait for their unwind tables");
                return elf;
            }
        }
        let made = self.tables.load_any(image, identity);
        elf.set_table(made.and_then(|made| self.kept(module, owner, made)));
        elf
    }

    /// Keeps the table of a module, or reports what is wrong with it.
    fn kept(
        &self,
        module: &Module<'_>,
        foreign_owner: Option<u32>,
        made: Result<tables::Table, tables::Error>,
    ) -> Option<Kept<'a>> {
        let table = made.inspect_err(|error| self.report(module, error)).ok()?;
        if let Some(damage) = table.damage {
            self.report(module, damage);
        }
        let bytes = self.store(module, foreign_owner, table.bytes)?;
        let parsed = Section::parse(bytes, table.address);
        let section = parsed.inspect_err(|error| self.report(module, error)).ok()?;
        Some((section, bytes))
    }
}

/// Whether another thread makes the table of a file: it is large, and walks can use tables of
/// single functions until then; or it takes as long as another user likes.
fn is_made_aside(image: &Image<'_>) -> bool {
    let is_large = || kept_meanwhile(image).is_some_and(|bytes| bytes >= LARGE);
    image.foreign_owner().is_some() || is_large() && tables::own_section(image).is_none()
}

/// The size of the call frame information, if tables of single functions can be made from it.
fn kept_meanwhile(image: &Image<'_>) -> Option<u64> {
    let sections = image.sections().iter();
    let size = |name: &[u8]| {
        sections
            .clone()
            .find(|section| section.name == name)
            .map(|section| section.size)
    };
    let size = size(b".eh_frame")?.saturating_add(size(b".eh_frame_hdr")?);
    (!tables::exceeds_call_frames(image)).then_some(size)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

fn plain_path<'m>(module: &'m Module<'_>) -> &'m str {
    module.path.strip_suffix(DELETED).unwrap_or(&module.path)
}
