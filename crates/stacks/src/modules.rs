//! The files of a process, each opened once, with their unwind tables.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use backtrail_cfi::announced;
use backtrail_cfi::called::called;
use backtrail_cfi::eh_frame::debug_frame;
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_cfi::tables::{self, TableOrigin, Tables};
use backtrail_elf::budget::Budget;
use backtrail_elf::{CodeSegments, FileBytes, Image, SectionData, Symbols, door};
use backtrail_process::Snapshot;
use backtrail_process::proc::{self, DELETED, VDSO, is_file};
use backtrail_process::snapshot::Mapping;
use backtrail_sframe::Section;
use backtrail_sframe::write::FunctionRows;

use crate::arguments::module::Source;

/// Maximum size of a module that is read from memory.
const LONGEST_IMAGE: u64 = 512 << 20;
/// The smallest unit of memory that a core contains or omits.
const PAGE: u64 = 4096;
/// Size that contains a module's headers and build ID in memory.
const HEADERS: u64 = 64 << 10;

/// A problem that kept a file from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The module's path.
    pub path: String,
    /// The reason.
    pub reason: Reason,
}

/// Why a file was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It does not exist, and memory does not contain enough of it.
    Missing,
    /// Build ID mismatch: that of the process, that of the file.
    OtherBuild(Vec<u8>, Vec<u8>),
    /// The file is for another CPU.
    OtherMachine(&'static str),
    /// It can't be read as ELF.
    Elf(backtrail_elf::Error),
    /// No table can be made for it.
    Tables(tables::Error),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.reason {
            Reason::Missing => f.write_str("not found"),
            Reason::OtherBuild(wanted, found) => {
                let (wanted, found) = (build_id_text(wanted), build_id_text(found));
                write!(f, "build ID mismatch: the process has {wanted}, this file has {found}")
            }
            Reason::OtherMachine(found) => write!(f, "CPU mismatch: this file is for {found}"),
            Reason::Elf(error) => error.fmt(f),
            Reason::Tables(error) => error.fmt(f),
        }
    }
}

fn build_id_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok("") => "none".to_owned(),
        // Go's, of several hashes in base 64.
        Ok(text) if text.contains('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) => text.to_owned(),
        _ => hex(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Distinguishes modules: path, inode, and the build ID in memory.
type Key = (String, u64, Vec<u8>);

/// A table that lives with its module.
#[derive(Debug)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    address: u64,
}

impl Bytes {
    pub(crate) fn section(&self) -> Option<Section<'_>> {
        Section::parse(&self.bytes, self.address).ok()
    }
}

/// Bytes of a module that are needed later.
#[derive(Debug)]
pub(crate) enum Kept {
    File(Rc<FileBytes>, Range<usize>),
    Copied(Vec<u8>),
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        match self {
            Kept::File(file, range) => file.slice(range.start, range.len()).unwrap_or_default(),
            Kept::Copied(bytes) => bytes,
        }
    }
}

impl Kept {
    /// Keeps a section; if it lies in the file, without a copy.
    fn of(section: SectionData<'_>, file: Option<&Rc<FileBytes>>) -> Held<Kept> {
        let in_file = file.and_then(|file| {
            let range = file.range_of(&section.data)?;
            Some(Kept::File(Rc::clone(file), range))
        });
        Held {
            address: section.address,
            bytes: in_file.unwrap_or_else(|| Kept::Copied(section.data.into_owned())),
        }
    }
}

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) number: u32,
    path: String,
    /// The path that its file was opened at.
    place: Option<PathBuf>,
    file: Option<Rc<FileBytes>>,
    pub(crate) build_id: Vec<u8>,
    pub(crate) base_vaddr: u64,
    pub(crate) mem_size: u64,
    pub(crate) position_independent: bool,
    /// Where the process has mapped the file.
    code: CodeSegments,
    /// Whether the file has its segments elsewhere than the one that the process has mapped:
    /// adding tables to a file may move them.
    is_moved: bool,
    /// Its table. For a file with only call frame information, it is made when
    /// [`CallFrames::function`] gives no answer.
    pub(crate) table: OnceCell<Option<Bytes>>,
    /// Where rows come from; `None` if there are none.
    pub(crate) origin: Option<TableOrigin>,
    /// Its own `.sframe`, if the table contains more than that.
    pub(crate) own: Option<Bytes>,
    /// Its `.eh_frame`, for the registers that tables don't restore.
    pub(crate) frames: Option<CallFrames<Kept>>,
    /// Its symbols, if it exists in memory only.
    symbols: Option<Symbols>,
    /// Its table of arguments, read on demand.
    arguments: OnceCell<Option<Source>>,
    /// Targets of direct calls, collected when code that no table describes is met.
    called: OnceCell<Vec<u64>>,
}

