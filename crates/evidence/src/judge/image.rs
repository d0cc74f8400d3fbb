//! A file as the judge sees it: its code, the extents of its functions, and the contents of its
//! slots.
//!
//! Nothing here uses the project's own tables or its ELF reader, so that the judge does not share
//! their mistakes.

use std::cell::OnceCell;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use gimli::{BaseAddresses, CieOrFde, DebugFrame, EhFrame, LittleEndian, UnwindSection};
use object::read::elf::{ElfFile64, Rela, SectionHeader};
use object::{Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind, elf};
use rustc_hash::FxHashMap;

use super::code::Cpu;

/// Code of one function, as the file's symbols or call frame information delimit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Extent {
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The value that the dynamic linker writes into a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The address of a symbol with this name.
    Symbol(String),
    /// An address of the same file.
    Address(u64),
    /// The result of the function at this address.
    Resolver(u64),
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) address: u64,
    /// Whether the address is that of a function that chooses the implementation.
    pub(crate) chooses: bool,
}

#[derive(Debug)]
struct Segment {
    address: u64,
    end: u64,
    offset: u64,
    executable: bool,
}

#[derive(Debug)]
struct Symbol {
    extent: Extent,
    name: String,
    sized: bool,
}

/// An ELF file.
#[derive(Debug)]
pub(crate) struct Image {
    /// Last component of the path.
    pub(crate) name: String,
    pub(crate) entry: u64,
    pub(crate) cpu: Cpu,
    /// Page of the lowest loaded segment.
    pub(crate) base: u64,
    data: Vec<u8>,
    segments: Vec<Segment>,
    /// Sorted by start.
    frames: Vec<Extent>,
    /// Sorted by start; without overlaps in most files.
    symbols: Vec<Symbol>,
    /// Every address where a function is known to start, sorted.
    starts: Vec<u64>,
    /// Sections of stubs.
    stubs: Vec<Extent>,
    /// Sections of slots that only the dynamic linker writes.
    got: Vec<Extent>,
    slots: FxHashMap<u64, Slot>,
    exports: FxHashMap<String, Vec<Export>>,
    /// Whether the compiler is one whose ways to store addresses are all known here.
    gcc: bool,
    /// Sorted addresses of code that something stores or jumps to; computed on demand.
    held: OnceCell<Vec<u64>>,
}