impl Module {
    pub(crate) fn arguments(&self) -> Option<&Source> {
        let read = || Source::of(&self.image()?);
        self.arguments.get_or_init(read).as_ref()
    }

    /// A table that covers the code at an address of the file.
    pub(crate) fn table(&self, svma: u64, set: &ModuleSet) -> Option<Section<'_>> {
        self.origin?;
        if self.table.get().is_none()
            && let Some(frames) = &self.frames
            && let Some(function) = frames.function(svma, |function| self.correct(function))
        {
            return Section::parse(function, 0).ok();
        }
        let whole = self.table.get_or_init(|| {
            let image = self.image()?;
            set.table(&self.path, &image).map(|(table, _)| table)
        });
        whole.as_ref()?.section()
    }

    fn image(&self) -> Option<Image<'_>> {
        Image::of(self.file.as_ref()?).ok()
    }

    fn correct(&self, function: &mut FunctionRows) -> bool {
        self.image().is_none_or(|image| tables::correct(&image, function))
    }

    /// Targets of direct calls as addresses in the file, sorted; empty for large files.
    pub(crate) fn called(&self) -> &[u64] {
        let find = || self.image().map(|image| called(&image)).unwrap_or_default();
        self.called.get_or_init(find)
    }

    /// The address in the file of an exported object.
    pub(crate) fn object(&self, name: &str) -> Option<u64> {
        self.image()?.exported_object(name)
    }

    /// The same for all objects whose names begin with `prefix`, with their names.
    pub(crate) fn objects(&self, prefix: &str) -> Vec<(String, u64)> {
        self.image()
            .map_or_else(Vec::new, |image| image.exported_objects(prefix))
    }

    /// The function in a table that contains the code at an address of the file.
    pub(crate) fn function(&self, svma: u64, set: &ModuleSet) -> Option<Range<u64>> {
        let function = self.table(svma, set)?.lookup(svma).ok()??.function;
        Some(function.start..function.start.saturating_add(function.size.into()))
    }

    pub(crate) fn bias(&self, mapping: &Mapping) -> Option<u64> {
        Some(mapping.start.wrapping_sub(self.code.address_of(mapping.file_offset)?))
    }

    /// The file's bytes from `address`, in its mapping, to the mapping's end; at most this many.
    fn file_at(&self, mapping: &Mapping, address: u64, most: usize) -> Option<&[u8]> {
        let file = self.file.as_ref()?;
        let offset = match self.is_moved {
            true => self
                .image()?
                .offset_of_svma(address.wrapping_sub(self.bias(mapping)?))?,
            false => mapping.file_offset.checked_add(address.checked_sub(mapping.start)?)?,
        };
        let offset = usize::try_from(offset).ok()?;
        let len = usize::try_from(mapping.end.checked_sub(address)?).ok()?;
        file.slice(offset, len.min(most).min(file.len().checked_sub(offset)?))
            .ok()
    }
}

/// The address in a file of its list of announced code, and where its segments are loaded.
#[derive(Clone)]
struct Descriptor(u64, CodeSegments);

/// All modules met so far.
pub(crate) struct ModuleSet {
    tables: Tables,
    executable: Option<PathBuf>,
    /// Where the files of cores are searched for first.
    sysroot: Option<PathBuf>,
    modules: RefCell<HashMap<Key, Option<Rc<Module>>>>,
    /// Where files announce generated code; `None` for those that do not.
    descriptors: RefCell<HashMap<Key, Option<Descriptor>>>,
    problems: RefCell<Vec<Problem>>,
}

impl ModuleSet {
    /// A set with this source of tables, this file for the executable, and this folder for the
    /// files of cores.
    pub(crate) fn new(tables: Tables, executable: Option<PathBuf>, sysroot: Option<PathBuf>) -> ModuleSet {
        ModuleSet {
            tables,
            executable,
            sysroot,
            modules: RefCell::default(),
            descriptors: RefCell::default(),
            problems: RefCell::default(),
        }
    }

    pub(crate) fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }

    /// Modules whose file is not at its path: the path, and the place of the file.
    pub(crate) fn places(&self) -> Vec<(String, PathBuf)> {
        let modules = self.modules.borrow();
        let elsewhere = modules.iter().filter_map(|((path, ..), module)| {
            let place = module.as_ref()?.place.as_ref()?;
            (place != Path::new(path)).then(|| (path.clone(), place.clone()))
        });
        elsewhere.collect()
    }

    /// Modules that exist in memory only: the path, the lowest address, the symbols.
    pub(crate) fn in_memory(&self) -> Vec<(String, u64, Symbols)> {
        let modules = self.modules.borrow();
        let found = modules.iter().filter_map(|((path, ..), module)| {
            let module = module.as_ref()?;
            Some((path.clone(), module.base_vaddr, module.symbols.clone()?))
        });
        found.collect()
    }

    /// Copies bytes of the snapshot's memory from `address` on, and returns their number. Memory
    /// that a core omits is read from the file that was mapped there.
    pub(crate) fn read(&self, snapshot: &Snapshot<'_>, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.wrapping_add(done as u64);
            let mut got = snapshot.read(at, &mut buffer[done..]);
            if got == 0 && !snapshot.is_live {
                // A page at a time: the next one may have been changed and be in the core.
                let len = (PAGE - at % PAGE).min((buffer.len() - done) as u64) as usize;
                got = self.read_file(snapshot, at, &mut buffer[done..done + len]).unwrap_or(0);
            }
            if got == 0 {
                break;
            }
            done += got;
        }
        done
    }

    /// The text of glibc's `__abort_msg`: a pointer to its size, in four bytes, and the text.
    pub(crate) fn abort_message(&self, snapshot: &Snapshot<'_>) -> Option<String> {
        const LONGEST: usize = 4096;
        let is_libc = |mapping: &&Mapping| {
            let name = mapping.path.rsplit('/').next().unwrap_or_default();
            mapping.executable && (name.starts_with("libc.so.") || name.starts_with("libc-2."))
        };
        let mapping = snapshot.mappings.iter().find(is_libc)?;
        let module = self.of(snapshot, mapping)?;
        let pointer = module.object("__abort_msg")?.wrapping_add(module.bias(mapping)?);
        let mut word = [0; 8];
        let read = |address: u64, buffer: &mut [u8]| self.read(snapshot, address, buffer) == buffer.len();
        if !read(pointer, &mut word) {
            return None;
        }
        let message = match snapshot.endian {
            backtrail_wire::Endian::Little => u64::from_le_bytes(word),
            backtrail_wire::Endian::Big => u64::from_be_bytes(word),
        };
        if message == 0 {
            return None;
        }
        let mut text = vec![0; LONGEST];
        let got = self.read(snapshot, message.checked_add(4)?, &mut text);
        let end = text[..got].iter().position(|&byte| byte == 0)?;
        let text = String::from_utf8_lossy(&text[..end]).trim_end().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    fn read_file(&self, snapshot: &Snapshot<'_>, address: u64, buffer: &mut [u8]) -> Option<usize> {
        let mapping = snapshot.mapping(address)?;
        let module = self.of(snapshot, mapping)?;
        let bytes = module.file_at(mapping, address, buffer.len())?;
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Some(len)
    }

    fn tell(&self, path: &str, reason: Reason) {
        let problem = Problem {
            path: path.to_owned(),
            reason,
        };
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// The module of a mapping; `None` for memory without a file, and if nothing of the file
    /// exists.
    pub(crate) fn of(&self, snapshot: &Snapshot<'_>, mapping: &Mapping) -> Option<Rc<Module>> {
        if mapping.path != VDSO && !is_file(&mapping.path) {
            return None;
        }
        let first = first_mapping(snapshot, mapping);
        let key = key(snapshot, mapping, first);
        if let Some(known) = self.modules.borrow().get(&key) {
            return known.clone();
        }
        let number = self.modules.borrow().len() as u32;
        let loaded = self.load(snapshot, mapping, first, &key.2, number).map(Rc::new);
        self.modules.borrow_mut().insert(key, loaded.clone());
        loaded
    }

    /// Where the process's modules announce generated code ([`announced`]).
    pub(crate) fn descriptors(&self, snapshot: &Snapshot<'_>) -> Vec<u64> {
        let files = snapshot.mappings.iter();
        let files = files.filter(|mapping| mapping.executable && is_file(&mapping.path));
        let found = files.filter_map(|mapping| {
            let key = key(snapshot, mapping, first_mapping(snapshot, mapping));
            let known = self.descriptors.borrow().get(&key).cloned();
            let Descriptor(svma, segments) = known.unwrap_or_else(|| {
                let found = self.descriptor(snapshot, mapping, &key.2);
                self.descriptors.borrow_mut().insert(key, found.clone());
                found
            })?;
            Some(svma.wrapping_add(mapping.start.wrapping_sub(segments.address_of(mapping.file_offset)?)))
        });
        let mut found: Vec<u64> = found.collect();
        // A file may have several mappings with code.
        found.sort_unstable();
        found.dedup();
        found
    }

    fn descriptor(&self, snapshot: &Snapshot<'_>, mapping: &Mapping, wanted: &[u8]) -> Option<Descriptor> {
        let path = mapping.path.strip_suffix(DELETED).unwrap_or(&mapping.path);
        let places = self.candidates(snapshot, mapping, path);
        places.iter().find_map(|place| {
            let file = self.open(place, snapshot, mapping)?;
            let wanted = self.wanted(snapshot, mapping, place, wanted);
            let image = image_of_process(&file, snapshot, &wanted).ok()?;
            let first = first_mapping(snapshot, mapping);
            let mapped = self.mapped_elsewhere(snapshot, mapping, first, place, &image);
            Some(Descriptor(
                image.object(announced::DESCRIPTOR)?,
                mapped.unwrap_or_else(|| CodeSegments::of(&image)),
            ))
        })
    }

    fn open(&self, place: &Path, snapshot: &Snapshot<'_>, mapping: &Mapping) -> Option<FileBytes> {
        open(place, snapshot, mapping, Some(place) == self.executable.as_deref())
    }

    fn load(
        &self,
        snapshot: &Snapshot<'_>,
        mapping: &Mapping,
        first: &Mapping,
        wanted: &[u8],
        number: u32,
    ) -> Option<Module> {
        let path = mapping.path.strip_suffix(DELETED).unwrap_or(&mapping.path);
        let mut told = false;
        if mapping.path != VDSO {
            for place in self.candidates(snapshot, mapping, path) {
                let Some(file) = self.open(&place, snapshot, mapping) else {
                    continue;
                };
                let file = Rc::new(file);
                let wanted = self.wanted(snapshot, mapping, &place, wanted);
                match image_of_process(&file, snapshot, &wanted) {
                    Ok(image) => {
                        let mapped = self.mapped_elsewhere(snapshot, mapping, first, &place, &image);
                        let module = self.keep(path, &image, Some(place), Some(&file), number);
                        return Some(Module {
                            is_moved: mapped.is_some(),
                            code: mapped.unwrap_or(module.code),
                            ..module
                        });
                    }
                    Err(reason) => self.tell(&place.to_string_lossy(), reason),
                }
                told = true;
            }
        }
        let from_memory = self.load_from_memory(snapshot, path, first, number);
        if from_memory.is_none() && !told {
            self.tell(path, Reason::Missing);
        }
        from_memory
    }

    fn candidates(&self, snapshot: &Snapshot<'_>, mapping: &Mapping, path: &str) -> Vec<PathBuf> {
        let given = self
            .executable
            .iter()
            .filter(|_| snapshot.executable.as_deref() == Some(mapping.path.as_str()));
        let mut candidates: Vec<PathBuf> = given.cloned().collect();
        if snapshot.is_live {
            // Try the path first, which has names and debug files next to it; the inode shows
            // whether it is the same file.
            let [by_mapping, by_root, by_path] = proc::mapped_file(snapshot.reader, mapping.start, mapping.end, path);
            // The last one is for those who may not open mappings.
            candidates.extend([by_path, by_root, by_mapping, proc::program(snapshot.reader)]);
        } else {
            // Files of another machine's core are not at their paths here.
            let relative = path.trim_start_matches('/');
            candidates.extend(self.sysroot.iter().map(|root| root.join(relative)));
            candidates.push(PathBuf::from(path));
        }
        candidates
    }

    /// Where the process has mapped the segments of a file, if the image that was found instead
    /// has them elsewhere.
    fn mapped_elsewhere(
        &self,
        snapshot: &Snapshot<'_>,
        mapping: &Mapping,
        first: &Mapping,
        place: &Path,
        image: &Image<'_>,
    ) -> Option<CodeSegments> {
        let mapped = if !snapshot.is_live {
            segments_in_memory(snapshot, first)
        } else {
            let own = self.own_file(snapshot, mapping, place);
            own.and_then(|own| Some(CodeSegments::of(&Image::of(&own).ok()?)))
        };
        let is_other = |mapped: &CodeSegments| {
            mapped.address_of(mapping.file_offset).is_some() && *mapped != CodeSegments::of(image)
        };
        mapped.filter(is_other)
    }

    /// The file that a live process has mapped, if another one was given in its place.
    fn own_file(&self, snapshot: &Snapshot<'_>, mapping: &Mapping, place: &Path) -> Option<FileBytes> {
        if !snapshot.is_live || self.executable.as_deref() != Some(place) {
            return None;
        }
        let path = mapping.path.strip_suffix(DELETED).unwrap_or(&mapping.path);
        let own = self.candidates(snapshot, mapping, path).into_iter().skip(1);
        own.filter_map(|place| open(&place, snapshot, mapping, false)).next()
    }

    /// The build ID that a file must have: the mapped file's, even where its inode identifies it.
    fn wanted(&self, snapshot: &Snapshot<'_>, mapping: &Mapping, place: &Path, known: &[u8]) -> Vec<u8> {
        let own = self.own_file(snapshot, mapping, place);
        let own = own.and_then(|own| Some(identity(&Image::of(&own).ok()?)?.to_vec()));
        own.unwrap_or_else(|| known.to_vec())
    }

    /// Reads a module from memory, as far as memory contains it.
    fn load_from_memory(&self, snapshot: &Snapshot<'_>, path: &str, first: &Mapping, number: u32) -> Option<Module> {
        if first.file_offset != 0 {
            return None;
        }
        let headers = read(snapshot, first.start, HEADERS.min(first.end - first.start));
        let len = Image::parse_memory(&headers, first.start).ok()?.mem_size();
        let bytes = read(snapshot, first.start, len.min(LONGEST_IMAGE));
        let image = Image::parse_memory(&bytes, first.start).ok()?;
        let has_frames = image.eh_frame().ok().flatten().is_some() || tables::own_section(&image).is_some();
        // That of AArch64 has no call frame information, and rows that its code shows.
        if !has_frames && path != VDSO {
            return None;
        }
        Some(Module {
            symbols: Some(Symbols::new(&image)),
            ..self.keep(path, &image, None, None, number)
        })
    }

    /// The table of a whole module, and its origin.
    fn table(&self, path: &str, image: &Image<'_>) -> Option<(Bytes, TableOrigin)> {
        match self.tables.load_any(image, None)? {
            Ok(table) => {
                let (bytes, address) = (table.bytes, table.address);
                Some((Bytes { bytes, address }, table.origin))
            }
            Err(error) => {
                self.tell(path, Reason::Tables(error));
                None
            }
        }
    }

    fn keep(
        &self,
        path: &str,
        image: &Image<'_>,
        place: Option<PathBuf>,
        file: Option<&Rc<FileBytes>>,
        number: u32,
    ) -> Module {
        let own = tables::own_section(image);
        let section = image.eh_frame().ok().flatten();
        let exceeds = tables::exceeds_call_frames(image);
        let debug = || debug_frame::of_image(image).filter(|_| !exceeds);
        let frames = section.or_else(debug).map(|section| {
            let header = image.eh_frame_hdr().ok().flatten();
            CallFrames::new(
                image,
                Kept::of(section, file),
                header.map(|header| Kept::of(header, file)),
            )
        });
        let table = OnceCell::new();
        // Call frame information of other users is converted elsewhere, and at once.
        let is_ours = file.is_some_and(|file| file.foreign_owner().is_none());
        let origin = if own.is_none() && frames.is_some() && is_ours && !exceeds {
            Some(TableOrigin::Converted)
        } else {
            let made = self.table(path, image);
            let origin = made.as_ref().map(|(_, origin)| *origin);
            let _ = table.set(made.map(|(table, _)| table));
            origin
        };
        let own = own.filter(|_| origin != Some(TableOrigin::Shipped));
        Module {
            number,
            path: path.to_owned(),
            place,
            file: file.cloned(),
            build_id: image.build_id().unwrap_or_default().to_vec(),
            base_vaddr: image.base_vaddr(),
            mem_size: image.mem_size(),
            position_independent: image.is_position_independent(),
            code: CodeSegments::of(image),
            is_moved: false,
            table,
            origin,
            own: own.map(|own| Bytes {
                bytes: own.data.into_owned(),
                address: own.address,
            }),
            frames,
            symbols: None,
            arguments: OnceCell::new(),
            called: OnceCell::new(),
        }
    }
}

/// What identifies the file of a mapping, of which `first` is the first one.
fn key(snapshot: &Snapshot<'_>, mapping: &Mapping, first: &Mapping) -> Key {
    let build_id = if snapshot.is_live && mapping.inode != 0 {
        // The inode is as reliable, and costs nothing.
        Vec::new()
    } else {
        identity_in_memory(snapshot, first)
    };
    (mapping.path.clone(), mapping.inode, build_id)
}

/// The image of a file, if it is the one with the `wanted` build ID, which may be unknown.
fn image_of_process<'f>(file: &'f FileBytes, snapshot: &Snapshot<'_>, wanted: &[u8]) -> Result<Image<'f>, Reason> {
    let image = Image::of(file).map_err(Reason::Elf)?;
    let found = identity(&image).unwrap_or_default();
    match image.arch().cpu == snapshot.arch.cpu {
        false => Err(Reason::OtherMachine(image.arch().name())),
        true if wanted.is_empty() || found == wanted => Ok(image),
        true => Err(Reason::OtherBuild(wanted.to_vec(), found.to_vec())),
    }
}

/// Opens the file at a path, if it is the mapped one.
fn open(place: &Path, snapshot: &Snapshot<'_>, mapping: &Mapping, is_given: bool) -> Option<FileBytes> {
    let file = if is_given {
        door::named(place)
    } else {
        door::open(place)
    };
    let file = file.ok()?;
    // Overlay and btrfs file systems report a different device here than in the mapping; the inode
    // is the same.
    if snapshot.is_live && !is_given && mapping.inode != 0 && file.metadata().ino() != mapping.inode {
        return None;
    }
    file.contents(&Budget::new()).ok()
}

/// The mapping of a file's first byte that belongs to this one.
pub(crate) fn first_mapping<'s>(snapshot: &'s Snapshot<'_>, mapping: &'s Mapping) -> &'s Mapping {
    let index = snapshot.mappings.partition_point(|other| other.start <= mapping.start);
    let before = snapshot.mappings[..index].iter().rev();
    before
        .take_while(|other| other.path == mapping.path || other.path.is_empty())
        .find(|other| other.path == mapping.path && other.file_offset == 0)
        .unwrap_or(mapping)
}