impl Image {
    /// Reads a file; `None` if it is not a 64-bit ELF file.
    pub(crate) fn open(path: &Path, build_id: &[u8]) -> Option<Image> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Image::parse(fs::read(path).ok()?, name, build_id)
    }

    /// The image that the kernel maps into every process, read from this one.
    pub(crate) fn vdso() -> Option<Image> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mut data = vec![0; usize::try_from(end - start).ok()?];
        fs::File::open("/proc/self/mem")
            .ok()?
            .read_exact_at(&mut data, start)
            .ok()?;
        Image::parse(data, "[vdso]".to_owned(), &[])
    }

    fn parse(data: Vec<u8>, name: String, build_id: &[u8]) -> Option<Image> {
        let file = ElfFile64::<Endianness>::parse(&data[..]).ok()?;
        let own_id = file.build_id().ok().flatten().unwrap_or_default().to_vec();
        if !build_id.is_empty() && own_id != build_id {
            return None;
        }
        let mut image = Image {
            name,
            entry: file.entry(),
            cpu: match file.architecture() {
                object::Architecture::Aarch64 => Cpu::Aarch64,
                _ => Cpu::X86_64,
            },
            base: 0,
            data: Vec::new(),
            segments: Vec::new(),
            frames: Vec::new(),
            symbols: Vec::new(),
            starts: Vec::new(),
            stubs: Vec::new(),
            got: Vec::new(),
            slots: FxHashMap::default(),
            exports: FxHashMap::default(),
            gcc: is_of_gcc(&file),
            held: OnceCell::new(),
        };
        image.read_segments(&file);
        image.read_frames(&file);
        image.read_symbols(&file, true);
        image.read_go(&file);
        if let Some(debug) = debug_file(&own_id)
            && let Ok(debug) = ElfFile64::<Endianness>::parse(&debug[..])
        {
            image.read_symbols(&debug, false);
        }
        image.read_slots(&file);
        image.sort();
        drop(file);
        image.data = data;
        Some(image)
    }

    fn read_segments(&mut self, file: &ElfFile64<'_, Endianness>) {
        for segment in file.segments() {
            let (offset, size) = segment.file_range();
            let object::SegmentFlags::Elf { p_flags, .. } = segment.flags() else {
                continue;
            };
            self.segments.push(Segment {
                address: segment.address(),
                end: segment.address().saturating_add(size),
                offset,
                executable: p_flags.0 & elf::PF_X.0 != 0,
            });
        }
        self.base = self.segments.iter().map(|s| s.address).min().unwrap_or(0) & !4095;
        for section in file.sections() {
            let name = section.name().unwrap_or("");
            let extent = Extent {
                start: section.address(),
                end: section.address().saturating_add(section.size()),
            };
            if name.starts_with(".plt") || name.starts_with(".iplt") {
                self.stubs.push(extent);
            } else if name.starts_with(".got") {
                self.got.push(extent);
            }
        }
    }

    fn read_frames(&mut self, file: &ElfFile64<'_, Endianness>) {
        let bases = |name: &str| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = BaseAddresses::default()
            .set_eh_frame(bases(".eh_frame"))
            .set_text(bases(".text"))
            .set_got(bases(".got"));
        if let Some(data) = file
            .section_by_name(".eh_frame")
            .and_then(|s| s.uncompressed_data().ok())
        {
            self.read_entries(&EhFrame::new(&data, LittleEndian), &bases);
        }
        if let Some(data) = file
            .section_by_name(".debug_frame")
            .and_then(|s| s.uncompressed_data().ok())
        {
            self.read_entries(&DebugFrame::new(&data, LittleEndian), &bases);
        }
    }

    fn read_entries<'d, S>(&mut self, section: &S, bases: &BaseAddresses)
    where
        S: UnwindSection<gimli::EndianSlice<'d, LittleEndian>>,
    {
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(fde) = partial.parse(S::cie_from_offset) else {
                continue;
            };
            let (start, end) = (fde.initial_address(), fde.initial_address().saturating_add(fde.len()));
            let stub = self.stubs.iter().any(|stubs| stubs.contains(start));
            if fde.len() > 0 && !stub && start != 0 {
                self.frames.push(Extent { start, end });
            }
        }
    }

    fn read_symbols(&mut self, file: &ElfFile64<'_, Endianness>, exports: bool) {
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let Ok(name) = symbol.name() else { continue };
            let object::SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
                continue;
            };
            let chooses = st_info.st_type() == elf::STT_GNU_IFUNC;
            let code = symbol.kind() == SymbolKind::Text || chooses;
            let label = symbol.kind() == SymbolKind::Unknown && st_info.st_type() == elf::STT_NOTYPE;
            if !(code || label) || !self.is_code(symbol.address()) || name.is_empty() {
                continue;
            }
            // An undefined symbol with an address: the program's stub is this function for every
            // module, as the program compares its address.
            if exports && symbol.is_global() {
                let list = self.exports.entry(name.to_owned()).or_default();
                let export = Export {
                    address: symbol.address(),
                    chooses,
                };
                if !list.contains(&export) {
                    list.push(export);
                }
            }
            if symbol.is_undefined() {
                continue;
            }
            self.symbols.push(Symbol {
                extent: Extent {
                    start: symbol.address(),
                    end: symbol.address().saturating_add(symbol.size()),
                },
                name: name.to_owned(),
                sized: symbol.size() > 0,
            });
        }
    }

    fn read_slots(&mut self, file: &ElfFile64<'_, Endianness>) {
        let endian = file.endian();
        let dynamic: Vec<_> = file.dynamic_symbols().map(|s| (s.index().0, s)).collect();
        let dynamic: FxHashMap<usize, _> = dynamic.into_iter().collect();
        for section in file.elf_section_table().iter() {
            if section.sh_flags(endian).0 & elf::SHF_ALLOC.0 == 0 {
                continue;
            }
            let Ok(Some((relocations, _))) = section.rela(endian, file.data()) else {
                continue;
            };
            for relocation in relocations {
                let kind = relocation.r_type(endian, false);
                let addend = relocation.r_addend(endian) as u64;
                let slot = match kind {
                    elf::R_X86_64_IRELATIVE | elf::R_AARCH64_IRELATIVE => Slot::Resolver(addend),
                    elf::R_X86_64_RELATIVE | elf::R_AARCH64_RELATIVE => Slot::Address(addend),
                    elf::R_X86_64_JUMP_SLOT
                    | elf::R_X86_64_GLOB_DAT
                    | elf::R_X86_64_64
                    | elf::R_AARCH64_JUMP_SLOT
                    | elf::R_AARCH64_GLOB_DAT
                    | elf::R_AARCH64_ABS64 => {
                        let index = relocation.r_sym(endian, false) as usize;
                        let Some(symbol) = dynamic.get(&index) else { continue };
                        Slot::Symbol(symbol.name().unwrap_or("").to_owned())
                    }
                    _ => continue,
                };
                self.slots.insert(relocation.r_offset(endian), slot);
            }
        }
    }

    /// Functions of Go, whose programs have neither `.eh_frame` nor, stripped, symbols
    /// (`runtime/symtab.go`, `pcHeader`).
    fn read_go(&mut self, file: &ElfFile64<'_, Endianness>) {
        let Some(section) = file
            .section_by_name(".gopclntab")
            .or_else(|| file.section_by_name(".data.rel.ro.gopclntab"))
        else {
            return;
        };
        let Ok(table) = section.data() else { return };
        let word = |at: usize| Some(u64::from_le_bytes(table.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?) as usize);
        let magic = half(0).unwrap_or(0);
        // Go 1.18 and 1.20; older versions have another format.
        if magic != 0xffff_fff0 && magic != 0xffff_fff1 {
            return;
        }
        let text = match word(24) {
            Some(0) | None => bases_text(file),
            Some(address) => address,
        };
        let header = (word(8), word(32), word(64));
        let (Some(functions), Some(names), Some(lines)) = header else {
            return;
        };
        let (names, lines) = (names as usize, lines as usize);
        for index in 0..(functions as usize).min(table.len() / 8) {
            let entry = lines + index * 8;
            let (Some(start), Some(function), Some(end)) = (half(entry), half(entry + 4), half(entry + 8)) else {
                return;
            };
            let name = half(lines + function + 4)
                .and_then(|offset| table.get(names + offset..))
                .and_then(|rest| rest.split(|&byte| byte == 0).next())
                .map(|name| String::from_utf8_lossy(name).into_owned());
            self.symbols.push(Symbol {
                extent: Extent {
                    start: text + start as u64,
                    end: text + end as u64,
                },
                name: name.unwrap_or_default(),
                sized: true,
            });
        }
    }

    fn sort(&mut self) {
        self.frames.sort_by_key(|extent| (extent.start, extent.end));
        self.frames.dedup();
        // Names of the same code are next to each other, sized ones first.
        self.symbols
            .sort_by(|a, b| (a.extent.start, !a.sized, &a.name).cmp(&(b.extent.start, !b.sized, &b.name)));
        self.symbols.dedup_by(|a, b| a.extent == b.extent && a.name == b.name);
        self.starts = self.symbols.iter().map(|symbol| symbol.extent.start).collect();
        self.starts.extend(self.frames.iter().map(|extent| extent.start));
        // Code after the end of a function belongs to another one, even an unknown one.
        self.starts.extend(self.frames.iter().map(|extent| extent.end));
        self.starts.extend(self.stubs.iter().map(|extent| extent.start));
        self.starts.sort_unstable();
        self.starts.dedup();
    }

    /// The address that a byte of the file is loaded at.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .filter(|s| s.executable)
            .chain(self.segments.iter().filter(|s| !s.executable))
            .find(|s| (s.offset & !4095..s.offset.saturating_add(s.end - s.address)).contains(&offset))?;
        Some(segment.address.wrapping_add(offset.wrapping_sub(segment.offset)))
    }

    /// The executable ranges of the file: address, end, offset in the file.
    pub(crate) fn code(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.segments
            .iter()
            .filter(|s| s.executable)
            .map(|s| (s.address, s.end, s.offset))
    }

    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.segments
            .iter()
            .any(|s| s.executable && (s.address..s.end).contains(&address))
    }

    /// The file's bytes from an address on.
    pub(crate) fn bytes(&self, address: u64) -> &[u8] {
        let Some(segment) = self.segments.iter().find(|s| (s.address..s.end).contains(&address)) else {
            return &[];
        };
        let range = segment.offset + (address - segment.address)..segment.offset + (segment.end - segment.address);
        self.data
            .get(range.start as usize..(range.end as usize).min(self.data.len()))
            .unwrap_or(&[])
    }

    /// The bytes before an address, as many as there are up to `count`.
    pub(crate) fn bytes_before(&self, address: u64, count: u64) -> &[u8] {
        let Some(segment) = self.segments.iter().find(|s| s.address < address && address <= s.end) else {
            return &[];
        };
        let start = address.saturating_sub(count).max(segment.address);
        let bytes = self.bytes(start);
        bytes.get(..(address - start) as usize).unwrap_or(&[])
    }

    pub(crate) fn is_stub(&self, address: u64) -> bool {
        self.stubs.iter().any(|stubs| stubs.contains(address))
    }

    /// The extents that contain an address: from call frame information, and from a symbol.
    pub(crate) fn extents(&self, address: u64) -> [Option<&Extent>; 2] {
        let index = self.frames.partition_point(|extent| extent.start <= address);
        let frame = self.frames[..index].last().filter(|extent| extent.contains(address));
        [frame, self.symbol(address).map(|symbol| &symbol.extent)]
    }

    fn symbol(&self, address: u64) -> Option<&Symbol> {
        let index = self.symbols.partition_point(|symbol| symbol.extent.start <= address);
        // A label within a function hides the function, which is a few entries further back.
        self.symbols[..index]
            .iter()
            .rev()
            .take(16)
            .find(|symbol| symbol.sized && symbol.extent.contains(address))
    }

    /// The function that contains an address, if the file has its start and end.
    pub(crate) fn function(&self, address: u64) -> Option<Extent> {
        let [frame, symbol] = self.extents(address);
        symbol.or(frame).cloned()
    }

    /// The next address after this one where a function is known to start or end.
    pub(crate) fn next_start(&self, address: u64) -> u64 {
        let index = self.starts.partition_point(|&start| start <= address);
        let end = self.segments.iter().find(|s| (s.address..s.end).contains(&address));
        let end = end.map_or(address, |s| s.end);
        self.starts.get(index).copied().unwrap_or(end).min(end)
    }

    /// Whether only the dynamic linker writes a slot; only the running program knows the contents
    /// of other variables.
    pub(crate) fn is_got(&self, slot: u64) -> bool {
        self.got.iter().any(|section| section.contains(slot))
    }

    pub(crate) fn slot(&self, address: u64) -> Option<Slot> {
        if let Some(slot) = self.slots.get(&address) {
            return Some(slot.clone());
        }
        let value = u64::from_le_bytes(self.bytes(address).get(..8)?.try_into().ok()?);
        self.is_code(value).then_some(Slot::Address(value))
    }

    /// The addresses of code in a table.
    pub(crate) fn table(&self, address: u64) -> impl Iterator<Item = u64> {
        let entries = (0..512).map(move |index| self.slot(address + index * 8));
        entries.map_while(|slot| match slot {
            Some(Slot::Address(address)) if self.is_code(address) => Some(address),
            _ => None,
        })
    }

    pub(crate) fn exports(&self, name: &str) -> &[Export] {
        self.exports.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether an indirect call may lead into these addresses: something stores an address in the
    /// range, or jumps into it. `None` if this cannot be known.
    pub(crate) fn may_be_entered(&self, extent: &Extent) -> Option<bool> {
        if !self.gcc {
            return None;
        }
        let held = self.held.get_or_init(|| self.held_addresses());
        let index = held.partition_point(|&address| address < extent.start);
        Some(held.get(index).is_some_and(|&address| address < extent.end))
    }

    fn held_addresses(&self) -> Vec<u64> {
        let mut held: Vec<u64> = self
            .slots
            .values()
            .filter_map(|slot| match slot {
                Slot::Address(address) | Slot::Resolver(address) => Some(*address),
                Slot::Symbol(_) => None,
            })
            .collect();
        held.extend(self.exports.values().flatten().map(|export| export.address));
        held.push(self.entry);
        for segment in &self.segments {
            let bytes = self.bytes(segment.address);
            let skip = (segment.address.wrapping_neg() & 7) as usize;
            let words = bytes.get(skip..).unwrap_or(&[]).chunks_exact(8);
            held.extend(words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())));
            if segment.executable {
                held.extend(
                    self.cpu
                        .addresses(bytes, segment.address, |from, to| self.is_other_function(from, to)),
                );
            }
        }
        held.retain(|&address| self.is_code(address));
        held.sort_unstable();
        held.dedup();
        held
    }

    fn is_other_function(&self, from: u64, to: u64) -> bool {
        let [frame, symbol] = self.extents(from);
        match frame.or(symbol) {
            Some(extent) => !extent.contains(to),
            None => true,
        }
    }

    /// Name of the function at an address, as well as it is known.
    pub(crate) fn name_of(&self, address: u64) -> Option<&str> {
        if let Some(symbol) = self.symbol(address) {
            return Some(&symbol.name);
        }
        let index = self.symbols.partition_point(|symbol| symbol.extent.start <= address);
        let label = self.symbols[..index].last()?;
        let near = !label.sized && self.next_start(label.extent.start) > address;
        near.then_some(&*label.name)
    }

    /// The address as text: its function, or its place in the file.
    pub(crate) fn describe(&self, address: u64) -> String {
        match self.name_of(address) {
            Some(name) => format!("{name} ({}+{address:#x})", self.name),
            None => format!("{}+{address:#x}", self.name),
        }
    }
}

fn bases_text(file: &ElfFile64<'_, Endianness>) -> u64 {
    file.section_by_name(".text").map_or(0, |section| section.address())
}

fn is_of_gcc(file: &ElfFile64<'_, Endianness>) -> bool {
    let Some(comment) = file.section_by_name(".comment").and_then(|section| section.data().ok()) else {
        return false;
    };
    let comment = String::from_utf8_lossy(comment).into_owned();
    let other = ["clang", "rustc", "LLD", "ldc", "GHC"]
        .iter()
        .any(|other| comment.contains(other));
    comment.contains("GCC") && !other && file.section_by_name(".gopclntab").is_none()
}

/// The debug file for a build ID, from where distributions install it.
fn debug_file(build_id: &[u8]) -> Option<Vec<u8>> {
    let (first, rest) = build_id.split_first()?;
    let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::read(format!("/usr/lib/debug/.build-id/{first:02x}/{hex}.debug")).ok()
}