fn segments_in_memory(snapshot: &Snapshot<'_>, first: &Mapping) -> Option<CodeSegments> {
    if first.file_offset != 0 {
        return None;
    }
    let bytes = read(snapshot, first.start, HEADERS.min(first.end.checked_sub(first.start)?));
    let image = Image::parse_memory(&bytes, first.start).ok()?;
    Some(CodeSegments::of(&image))
}

pub(crate) fn build_id_in_memory(snapshot: &Snapshot<'_>, first: &Mapping) -> Vec<u8> {
    note_in_memory(snapshot, first, |image| image.build_id())
}

/// The build ID by which files are compared: GNU's, or else Go's.
fn identity<'a>(image: &Image<'a>) -> Option<&'a [u8]> {
    image.build_id().or_else(|| image.go_build_id())
}

pub(crate) fn identity_in_memory(snapshot: &Snapshot<'_>, first: &Mapping) -> Vec<u8> {
    note_in_memory(snapshot, first, identity)
}

fn note_in_memory(
    snapshot: &Snapshot<'_>,
    first: &Mapping,
    find: impl for<'a> Fn(&Image<'a>) -> Option<&'a [u8]>,
) -> Vec<u8> {
    if first.file_offset != 0 {
        return Vec::new();
    }
    let bytes = read(
        snapshot,
        first.start,
        HEADERS.min(first.end.saturating_sub(first.start)),
    );
    let image = Image::parse_memory(&bytes, first.start);
    image
        .ok()
        .and_then(|image| Some(find(&image)?.to_vec()))
        .unwrap_or_default()
}

/// Reads up to `len` bytes of memory in steps, so that no more is allocated than exists.
fn read(snapshot: &Snapshot<'_>, start: u64, len: u64) -> Vec<u8> {
    const STEP: usize = 1 << 20;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let done = bytes.len();
        let wanted = STEP.min((len - done as u64) as usize);
        bytes.resize(done + wanted, 0);
        let got = snapshot.read(start.wrapping_add(done as u64), &mut bytes[done..]);
        bytes.truncate(done + got);
        if got < wanted {
            break;
        }
    }
    bytes
}
